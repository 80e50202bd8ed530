"""The arrays of the compiled engine: a lowered schedule, which is constant, and the state of its run.

`simulator.engine.compiled.lowering` makes the arrays, `simulator.engine.compiled.event_loop` interprets them. Structure
is stored once for each program and shared by its ranks. Only durations, requests and state are stored by rank.

Indices: *rank* counts the simulated ranks, *op* the ops of all programs together, *stream* the streams of all simulated
ranks. A *queue* is a stream of a program; ops are numbered queue after queue. All arrays have records. A field
"first_x" is the index of the first x of an item; that of the next item is one past its last x. So these arrays have one
record more than there are items. Times are in seconds, sizes in bytes, rates in bytes/s.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

GPU, HOST, DELAY, SERVER, COMMUNICATION, RECEIVE, BUFFERED_SEND, END = range(8)
"""Kinds of op: a computation on a GPU, a computation on a host, a timer, an op at a server, a communication, ...; and
the end of a queue."""

NONE = -1

CAPACITY, BACKGROUND_BEGIN, BACKGROUND_END = range(3)
"""Kinds of change of the network from outside the schedule."""


def _record(integers: str, floats: str = "") -> np.dtype[Any]:
    """A record type with int32 fields *integers* and float64 fields *floats*, names separated by spaces.

    Integers have 32 bits, so that the state of a large run fits the caches.
    """
    fields: Any = [(name, np.int32) for name in integers.split()] + [(name, np.float64) for name in floats.split()]
    made: np.dtype[Any] = np.dtype(fields, align=True)
    return made


PROGRAM = _record("ops first_queue")
"""*ops*: how many it has."""
QUEUE = _record("first")
"""The ops of a queue are in order of issue; one record more, of kind `END`, is its end."""
OP = _record(
    "index key first_dependency first_allocation first_free kind duration request watched server priority part holds"
)
"""*index*: in its program. *duration* and *request* are indices that count from the first of the rank. *watched*: 1 if
an op of another stream waits for it. *server*: the one that executes it or that it releases; *holds*: 1 if it holds it.
*key* is equal for ops that meet. *part*: its part of the breakdown. Allocations end where frees begin."""
DEPENDENCY = np.dtype([("queue", np.int32), ("position", np.int32)])
"""The op at *position* of a queue of the same program, counted from the program's first."""
AMOUNT = np.dtype([("pool", np.int32), ("category", np.int32), ("nbytes", np.float64)])
"""An amount of memory. *pool*: 0 for the memory of the rank's GPU, 1 for that of its host."""
RANK = _record(
    "program first_stream first_request first_duration duration_step abreast first_span host gpu_pool host_pool",
    "multiplicity",
)
"""*duration_step*: how many durations one step has; 0 if all steps take the same. *abreast*: it has every so-many-th of
the durations from its first on. *first_span*: NONE if its spans are not kept. *multiplicity*: how many ranks of its
class compute on its *host*."""
ABREAST = 8
"""So many ranks of a program at most have their durations side by side: they come to an op at about the same time, and
a line of the cache has the durations of one op for all."""
REQUEST = _record("channel plan partners")
"""*channel*: all communications between the same partners have the same one."""
PLAN = _record("first_phase", "sms delivery")
PHASE = _record("contended first_flow", "latency nbytes")
FLOW = _record("first_entry", "bound")
ENTRY = _record("row flow", "weight")
"""A flow takes *weight* bytes/s of a row for each byte/s of its rate."""
CHANGE = _record("kind target", "time value")
"""*target* is a row or a flow."""
OPTIONS = _record("steps accumulate record ops first_step_ops")
"""*accumulate*: 1 to accumulate totals of time and memory. *record*: 1 to record rate intervals. *ops* must end in all
steps together, *first_step_ops* in the first."""


class Lowered(NamedTuple):
    """The constant arrays. Most are by the item after which they are named."""

    programs: Array
    queues: Array
    ops: Array
    dependencies: Array
    amounts: Array
    ranks: Array
    durations: Array
    requests: Array
    plans: Array
    phases: Array
    phase_flows: Array
    flows: Array
    entries: Array
    changes: Array  # ascending in time
    options: Array  # one record


