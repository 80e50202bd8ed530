"""The event loop over arrays, compiled by numba. It has the semantics of `simulator.engine.reference` and is faster.

`advance` runs until all ops have ended, no event is left, an array is too small, or its budget of events is used up.
All state is in arrays (`simulator.engine.compiled.arrays`), so the next call continues where the last one stopped.

Within one instant the order is: ends (with release of SMs, frees, dependencies), starts (with allocations), phases of
communications, choices of servers; then rates, once.

Names in this file: *low* is the lowered schedule, *s* the state. A *number* is the index of a stream or a flow, a
*place* that of a communication or a transfer.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from clustersim.simulator.engine.compiled.arrays import (
    ADVANCING,
    BACKGROUND_BEGIN,
    BEGIN,
    BUFFERED_SEND,
    CAPACITY,
    CHANGES,
    COMMUNICATION,
    COMMUNICATIONS,
    DIRTY,
    END,
    END_OF_SPAN,
    ENDED,
    ENDING,
    FIRST_STEP,
    FREE_COMMUNICATIONS,
    FREE_TRANSFERS,
    GPU,
    HEAP,
    HOST,
    INTERVALS,
    LOWERED_TYPES,
    NONE,
    READY,
    RECEIVE,
    ROOT,
    SERVER,
    SERVERS,
    STAMP,
    STARTING,
    STATE_TYPES,
    TWO_DIMENSIONS,
    Lowered,
    State,
)
from clustersim.simulator.engine.compiled.compilation import compiled
from clustersim.simulator.engine.setup import ONE_INSTANT

DONE, CONTINUE, DEADLOCK, MORE_COMMUNICATIONS, MORE_TRANSFERS, MORE_INTERVALS, FIRST_STEP_ENDED = range(7)
"""What `advance` returns."""

LATENCY, TRANSFER = range(2)
"""Kinds of entity that have an event, beside the op at the head of a stream: the latency or the delivery of a
communication, and a transfer. The i-th of a kind is number 2 i + kind of the entities after the streams."""

MOST_POSTED = 2**15 - 1
"""Receives of a stream that have left its head at once, at most: the field of `STREAM_STATE` has 16 bits. Further ones
wait until one has ended."""

ROUNDING = 1e-13
"""Equal rates differ by no more than this fraction. Rounding of a sum of a hundred shares of a row: some 1e-14."""

_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "_nrt": False,
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
"""Options of the functions that `advance` calls. Python does not call them, so they need no wrappers, which would take
half of the compile time."""


@intrinsic
def _prefetch(context, table, place):
    """Bring record *place* of *table* into the cache, without waiting for it; no harm if there is none.

    The state of a large run does not fit the nearer caches: a third of the time of the loop was waiting for records.
    """

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        at = context.cast(builder, arguments[1], signature.args[1], types.intp)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = builder.bitcast(builder.gep(array.data, [at]), byte)
        form = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", (byte,), form)
        builder.call(function, [address, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(table, place), generate


# Events: a heap by time, in which four events have the same parent and lie on one line of the cache. It begins at place
# `ROOT`; what lies after its end has the time inf. The place of each entity in it is stored, so that its event can be
# moved.


@njit(**_OPTIONS)
def _move_up(heap, places, at):
    entity, time = heap[at].entity, heap[at].time
    while at > ROOT:
        parent = (at >> 2) + 2
        if heap[parent].time <= time:
            break
        heap[at].entity, heap[at].time = heap[parent].entity, heap[parent].time
        places[heap[at].entity] = at
        at = parent
    heap[at].entity, heap[at].time = entity, time
    places[entity] = at


@njit(**_OPTIONS)
def _move_down(heap, places, end, at):
    entity, time = heap[at].entity, heap[at].time
    while True:
        first = 4 * (at - 2)
        if first >= end:
            break
        # sums of comparisons, because no processor predicts which event is first
        child = first + (heap[first + 1].time < heap[first].time)
        other = first + 2 + (heap[first + 3].time < heap[first + 2].time)
        child += (other - child) * (heap[other].time < heap[child].time)
        if time <= heap[child].time:
            break
        heap[at].entity, heap[at].time = heap[child].entity, heap[child].time
        places[heap[at].entity] = at
        at = child
    heap[at].entity, heap[at].time = entity, time
    places[entity] = at


@njit(**_OPTIONS)
def _entity(kind, place, s):
    """The number of the entity of *kind* for the communication or the transfer at *place*."""
    return len(s.streams) + 2 * place + kind


@njit(**_OPTIONS)
def _schedule(heap, places, count, entity, time):
    """Schedule the event of *entity* at *time*; move the event if it has one."""
    at = places[entity]
    if at == NONE:
        at = count[HEAP]
        count[HEAP] += 1
        heap[at].entity, heap[at].time = entity, time
        _move_up(heap, places, at)
    else:
        earlier = time < heap[at].time
        heap[at].time = time
        if earlier:
            _move_up(heap, places, at)
        else:
            _move_down(heap, places, count[HEAP], at)


@njit(**_OPTIONS)
def _cancel(heap, places, count, entity):
    """Remove the event of *entity* from the heap, if it has one."""
    at = places[entity]
    if at == NONE:
        return
    places[entity] = NONE
    count[HEAP] -= 1
    last = count[HEAP]
    entity, time = heap[last].entity, heap[last].time
    heap[last].time = inf
    if at < last:
        heap[at].entity, heap[at].time = entity, time
        places[entity] = at
        _move_up(heap, places, at)
        _move_down(heap, places, last, places[heap[at].entity])


@njit(**_OPTIONS)
def _push(stack, count, which, item):
    stack[count[which]] = item
    count[which] += 1


@njit(**_OPTIONS)
def _pop(stack, count, which):
    count[which] -= 1
    return stack[count[which]]


# Processors.


@njit(**_OPTIONS)
def _set_speed(number, speed, s):
    """Run the op of stream *number* at *speed* from now on, unless it ends in this instant."""
    stream = s.streams[number]
    ended = stream.speed > 0.0 and s.places[number] == NONE
    if speed != stream.speed and not ended:
        now = s.clock[0]
        stream.left -= (now - stream.since) * stream.speed
        stream.since = now
        stream.speed = speed
        _schedule(s.heap, s.places, s.counts, number, now + max(0.0, stream.left) / speed)


@njit(**_OPTIONS)
def _share_gpu(rank, s):
    """Give each of n computations on the GPU of *rank* 1/n of the speed that collectives leave."""
    own = s.ranks[rank]
    number = own.head
    while number != NONE:
        _set_speed(number, own.free / own.tasks, s)
        number = s.streams[number].next


@njit(**_OPTIONS)
def _set_share(number, share, low, s):
    """Let the communication of stream *number* reserve a *share* of its GPU; 0: reserve it no longer."""
    rank = s.streams[number].rank
    own = s.ranks[rank]
    s.streams[number].share = share
    own.shares += 1 if share > 0.0 else -1
    own.free = 1.0 - share
    if own.shares > (share > 0.0):  # others have a share too
        own.free = 1.0
        for other in range(low.ranks[rank].first_stream, low.ranks[rank + 1].first_stream):
            own.free *= 1.0 - s.streams[other].share
    _share_gpu(rank, s)


@njit(**_OPTIONS)
def _share_host(host, s):
    """Give the computations on a *host* processor equal speeds; each counts as often as its multiplicity."""
    number = s.hosts[host].head
    while number != NONE:
        _set_speed(number, 1.0 / s.hosts[host].weight, s)
        number = s.streams[number].next


@njit(**_OPTIONS)
def _begin_task(number, op, kind, seconds, low, s):
    """Begin *op* of stream *number*, which takes *seconds* at speed 1. *kind*: GPU, HOST, SERVER or DELAY."""
    stream = s.streams[number]
    stream.since = s.clock[0]
    stream.task, stream.left, stream.speed = kind, seconds, 0.0
    _begin_op(number, op, NONE, low, s)
    if kind == GPU:
        rank = s.ranks[stream.rank]
        stream.next, rank.head = rank.head, number
        rank.tasks += 1
        _share_gpu(stream.rank, s)
    elif kind == HOST:
        place = low.ranks[stream.rank].host
        host = s.hosts[place]
        stream.next, host.head = host.head, number
        host.weight += low.ranks[stream.rank].multiplicity
        _share_host(place, s)
    else:
        _set_speed(number, 1.0, s)


@njit(**_OPTIONS)
def _end_task(number, op, low, s):
    """End the use of a processor or server by *op* of stream *number*."""
    stream = s.streams[number]
    kind, stream.task = stream.task, NONE
    if kind == GPU:
        rank = s.ranks[stream.rank]
        rank.head = _without(number, rank.head, s)
        rank.tasks -= 1
        _share_gpu(stream.rank, s)
    elif kind == HOST:
        place = low.ranks[stream.rank].host
        host = s.hosts[place]
        host.head = _without(number, host.head, s)
        host.weight = host.weight - low.ranks[stream.rank].multiplicity if host.head != NONE else 0.0
        _share_host(place, s)
    elif kind == SERVER and not low.ops[op].holds:
        _release(low.ops[op].server, s)


@njit(**_OPTIONS)
def _without(number, head, s):
    """Remove stream *number* from the list that begins with stream *head*; return the new head."""
    if head == number:
        return s.streams[number].next
    before = head
    while s.streams[before].next != number:
        before = s.streams[before].next
    s.streams[before].next = s.streams[number].next
    return head


@njit(**_OPTIONS)
def _release(number, s):
    """Let server *number* choose its next op."""
    server = s.servers[number]
    server.busy, server.free_since = NONE, s.clock[0]
    _choose_soon(s)


@njit(**_OPTIONS)
def _choose_soon(s):
    """Let servers choose when this instant is over; `ONE_INSTANT` allows for rounding."""
    s.clock[1] = min(s.clock[1], s.clock[0] * (1.0 + ONE_INSTANT))


@njit(**_OPTIONS)
def _serve(low, s):
    """Begin the next op of every idle server: the first by priority, time of arrival, rank and op."""
    s.counts[SERVERS] = 0
    for place in range(len(s.servers)):
        server = s.servers[place]
        if server.busy != NONE or server.head == NONE:
            continue
        best, number = server.head, s.streams[server.head].next
        while number != NONE:
            if _precedes(number, best, low, s):
                best = number
            number = s.streams[number].next
        server.head = _without(best, server.head, s)
        server.busy = best
        op, ready = s.streams[best].head, s.streams[best].since
        begin = max(ready, server.free_since)
        _begin_task(best, op, SERVER, max(0.0, _seconds(best, op, low, s) - (s.clock[0] - begin)), low, s)
        s.heads[best].begin = begin


@njit(**_OPTIONS)
def _precedes(number, other, low, s):
    one, two = s.streams[number], s.streams[other]
    if low.ops[one.head].priority != low.ops[two.head].priority:
        return low.ops[one.head].priority < low.ops[two.head].priority
    if abs(one.since - two.since) > ONE_INSTANT * s.clock[0]:
        return one.since < two.since
    if one.rank != two.rank:
        return one.rank < two.rank
    return low.ops[one.head].index < low.ops[two.head].index


@njit(**_OPTIONS)
def _seconds(number, op, low, s):
    rank = low.ranks[s.streams[number].rank]
    step = _step(number, low, s) if rank.duration_step else 0
    return low.durations[rank.first_duration + rank.abreast * (step * rank.duration_step + low.ops[op].duration)]


# Network.


@njit(**_OPTIONS)
def _mark_dirty(flow, s):
    """Solve the rate of *flow* at the end of the instant."""
    if not s.flows[flow].dirty:
        s.flows[flow].dirty = 1
        _push(s.dirty, s.counts, DIRTY, flow)


@njit(**_OPTIONS)
def _add_transfer(number, nbytes, communication, low, s):
    """Begin to move *nbytes* over flow *number* for a *communication*; NONE: for traffic from outside."""
    place, flow = _pop(s.free_transfers, s.counts, FREE_TRANSFERS), s.flows[number]
    transfer = s.transfers[place]
    transfer.flow, transfer.communication = number, communication
    transfer.left, transfer.rate, transfer.since = nbytes, 0.0, s.clock[0]
    transfer.next, transfer.previous = flow.head, NONE
    if flow.head != NONE:
        s.transfers[flow.head].previous = place
    flow.head = place
    flow.active += 1
    if flow.active == 1:
        _join_rows(number, low, s)
    _mark_dirty(number, s)


@njit(**_OPTIONS)
def _remove_transfer(place, low, s):
    """Remove the transfer at *place*, which has ended."""
    transfer = s.transfers[place]
    number = transfer.flow
    flow = s.flows[number]
    _account_transfer(transfer, low, s)
    if transfer.previous != NONE:
        s.transfers[transfer.previous].next = transfer.next
    else:
        flow.head = transfer.next
    if transfer.next != NONE:
        s.transfers[transfer.next].previous = transfer.previous
    flow.active -= 1
    if flow.active:
        _mark_dirty(number, s)
    else:
        _leave_rows(number, low, s)
    _push(s.free_transfers, s.counts, FREE_TRANSFERS, place)


@njit(**_OPTIONS)
def _join_rows(flow, low, s):
    """Add *flow*, whose first transfer has begun, to its rows."""
    s.flows[flow].shared = NONE
    for entry in range(low.flows[flow].first_entry, low.flows[flow + 1].first_entry):
        row = s.rows[low.entries[entry].row]
        s.entries[entry].next, s.entries[entry].previous = row.head, NONE
        if row.head != NONE:
            s.entries[row.head].previous = entry
            if row.active == 1:
                _share(row.head, low, s)
            _share(entry, low, s)
        row.head = entry
        row.active += 1
    _find_alone(flow, low, s)


@njit(**_OPTIONS)
def _leave_rows(flow, low, s):
    """Remove *flow*, which has no transfer left, from its rows. Flows that they limit get new rates."""
    for entry in range(low.flows[flow].first_entry, low.flows[flow + 1].first_entry):
        row, own = s.rows[low.entries[entry].row], s.entries[entry]
        if own.previous != NONE:
            s.entries[own.previous].next = own.next
        else:
            row.head = own.next
        if own.next != NONE:
            s.entries[own.next].previous = own.previous
        row.active -= 1
        if row.active == 1:
            _unshare(row.head, low, s)
        other = row.head
        while other != NONE:
            if s.flows[low.entries[other].flow].limit == low.entries[entry].row:
                _mark_dirty(low.entries[other].flow, s)
            other = s.entries[other].next


@njit(**_OPTIONS)
def _share(entry, low, s):
    """Add *entry* to the list of those of its flow whose row other flows use too."""
    own, flow = s.entries[entry], s.flows[low.entries[entry].flow]
    own.shared_next, own.shared_previous = flow.shared, NONE
    if flow.shared != NONE:
        s.entries[flow.shared].shared_previous = entry
    flow.shared = entry


@njit(**_OPTIONS)
def _unshare(entry, low, s):
    """Remove *entry* from that list."""
    own = s.entries[entry]
    if own.shared_previous != NONE:
        s.entries[own.shared_previous].shared_next = own.shared_next
    else:
        s.flows[low.entries[entry].flow].shared = own.shared_next
    if own.shared_next != NONE:
        s.entries[own.shared_next].shared_previous = own.shared_previous


@njit(**_OPTIONS)
def _find_alone(flow, low, s):
    """Find the rate of one transfer of *flow* that fills one of its rows if nothing else uses them."""
    alone = inf
    for entry in range(low.flows[flow].first_entry, low.flows[flow + 1].first_entry):
        alone = min(alone, s.rows[low.entries[entry].row].capacity / low.entries[entry].weight)
    s.flows[flow].alone = alone


@njit(**_OPTIONS)
def _record(flow, begin, rate, low, s):
    """Record that a transfer of *flow* has moved at *rate* from *begin* until now."""
    if low.options[0].record and s.clock[0] > begin and rate > 0.0:
        interval = s.intervals[s.counts[INTERVALS]]
        interval.flow, interval.begin, interval.end, interval.rate = flow, begin, s.clock[0], rate
        s.counts[INTERVALS] += 1


@njit(**_OPTIONS)
def _account_transfer(transfer, low, s):
    """Record the rate of *transfer* since it last changed, and count the bytes of traffic from outside."""
    _record(transfer.flow, transfer.since, transfer.rate, low, s)
    if transfer.communication == NONE:
        s.flows[transfer.flow].nbytes += transfer.rate * (s.clock[0] - transfer.since)


@njit(**_OPTIONS)
def _apply_rate(flow, rate, low, s):
    """Set the rate of all transfers of *flow*."""
    now = s.clock[0]
    s.flows[flow].rate = rate
    place = s.flows[flow].head
    while place != NONE:
        transfer = s.transfers[place]
        if rate != transfer.rate:
            if now > transfer.since and transfer.rate > 0.0:
                _account_transfer(transfer, low, s)
                transfer.left = max(0.0, transfer.left - transfer.rate * (now - transfer.since))
            transfer.since, transfer.rate = now, rate
            if rate > 0.0 and transfer.left < inf:
                _schedule(s.heap, s.places, s.counts, _entity(TRANSFER, place, s), now + transfer.left / rate)
            else:
                _cancel(s.heap, s.places, s.counts, _entity(TRANSFER, place, s))
        place = transfer.next


@njit(**_OPTIONS)
def _push_level(level, item, levels, size):
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if levels[parent].level <= level:
            break
        levels[at].level, levels[at].item = levels[parent].level, levels[parent].item
        at = parent
    levels[at].level, levels[at].item = level, item


@njit(**_OPTIONS)
def _remove_level(levels, size):
    """Remove the lowest level from a heap of *size* levels."""
    level, item = levels[size - 1].level, levels[size - 1].item
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size - 1:
            break
        if child + 1 < size - 1 and levels[child + 1].level < levels[child].level:
            child += 1
        if level <= levels[child].level:
            break
        levels[at].level, levels[at].item = levels[child].level, levels[child].item
        at = child
    levels[at].level, levels[at].item = level, item


@njit(**_OPTIONS)
def _level(row, low, s):
    """(the rate at which *row* is full, how many of its flows are not fixed). Flows not fixed have a rate below 0."""
    used, weight, unfixed = 0.0, 0.0, 0
    entry = s.rows[row].head
    while entry != NONE:
        flow = s.flows[low.entries[entry].flow]
        amount = low.entries[entry].weight * flow.active
        if flow.rate < 0.0:
            weight += amount
            unfixed += 1
        else:
            used += amount * flow.rate
        entry = s.entries[entry].next
    return (max(0.0, s.rows[row].capacity - used) / weight if unfixed else inf), unfixed


@njit(**_OPTIONS)
def _solve_rates(low, s):
    """Solve the rates of the flows whose transfers, rows or limits changed in this instant.

    Rates are max-min fair if each flow has its bound, or a limit: a full row on which no other flow is faster. So only
    flows that lose this are solved, beside flows that keep their rate. Flows that turn out to take an unfair share, or
    to have lost their limit, are added, and all are solved again. Their number at least doubles each time, so that the
    whole takes no longer than twice the solution of all flows that share rows with them, directly or through others.
    """
    s.counts[STAMP] += 1
    flows, rows, known = 0, 0, 0
    for at in range(s.counts[DIRTY]):
        number = s.dirty[at]
        flow = s.flows[number]
        flow.dirty = 0
        if flow.active and flow.shared == NONE:
            flow.limit = NONE
            _apply_rate(number, _bound(number, low, s), low, s)
        elif flow.active:
            flows = _include(number, flows, s)
    s.counts[DIRTY] = 0
    while known < flows:
        rows = _find_rows(known, flows, rows, low, s)
        _fill(flows, rows, low, s)
        known, flows = flows, _find_unfair(flows, rows, low, s)
    for place in range(flows):
        _apply_rate(s.solved[place], s.flows[s.solved[place]].rate, low, s)


@njit(**_OPTIONS)
def _bound(number, low, s):
    """The bound of the protocol, or the rate that fills a row of flow *number* without other flows."""
    return min(low.flows[number].bound, s.flows[number].alone / s.flows[number].active)


@njit(**_OPTIONS)
def _include(number, flows, s):
    """Add flow *number* to the *flows* that are solved; return how many there are."""
    s.flows[number].seen = s.counts[STAMP]
    s.solved[flows] = number
    return flows + 1


@njit(**_OPTIONS)
def _find_rows(first, last, rows, low, s):
    """Add to the *rows* that are filled those of the flows *first* to *last*; return how many there are."""
    stamp = s.counts[STAMP]
    for place in range(first, last):
        entry = s.flows[s.solved[place]].shared
        while entry != NONE:
            number = low.entries[entry].row
            if s.rows[number].seen != stamp:
                s.rows[number].seen = stamp
                s.filled[rows] = number
                rows += 1
            entry = s.entries[entry].shared_next
    return rows


@njit(**_OPTIONS)
def _fill(flows, rows, low, s):
    """Find the max-min fair rates of *flows* by progressive filling of *rows*; other flows keep their rates.

    The row or the bound with the lowest level is full first, and its flows get this rate. A level can only rise when
    flows are fixed on other rows. So a level of the heap that is out of date is too low, and is pushed again.
    """
    for place in range(flows):
        s.flows[s.solved[place]].rate = -1.0
        _push_level(_bound(s.solved[place], low, s), -1 - s.solved[place], s.levels, place)
    size = flows
    for place in range(rows):
        row = s.filled[place]
        _push_level(_level(row, low, s)[0], row, s.levels, size)
        size += 1
    while size:
        level, item = s.levels[0].level, s.levels[0].item
        _remove_level(s.levels, size)
        size -= 1
        if item < 0:
            flow = s.flows[-1 - item]
            if flow.rate < 0.0:
                flow.rate, flow.limit = level, NONE
            continue
        current, unfixed = _level(item, low, s)
        if unfixed and current > level:
            _push_level(current, item, s.levels, size)
            size += 1
        elif unfixed:
            entry = s.rows[item].head
            while entry != NONE:
                flow = s.flows[low.entries[entry].flow]
                if flow.rate < 0.0:
                    flow.rate, flow.limit = current, item
                entry = s.entries[entry].next


@njit(**_OPTIONS)
def _find_unfair(flows, rows, low, s):
    """Add to the *flows* that are solved others on their *rows* with an unfair rate; return how many there are.

    Such a flow takes more of a row than a flow that the row limits, or the row was its limit and no longer is. If there
    is one, neighbours are added until there are twice as many flows as before.
    """
    stamp, found = s.counts[STAMP], flows
    for place in range(rows):
        number = s.filled[place]
        used, fastest, limited, others = 0.0, 0.0, inf, False
        entry = s.rows[number].head
        while entry != NONE:
            flow = s.flows[low.entries[entry].flow]
            used += low.entries[entry].weight * flow.active * flow.rate
            fastest = max(fastest, flow.rate)
            if flow.seen != stamp:
                others = True
            elif flow.limit == number:
                limited = min(limited, flow.rate)
            entry = s.entries[entry].next
        if not others:
            continue
        limits = used >= s.rows[number].capacity * (1.0 - ROUNDING)
        entry = s.rows[number].head
        while entry != NONE:
            flow = s.flows[low.entries[entry].flow]
            if flow.seen != stamp:
                lost = flow.limit == number and not (limits and flow.rate >= fastest * (1.0 - ROUNDING))
                if lost or flow.rate > limited * (1.0 + ROUNDING):
                    found = _include(low.entries[entry].flow, found, s)
            entry = s.entries[entry].next
    return _widen(found, 2 * flows, low, s) if found > flows else found


@njit(**_OPTIONS)
def _widen(flows, enough, low, s):
    """Add to the *flows* that are solved those on the same rows, until they are *enough*; return how many there are."""
    place = 0
    while place < flows < enough:
        entry = s.flows[s.solved[place]].shared
        while entry != NONE and flows < enough:
            other = s.rows[low.entries[entry].row].head
            while other != NONE:
                if s.flows[low.entries[other].flow].seen != s.counts[STAMP]:
                    flows = _include(low.entries[other].flow, flows, s)
                other = s.entries[other].next
            entry = s.entries[entry].shared_next
        place += 1
    return flows


@njit(**_OPTIONS)
def _apply_change(low, s):
    """Apply the next change of the network from outside."""
    change = low.changes[s.counts[CHANGES]]
    s.counts[CHANGES] += 1
    if change.kind == CAPACITY:
        s.rows[change.target].capacity = change.value
        entry = s.rows[change.target].head
        while entry != NONE:
            _find_alone(low.entries[entry].flow, low, s)
            _mark_dirty(low.entries[entry].flow, s)
            entry = s.entries[entry].next
    elif change.kind == BACKGROUND_BEGIN:
        _add_transfer(change.target, inf, NONE, low, s)
    else:
        place = s.flows[change.target].head
        _remove_transfer(place, low, s)


# Communications.


@njit(**_OPTIONS)
def _start(place, low, s):
    """Begin the communication at *place* and reserve its share of the GPUs of the ranks that have arrived."""
    communication = s.communications[place]
    plan = communication.plan
    communication.number = s.counts[COMMUNICATIONS]
    s.counts[COMMUNICATIONS] += 1
    s.plan_count[plan] += 1
    communication.phase, communication.waited = low.plans[plan].first_phase, 0
    number = communication.head
    while number != NONE:
        _begin_op(number, s.streams[number].head, communication.number, low, s)
        if low.plans[plan].sms > 0.0:
            _set_share(number, low.plans[plan].sms, low, s)
        number = s.streams[number].next
    _push(s.starting, s.counts, STARTING, place)


@njit(**_OPTIONS)
def _pending(request, key, step, s):
    """The place of the communication that an op with *key* joins; a new one for the first of its partners."""
    place = s.channels[request.channel]
    while place != NONE:
        communication = s.communications[place]
        if communication.key == key and communication.step == step and communication.plan == request.plan:
            return place
        place = communication.next
    place = _pop(s.free_communications, s.counts, FREE_COMMUNICATIONS)
    communication = s.communications[place]
    communication.next, s.channels[request.channel] = s.channels[request.channel], place
    communication.key, communication.step, communication.plan = key, step, request.plan
    communication.arrived, communication.head, communication.receiver = 0, NONE, NONE
    communication.buffered = communication.sent = 0
    return place


@njit(**_OPTIONS)
def _remove_pending(place, channel, s):
    if s.channels[channel] == place:
        s.channels[channel] = s.communications[place].next
    else:
        before = s.channels[channel]
        while s.communications[before].next != place:
            before = s.communications[before].next
        s.communications[before].next = s.communications[place].next


@njit(**_OPTIONS)
def _arrive(number, op, low, s):
    """Let stream *number* arrive at the communication of its *op*. The last arrival begins the communication.

    A buffered send begins it at once and ends. The receiver arrives before or after the delivery.
    """
    request = low.requests[low.ranks[s.streams[number].rank].first_request + low.ops[op].request]
    place = _pending(request, low.ops[op].key, _step(number, low, s), s)
    communication, stream = s.communications[place], s.streams[number]
    communication.arrived += 1
    if low.ops[op].kind == RECEIVE:
        communication.receiver = number
    last = communication.arrived == request.partners
    if last:
        _remove_pending(place, request.channel, s)
    if low.ops[op].kind == BUFFERED_SEND:
        communication.buffered = 1
        _start(place, low, s)
    elif not communication.buffered:
        stream.next, communication.head = communication.head, number
        if last:
            _start(place, low, s)
        return
    _begin_op(number, op, communication.number, low, s)
    if low.ops[op].kind == BUFFERED_SEND:
        _push(s.ending, s.counts, ENDING, number)
        return
    stream.next, communication.head = NONE, number
    if communication.sent:
        at = s.places[_entity(LATENCY, place, s)]
        _deliver(place, s.clock[0] if at == NONE else s.heap[at].time, low, s)


@njit(**_OPTIONS)
def _begin_phase(place, low, s):
    """Begin the next phase of a communication, or its transfers after the latency, or complete it after the last phase.

    Return False if there is no room for its transfers: then it must be called again.
    """
    communication = s.communications[place]
    if communication.phase == low.plans[communication.plan + 1].first_phase:
        communication.sent = 1
        _deliver(place, s.clock[0] + low.plans[communication.plan].delivery, low, s)
        return True
    phase = low.phases[communication.phase]
    first, last = phase.first_flow, low.phases[communication.phase + 1].first_flow
    if not communication.waited:
        communication.since = s.clock[0]
        communication.waited = 1
        if phase.latency > 0.0:
            _schedule(s.heap, s.places, s.counts, _entity(LATENCY, place, s), s.clock[0] + phase.latency)
            return True
    if phase.contended and phase.nbytes > 0.0 and last > first:
        if s.counts[FREE_TRANSFERS] < last - first:
            return False
        communication.open = last - first
        for at in range(first, last):
            s.flows[low.phase_flows[at]].nbytes += phase.nbytes
            _add_transfer(low.phase_flows[at], phase.nbytes, place, low, s)
        return True
    if not phase.contended:
        for at in range(first, last):
            s.flows[low.phase_flows[at]].nbytes += phase.nbytes
            begin = communication.since
            _record(low.phase_flows[at], begin, phase.nbytes / max(s.clock[0] - begin, 1e-300), low, s)
    _next_phase(place, s)
    return True


@njit(**_OPTIONS)
def _next_phase(place, s):
    s.communications[place].phase += 1
    s.communications[place].waited = 0
    _push(s.starting, s.counts, STARTING, place)


@njit(**_OPTIONS)
def _deliver(place, time, low, s):
    """End the ops of a communication whose bytes are sent. The receive of a message ends when they arrive, at *time*.

    Receives of a stream end in order: an earlier arrival waits for the receive before it. While the bytes are on their
    way the receiver posts its next receive, unless the send is buffered and waits for no receive.
    """
    communication, now = s.communications[place], s.clock[0]
    number, receiver = communication.head, communication.receiver
    while number != NONE:
        if number != receiver:
            _push(s.ending, s.counts, ENDING, number)
        number = s.streams[number].next
    if receiver != NONE:
        stream = s.streams[receiver]
        time = stream.since = max(time, stream.since)
        if time > now and not communication.buffered:
            _post_next(receiver, low, s)
    if time > now:
        _schedule(s.heap, s.places, s.counts, _entity(LATENCY, place, s), time)
    else:
        _cancel(s.heap, s.places, s.counts, _entity(LATENCY, place, s))
        _complete(place, s)


@njit(**_OPTIONS)
def _post_next(number, low, s):
    """Let the op after the receive at the head of stream *number* take the head, if it is a receive too."""
    op = s.streams[number].head
    following = op + 1
    if low.ops[following].kind == END and _step(number, low, s) + 1 < low.options[0].steps:
        following = low.queues[_queue(number, low, s)].first
    if low.ops[following].kind == RECEIVE and s.streams[number].posted < MOST_POSTED:
        _leave_head(number, op, low, s)


@njit(**_OPTIONS)
def _complete(place, s):
    """End the receive of a message, which has arrived; ops of other communications have ended when it was sent."""
    communication = s.communications[place]
    if communication.buffered and communication.receiver == NONE:
        communication.buffered = 2
        return
    if communication.receiver != NONE:
        _push(s.ending, s.counts, ENDING, communication.receiver)
    _push(s.free_communications, s.counts, FREE_COMMUNICATIONS, place)


# Totals, for runs too large to keep every span.


@njit(**_OPTIONS)
def _begin_op(number, op, communication, low, s):
    """Account for the begin of *op* of stream *number*: its span, its part of the breakdown, and what it allocates."""
    rank = s.streams[number].rank
    if low.ranks[rank].first_span != NONE:
        s.heads[number].begin, s.heads[number].communication = s.clock[0], communication
    if low.options[0].accumulate:
        _account_time(rank, s)
        s.under_way[rank, low.ops[op].part] += 1
        _change_memory(low.ranks[rank], low.ops[op].first_allocation, low.ops[op].first_free, 1.0, low, s)


@njit(**_OPTIONS)
def _end_totals(rank, op, low, s):
    """Account for the end of *op* of *rank*: its part of the breakdown, and what it frees."""
    if low.options[0].accumulate:
        _account_time(rank, s)
        s.under_way[rank, low.ops[op].part] -= 1
        _change_memory(low.ranks[rank], low.ops[op].first_free, low.ops[op + 1].first_allocation, -1.0, low, s)


@njit(**_OPTIONS)
def _account_time(rank, s):
    """Add the time since the last change to the first part of the breakdown with an op of *rank* under way."""
    own = s.ranks[rank]
    if s.clock[0] > own.since:
        part = 0
        while not s.under_way[rank, part]:
            part += 1
        s.seconds[rank, part] += s.clock[0] - own.since
        own.since = s.clock[0]


@njit(**_OPTIONS)
def _change_memory(rank, first, last, sign, low, s):
    """Allocate (*sign* 1) or free (-1) the amounts *first* to *last* in the memory of *rank*."""
    for at in range(first, last):
        amount = low.amounts[at]
        number = rank.host_pool if amount.pool else rank.gpu_pool
        nbytes = sign * amount.nbytes * (rank.multiplicity if amount.pool else 1.0)
        pool = s.pools[number]
        s.held[number, amount.category] += nbytes
        pool.total += nbytes
        if pool.total > pool.peak and (at + 1 == last or low.amounts[at + 1].pool != amount.pool):
            pool.peak, pool.time = pool.total, s.clock[0]
            for category in range(s.held.shape[1]):
                s.peak_held[number, category] = s.held[number, category]


# Streams.


@njit(**_OPTIONS)
def _queue(number, low, s):
    """The queue of stream *number*."""
    rank = low.ranks[s.streams[number].rank]
    return low.programs[rank.program].first_queue + number - rank.first_stream


@njit(**_OPTIONS)
def _length(queue, low):
    """The number of ops of *queue*; the last record of a queue marks its end."""
    return low.queues[queue + 1].first - low.queues[queue].first - 1


@njit(**_OPTIONS)
def _step(number, low, s):
    """The training step of the op at the head of stream *number*."""
    if low.options[0].steps == 1:
        return 0
    return (s.streams[number].done + s.streams[number].posted) // _length(_queue(number, low, s), low)


@njit(**_OPTIONS)
def _first_begun(number, low, s):
    """(op, step) of the first op of stream *number* that has not ended."""
    queue = _queue(number, low, s)
    step = s.streams[number].done // _length(queue, low)
    return low.queues[queue].first + s.streams[number].done - step * _length(queue, low), step


@njit(**_OPTIONS)
def _span(rank, op, step, low):
    """The index of the span of *op* in *step*."""
    return rank.first_span + step * low.programs[rank.program].ops + low.ops[op].index


@njit(**_OPTIONS)
def _leave_head(number, op, low, s):
    """Advance stream *number* past *op*, which is at its head, and write the begin of its span."""
    stream = s.streams[number]
    rank = low.ranks[stream.rank]
    if rank.first_span != NONE:
        span, head = _span(rank, op, _step(number, low, s), low), s.heads[number]
        s.spans[READY, span], s.spans[BEGIN, span] = head.ready, head.begin
        s.span_communication[span] = head.communication
    stream.posted += 1
    stream.head += 1
    _push(s.advancing, s.counts, ADVANCING, number)


@njit(**_OPTIONS)
def _end(number, low, s):
    """End the first op of stream *number* that has not ended: write its end, release resources, advance streams."""
    stream = s.streams[number]
    # `_wake` and `_end_totals` need these
    _prefetch(s.streams, stream.waiting)
    _prefetch(s.pools, stream.rank)
    _prefetch(s.ranks, stream.rank)
    rank, op, step = low.ranks[stream.rank], stream.head, 0
    if stream.posted or low.options[0].steps > 1:
        op, step = _first_begun(number, low, s)
    if stream.task != NONE:
        _end_task(number, op, low, s)
    elif stream.share > 0.0:
        _set_share(number, 0.0, low, s)
    if not stream.posted:
        _leave_head(number, op, low, s)
    if rank.first_span != NONE:
        s.spans[END_OF_SPAN, _span(rank, op, step, low)] = s.clock[0]
    if low.ops[op].server != NONE and low.ops[op].kind != SERVER:
        _release(low.ops[op].server, s)
    stream.done += 1
    stream.posted -= 1
    _end_totals(stream.rank, op, low, s)
    s.counts[ENDED] += 1
    s.counts[FIRST_STEP] -= step == 0
    if low.ops[op].watched:
        _wake(number, s)


@njit(**_OPTIONS)
def _wake(number, s):
    """Advance the streams that wait for the ops of stream *number* that are done."""
    waiting = s.streams[number].waiting
    s.streams[number].waiting = NONE
    while waiting != NONE:
        stream = s.streams[waiting]
        other = stream.next
        if s.streams[number].done >= stream.awaited:
            stream.awaits = NONE
            _push(s.advancing, s.counts, ADVANCING, waiting)
        else:
            stream.next, s.streams[number].waiting = s.streams[number].waiting, waiting
        waiting = other


@njit(**_OPTIONS)
def _must_wait(number, op, low, s):
    """Return whether *op* of stream *number* waits for an op of another stream, which then wakes it."""
    first, last = low.ops[op].first_dependency, low.ops[op + 1].first_dependency
    if first == last:
        return False
    stream, step = s.streams[number], _step(number, low, s)
    rank = low.ranks[stream.rank]
    queues = low.programs[rank.program].first_queue
    for at in range(first, last):
        queue = low.dependencies[at].queue
        other = rank.first_stream + queue
        needed = low.dependencies[at].position + 1
        if step:
            needed += step * _length(queues + queue, low)
        if s.streams[other].done < needed:
            stream.awaits, stream.awaited = other, needed
            stream.next, s.streams[other].waiting = s.streams[other].waiting, number
            return True
    return False


@njit(**_OPTIONS)
def _begin_next(number, low, s):
    """Look at the next op of stream *number*: it waits for another op, arrives at its communication, or begins."""
    stream = s.streams[number]
    if low.ops[stream.head].kind == END:
        if _step(number, low, s) == low.options[0].steps or low.options[0].steps == 1:
            return
        stream.head = low.queues[_queue(number, low, s)].first
    op = stream.head
    if _must_wait(number, op, low, s):
        return
    if low.ranks[stream.rank].first_span != NONE:
        s.heads[number].ready = s.clock[0]
    kind = low.ops[op].kind
    if kind >= COMMUNICATION:
        _arrive(number, op, low, s)
    elif kind == SERVER:
        server = s.servers[low.ops[op].server]
        stream.since = s.clock[0]
        stream.next, server.head = server.head, number
        _choose_soon(s)
    else:
        seconds = _seconds(number, op, low, s)
        if seconds > 0.0:
            _begin_task(number, op, kind, seconds, low, s)
        else:
            _begin_op(number, op, NONE, low, s)
            _push(s.ending, s.counts, ENDING, number)


@njit(**_OPTIONS)
def _process_event(low, s):
    """Process the first event of the heap."""
    entity = s.heap[ROOT].entity
    if entity < len(s.streams):
        _prefetch(s.streams, entity)
    _cancel(s.heap, s.places, s.counts, entity)
    if entity < len(s.streams):
        _push(s.ending, s.counts, ENDING, entity)
        return
    kind, number = (entity - len(s.streams)) & 1, (entity - len(s.streams)) >> 1
    if kind == LATENCY and s.communications[number].sent:
        _complete(number, s)
    elif kind == LATENCY:
        _push(s.starting, s.counts, STARTING, number)
    else:
        place = s.transfers[number].communication
        _remove_transfer(number, low, s)
        s.communications[place].open -= 1
        if not s.communications[place].open:
            _next_phase(place, s)


@njit(**_OPTIONS)
def _room_for_intervals(needed, low, s):
    return not low.options[0].record or len(s.intervals) - s.counts[INTERVALS] >= needed


def _advance(low, s, budget, widest):  # noqa: PLR0911, PLR0912  # one return for each status
    """Run until *budget* events have been processed, or for another reason; return it as a status.

    *widest*: the most flows that a phase has.
    """
    count, heap = s.counts, s.heap
    while True:
        while count[ENDING] or count[ADVANCING] or count[STARTING] or count[SERVERS]:
            if count[ENDING]:
                _end(_pop(s.ending, count, ENDING), low, s)
            elif count[ADVANCING]:
                if not count[FREE_COMMUNICATIONS]:
                    return MORE_COMMUNICATIONS
                _begin_next(_pop(s.advancing, count, ADVANCING), low, s)
            elif count[STARTING]:
                if not _room_for_intervals(widest, low, s):
                    return MORE_INTERVALS
                place = _pop(s.starting, count, STARTING)
                if not _begin_phase(place, low, s):
                    _push(s.starting, count, STARTING, place)
                    return MORE_TRANSFERS
            else:
                _serve(low, s)
        event = heap[ROOT].time
        change = low.changes[count[CHANGES]].time if count[CHANGES] < len(low.changes) else inf
        if not _room_for_intervals(2 * len(s.transfers), low, s):
            return MORE_INTERVALS
        if count[DIRTY] and min(event, change) > s.clock[0]:
            _solve_rates(low, s)
            continue
        if count[ENDED] == low.options[0].ops:
            return DONE
        if count[FIRST_STEP] == 0:
            count[FIRST_STEP] = NONE
            return FIRST_STEP_ENDED
        if min(event, change, s.clock[1]) == inf:
            return DEADLOCK
        if budget <= 0:
            return CONTINUE
        s.clock[0] = min(event, change, s.clock[1])
        if s.clock[1] <= s.clock[0]:
            s.clock[1] = inf
            count[SERVERS] = 1
        while count[CHANGES] < len(low.changes) and low.changes[count[CHANGES]].time <= s.clock[0]:
            if not count[FREE_TRANSFERS]:
                return MORE_TRANSFERS
            _apply_change(low, s)
        while heap[ROOT].time <= s.clock[0]:
            _process_event(low, s)
            budget -= 1


def _types(kind: Any, dtypes: dict[str, Any]) -> types.NamedTuple:
    return types.NamedTuple(
        [
            types.Array(numba.from_dtype(np.dtype(dtypes[name])), 1 + (name in TWO_DIMENSIONS), "C")
            for name in kind._fields
        ],
        kind,
    )


SIGNATURE = types.int64(_types(Lowered, LOWERED_TYPES), _types(State, STATE_TYPES), types.int64, types.int64)

COMPILE_SECONDS = 20
"""About how long that takes, s, on one core of an Intel Xeon of 2021."""

advance = compiled("the event loop", COMPILE_SECONDS, SIGNATURE, nogil=True, error_model="numpy", _nrt=False)(_advance)
