"""The arrays that the compiled engine works on: a lowered schedule, which does not change, and the state of its run.

`simulator.engine.lowering` makes them, `simulator.engine.compiled` interprets them. Structure is stored once for each
program and shared by the ranks that run it; only durations, requests and state are by rank.

Indices: a *rank* is one of those simulated, an *op* one of all programs together, a *stream* one of a simulated rank, a
*queue* a stream of a program. Arrays of records; a field called "first_x" is the index of the first x of the item, and
the next record's is one past its last, so that these arrays have one record more than there are items. Times are in
seconds, sizes in bytes, rates in bytes/s.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

GPU, HOST, DELAY, SERVER, COMMUNICATION, RECEIVE, BUFFERED_SEND = range(7)
"""Kinds of op: a computation on the GPU of its rank, on a host, a timer, a computation at a server, and so on."""

NONE = -1

CAPACITY, BACKGROUND_BEGIN, BACKGROUND_END = range(3)
"""Kinds of change of the network from outside."""


def _record(integers: str, floats: str = "") -> np.dtype[Any]:
    """A record of int32 and float64 fields of these names; int32, since the state of large runs must fit caches."""
    fields: Any = [(name, np.int32) for name in integers.split()] + [(name, np.float64) for name in floats.split()]
    made: np.dtype[Any] = np.dtype(fields, align=True)
    return made


PROGRAM = _record("first_op first_queue")
QUEUE = _record("first")  # of queued ops
OP = np.dtype(
    [
        *((name, np.int64) for name in ("key", "first_dependency", "first_allocation", "first_free")),
        *((name, np.int32) for name in ("kind", "duration", "request", "watched", "server", "priority", "part", "_")),
    ]
)
"""*duration* and *request* are indices from the first of the rank; *watched*: an op of another stream waits for it;
*key* is equal for ops that meet; *part*: of the breakdown. Allocations end where frees begin."""
DEPENDENCY = np.dtype([("queue", np.int32), ("position", np.int32)])
"""The op at *position* of a queue of the same program, counted from the program's first."""
AMOUNT = np.dtype([("pool", np.int32), ("category", np.int32), ("nbytes", np.float64)])
"""Of memory; *pool* 0 is that of the rank's GPU, 1 that of its host."""
RANK = _record(
    "program first_stream first_request first_duration duration_step first_span host gpu_pool host_pool", "crowd"
)
"""*duration_step*: durations from one step to the next, 0 where all steps take the same. *first_span*: NONE where its
spans are not kept. *crowd*: ranks of its class that compute on its *host*."""
REQUEST = _record("channel plan partners")
"""*channel*: communications of a class between the same partners."""
PLAN = _record("first_phase", "sms delivery")
PHASE = _record("contended first_flow", "latency nbytes")
FLOW = _record("first_entry", "bound")
ENTRY = _record("row flow", "weight")
"""A flow takes *weight* bytes/s of a row for each byte/s of its rate."""
CHANGE = _record("kind target", "time value")
"""*target* is a row or a flow."""
OPTIONS = _record("steps accumulate record ops first_step_ops")
"""*accumulate*: totals of time and memory; *record*: rate intervals; *ops*: that must end in all and in step 0."""


class Lowered(NamedTuple):
    """What is to be run."""

    programs: Array
    queues: Array
    queued: Array  # ops in order of issue
    ops: Array
    dependencies: Array
    amounts: Array
    ranks: Array
    rank_of: Array  # by stream
    durations: Array
    requests: Array
    plans: Array
    phases: Array
    phase_flows: Array
    flows: Array
    entries: Array
    changes: Array  # ascending in time
    options: Array  # one record