_STREAM_FIELDS: list[Any] = [
    *((name, np.int32) for name in ("rank", "head", "done", "awaits", "awaited", "waiting", "next")),
    *((name, np.int16) for name in ("task", "posted")),
    *((name, np.float64) for name in ("left", "speed", "since", "share")),
]
STREAM_STATE = np.dtype(_STREAM_FIELDS, align=True)
"""*head*: the op at its head. *done*: how many ops have ended, all steps together. *posted*: how many others have left
the head, receives whose bytes are on their way. *awaits*: the stream that it waits for, until *awaited* ops of that
stream are done. *waiting*: the first stream that waits for it. *task*: what its op occupies (`GPU`, `HOST`, `DELAY`,
`SERVER`). *left*: seconds of work at speed 1 that were left at the time *since*; *speed*: the present one. *since* is
also when its op arrived at a server, and when the last bytes of its receives arrive. *share*: the share of the GPU that
its communication reserves. *next*: the next stream in the list of a communication, a server or a processor, or of those
that wait for the same stream.

It is as large as a line of the cache, which an event of a large run fetches from memory."""
HEAD_STATE = _record("communication", "ready begin")
"""The span of the op at the head of a stream, as far as it is known; only for ranks that keep their spans."""
RANK_STATE = _record("tasks head shares", "free since")
"""*tasks*: how many computations its GPU has; *head* is the stream of the first. *shares*: how many communications
reserve a share of it; they leave the speed *free*. *since*: until then its time is accounted for."""
HOST_STATE = _record("head", "weight")
SERVER_STATE = _record("busy head", "free_since")
COMMUNICATION_STATE = _record(
    "next key step plan arrived head receiver phase waited open number buffered sent", "since"
)
"""*head*: the first in the list of streams that have arrived. *receiver*: the one of them that receives a message.
*waited*: 1 when the latency of the *phase* has begun. *open*: how many transfers have not ended. *buffered*: 1 once
sent without the receiver, 2 once delivered. *sent*: 1 when all bytes are on their way."""
TRANSFER_STATE = _record("flow communication next previous", "left rate since")
FLOW_STATE = _record("head active dirty seen shared limit", "rate nbytes alone")
"""*active*: how many transfers it has; *head* is the first in their list. *dirty*: 1 if its rate must be solved.
*shared*: the first in the list of its entries on rows that other flows use too. *limit*: the row that limits its rate;
NONE if its bound does. *alone*: the rate of one transfer that fills one of its rows if nothing else uses them."""
ENTRY_STATE = _record("next previous shared_next shared_previous")
"""The neighbours in the list of its row, and in the list of its flow."""
ROW_STATE = _record("head active seen", "capacity")
"""*active*: how many flows use it; *head* is the first in the list of their entries."""
LEVEL = _record("item", "level")
EVENT = _record("entity", "time")
ROOT = 3
"""The place of the first event in the heap, so that the four events under each begin at a multiple of four."""
INTERVAL = _record("flow", "begin end rate")
POOL_STATE = _record("", "total peak time")


class State(NamedTuple):
    """The state of a run."""

    clock: Array  # two times: the present, and when servers choose next
    counts: Array  # by the indices below
    ending: Array  # stack of streams; their op has ended in this instant
    advancing: Array  # stack of streams that go on to their next op
    starting: Array  # stack of communications that go on to their next phase
    streams: Array
    heads: Array  # by stream
    ranks: Array
    under_way: Array  # (ranks, parts): how many ops; the last part always has one
    seconds: Array  # (ranks, parts)
    hosts: Array
    servers: Array
    channels: Array  # the first pending communication of each
    communications: Array
    free_communications: Array
    transfers: Array
    free_transfers: Array
    flows: Array
    dirty: Array  # flows; their rate must be solved
    entries: Array
    rows: Array
    solved: Array
    filled: Array
    levels: Array
    heap: Array
    places: Array  # by entity the place of its event in the heap
    span_communication: Array  # by span
    spans: Array  # (ready begin end, spans)
    plan_count: Array
    intervals: Array
    pools: Array
    held: Array  # (pools, categories)
    peak_held: Array  # (pools, categories)


READY, BEGIN, END_OF_SPAN = range(3)
"""Rows of `State.spans`."""

(
    HEAP,
    ENDING,
    ADVANCING,
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
            *(PROGRAM, QUEUE, OP, DEPENDENCY, AMOUNT, RANK, np.float64, REQUEST, PLAN, PHASE),
            *(np.int64, FLOW, ENTRY, CHANGE, OPTIONS),
        ],
        strict=True,
    )
)
STATE_TYPES = dict(
    zip(
        State._fields,
        [
            *(np.float64, np.int64, np.int64, np.int64, np.int64),
            *(STREAM_STATE, HEAD_STATE, RANK_STATE, np.int32, np.float64, HOST_STATE),
            *(SERVER_STATE, np.int64, COMMUNICATION_STATE, np.int64, TRANSFER_STATE, np.int64, FLOW_STATE, np.int64),
            *(ENTRY_STATE, ROW_STATE, np.int64, np.int64, LEVEL, EVENT, np.int32),
            *(np.int32, np.float64, np.int64, INTERVAL),
            *(POOL_STATE, np.float64, np.float64),
        ],
        strict=True,
    )
)
TWO_DIMENSIONS = {"under_way", "seconds", "spans", "held", "peak_held"}