STREAM_STATE = _record(
    "done issued awaits awaited task communication next host_next part",
    "ready begin left speed since share delivered",
)
"""*done*: ops ended, all steps together; *issued*: those that have left the head, receives whose bytes are on their way
among them; *delivered*: when the last of these arrives; *awaits*: the stream for which it waits until that has
*awaited* ops done; *task*: what its op occupies (`GPU`, `HOST`, `DELAY`, `SERVER`); *left* seconds at full *speed* at
the time *since*; *share* of the GPU that its communication takes; *next*: of those at one communication or server."""
RANK_STATE = _record("tasks part", "since")
HOST_STATE = _record("head", "weight")
SERVER_STATE = _record("busy head", "free_since")
COMMUNICATION_STATE = _record(
    "next key step plan arrived head receiver phase waited open number buffered sent", "since"
)
"""*head*: of the list of streams that have arrived; *receiver*: the one of them that receives a message; *waited*: the
latency of the *phase* is over; *open* transfers; *buffered*: 1 once sent without waiting for the receiver, 2 once
delivered; *sent*: all bytes are on their way."""
TRANSFER_STATE = _record("flow communication next previous", "left rate since")
FLOW_STATE = _record("head active dirty seen", "rate nbytes")
"""*active* transfers, a list that begins at *head*."""
ENTRY_STATE = _record("next previous")
ROW_STATE = _record("head active seen", "capacity")
"""*active* flows, a list of entries that begins at *head*."""
LEVEL = _record("item", "level")
EVENT = _record("entity", "time")
SPAN = _record("communication", "ready begin end")
INTERVAL = _record("flow", "begin end rate")
POOL_STATE = _record("", "total peak time")


class State(NamedTuple):
    """Where a run stands."""

    clock: Array  # two times: now, and when servers choose
    counts: Array  # by the indices below
    ending: Array  # stack of streams whose op has ended in this instant
    going: Array  # stack of streams to which their next op has come
    starting: Array  # stack of communications whose next phase begins
    streams: Array
    ranks: Array
    seconds: Array  # (ranks, parts)
    hosts: Array
    servers: Array
    channels: Array  # the first pending communication of each
    communications: Array
    free_communications: Array
    transfers: Array
    free_transfers: Array
    flows: Array
    dirty: Array  # flows whose rate must be solved
    entries: Array
    rows: Array
    component: Array
    component_rows: Array
    levels: Array
    heap: Array
    places: Array  # by entity its place in the heap
    spans: Array
    plan_count: Array
    intervals: Array
    pools: Array
    held: Array  # (pools, categories)
    peak_held: Array  # (pools, categories)


(
    HEAP,
    ENDING,
    GOING,
    STARTING,
    FREE_COMMUNICATIONS,
    FREE_TRANSFERS,
    COMMUNICATIONS,
    ENDED,
    DIRTY,
    CHANGES,
    STAMP,
    INTERVALS,
    SERVERS,
    FIRST_STEP,
    COUNTS,
) = range(15)
"""Indices of `State.counts`; the last is how many there are."""

LOWERED_TYPES = dict(
    zip(
        Lowered._fields,
        [
            *(PROGRAM, QUEUE, np.int32, OP, DEPENDENCY, AMOUNT, RANK, np.int32, np.float64, REQUEST, PLAN, PHASE),
            *(np.int64, FLOW, ENTRY, CHANGE, OPTIONS),
        ],
        strict=True,
    )
)
STATE_TYPES = dict(
    zip(
        State._fields,
        [
            *(np.float64, np.int64, np.int64, np.int64, np.int64, STREAM_STATE, RANK_STATE, np.float64, HOST_STATE),
            *(SERVER_STATE, np.int64, COMMUNICATION_STATE, np.int64, TRANSFER_STATE, np.int64, FLOW_STATE, np.int64),
            *(ENTRY_STATE, ROW_STATE, np.int64, np.int64, LEVEL, EVENT, np.int64, SPAN, np.int64, INTERVAL),
            *(POOL_STATE, np.float64, np.float64),
        ],
        strict=True,
    )
)
TWO_DIMENSIONS = {"seconds", "held", "peak_held"}
