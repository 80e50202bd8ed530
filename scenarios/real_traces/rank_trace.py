"""The trace of one rank, real or in the form of one by simulation: its pieces of work, its training steps. With a GPU,
pieces are its kernels. Without one, pieces are the operators of the host's threads: the outermost ones that are no
frame around others.

With a GPU, pieces are its kernels. Without one, pieces are the operators of the host's threads: the outermost ones that
are no frame around others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf, nan
from pathlib import Path
from typing import Any, NamedTuple

from clustersim.scenarios.real_traces import nsight, pieces_of_work
from clustersim.scenarios.real_traces.host_operators import LOADER, HostContext, contexts, frames, operators
from clustersim.scenarios.real_traces.pieces_of_work import COPY, HOST, LOADING, Call, Piece
from clustersim.scenarios.real_traces.trace_file import Event, TraceFile, read
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import TraceError
from clustersim.simulator.reading.plain_text import printable
from clustersim.simulator.schedule.mesh import family
from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Delay, Op, Recv, Send

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")


class RealStep(NamedTuple):
    """The training step of that *number*, from *begin* to *end* (s)."""

    number: int
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Its duration, s."""
        return self.end - self.begin


def marked(file: TraceFile) -> list[RealStep]:
    """Return the steps that the profiler marked on the host."""
    found: dict[int, RealStep] = {}
    for event in file.events:
        named = _STEP.match(event.name)
        if named and event.category in ("user_annotation", "cpu_op", "operator", "user annotation", ""):
            number = int(named.group(1)[:12])
            found[number] = RealStep(number, event.begin, event.end)
    return sorted(found.values(), key=lambda step: step.begin)


def on_gpu(pieces: Sequence[Piece], ranges: Sequence[RealStep]) -> list[RealStep]:
    """Return the steps of the GPU: each ends with the last kernel that the host launched in it.

    Of several the first is left out: when it began on the GPU is not known.
    """
    ends, begins = {}, {}
    for step in ranges:
        mine = [piece for piece in pieces if step.begin <= piece.launched < step.end and piece.part != LOADING]
        if mine:
            ends[step.number] = max(*(piece.end for piece in mine), step.end)
            begins[step.number] = min(piece.begin for piece in mine)
    numbers = list(ends)
    if len(numbers) == 1:
        return [RealStep(numbers[0], begins[numbers[0]], ends[numbers[0]])]
    return [RealStep(now, ends[before], ends[now]) for before, now in pairwise(numbers)]


def after_backward(pieces: Sequence[Piece], steps: Sequence[RealStep]) -> tuple[Piece, ...]:
    """Return *pieces* where what follows the last backward kernel of a step belongs to the optimizer."""
    last = {}
    for step in steps:
        ends = [piece.begin for piece in pieces if piece.part == "backward" and step.begin <= piece.begin < step.end]
        last[step] = max(ends, default=step.end)
    return tuple(piece._replace(part="optimizer") if _follows(piece, last) else piece for piece in pieces)


def _follows(piece: Piece, last: Mapping[RealStep, float]) -> bool:
    """True if *piece* seems to be of the forward pass but comes after the *last* backward kernel of its step."""
    return piece.part == "forward" and any(end < piece.begin < step.end for step, end in last.items())


KERNELS = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
LAUNCHES = ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime")

_PHASES = {"F": "forward", "B": "backward", "I": "backward", "W": "backward", "R": "backward", "O": "optimizer"}
"""The phase of a real kernel by that of an action; torch recomputes within the backward pass."""
_ACTION = re.compile(r"\d+([FBIWRO])")


@dataclass(frozen=True)
class RankTrace:
    """The *pieces* of *rank*, in order of their begin, and its measured *steps*.

    *on_gpu*: the pieces are kernels. *device*: the name of the GPU, empty if unknown. *marked*: the trace itself
    says where steps begin. *origin*: the time 0 of the pieces on the clock of the host, s. *own_end*: when the
    rank itself ended the step, if other ranks end it later. *synchronised*: begin and end of the calls in which the
    host waits for the GPU, s.
    """

    path: Path
    rank: int
    world_size: int
    device: str
    on_gpu: bool
    pieces: tuple[Piece, ...]
    steps: tuple[RealStep, ...]
    marked: bool = True
    origin: float = 0.0
    own_end: float = inf
    synchronised: tuple[tuple[float, float], ...] = ()

    @property
    def step_time(self) -> float:
        """The mean duration of its steps, s."""
        return sum(step.seconds for step in self.steps) / len(self.steps)

    def measured(self) -> list[Piece]:
        """Return the pieces that begin in the measured steps."""
        return [piece for step in self.steps for piece in self.pieces if step.begin <= piece.begin < step.end]


def rank_trace(path: Path) -> RankTrace:
    """Return the trace at *path*. Raises `TraceError` if it is none, or has no work in it."""
    file = nsight.read(path) if nsight.recognises(path) else read(path)
    rank, world = _place(file)
    launches = {key: event for event in file.events if event.category in LAUNCHES for key in _correlation(event)}
    kernels = [event for event in file.events if event.category in KERNELS and event.duration >= 0]
    pieces = _kernels(file, kernels, launches, world) if kernels else operators(file, world)
    if not pieces:
        raise TraceError(f"{path}: has neither kernels of a GPU nor operators; record ProfilerActivity.CUDA or CPU")
    ordered = sorted([*pieces, *_loading(file)], key=lambda piece: piece.begin)
    ranges = marked(file)
    found = on_gpu(ordered, ranges) if kernels else ranges
    whole = (RealStep(0, ordered[0].begin, max(piece.end for piece in ordered)),)
    measured = tuple(step for step in found or whole if step.end > step.begin)
    if not measured:
        raise TraceError(f"{path}: its steps have no duration")
    return RankTrace(
        path,
        rank,
        world,
        _device(file, kernels),
        bool(kernels),
        after_backward(ordered, measured),
        measured,
        bool(ranges),
        file.origin,
        synchronised=tuple((event.begin, event.end) for event in file.events if _synchronises(event)),
    )


def _synchronises(event: Event) -> bool:
    """True for a call of CUDA or HIP in which the host waits for the GPU; a copy to pageable memory waits too."""
    return event.category in LAUNCHES and ("Synchronize" in event.name or "Memcpy" in event.name)


def _place(file: TraceFile) -> tuple[int, int]:
    """Return rank and number of ranks of *file*: 0 and 1 if it does not say."""
    info = file.head.get("distributedInfo", {})
    if not isinstance(info, dict):
        raise TraceError(f"{file.path}: distributedInfo must be an object with rank and world_size")
    numbers = []
    for key, default in (("rank", 0), ("world_size", 1)):
        value = info.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**24:
            raise TraceError(f"{file.path}: distributedInfo.{key} must be a whole number, not {str(value)[:40]}")
        numbers.append(value)
    rank, world = numbers
    if rank >= max(world, 1):
        raise TraceError(f"{file.path}: distributedInfo.rank is {rank}, but there are {world} ranks, from 0")
    return rank, world


def _device(file: TraceFile, kernels: Sequence[Event]) -> str:
    devices = file.head.get("deviceProperties")
    if not kernels or not isinstance(devices, list) or not devices:
        return ""
    number = kernels[0].args.get("device", 0)
    chosen = devices[number] if isinstance(number, int) and 0 <= number < len(devices) else devices[0]
    return printable(str(chosen.get("name", ""))[:80]) if isinstance(chosen, dict) else ""


def _correlation(event: Event) -> Iterator[int]:
    value = event.args.get("correlation")
    if isinstance(value, int) and value >= 0:
        yield value


def _kernels(file: TraceFile, kernels: Sequence[Event], launches: dict[int, Event], world: int) -> list[Piece]:
    """Return a piece for each of *kernels*, with the context of the call that launched it."""
    calls = [launches.get(next(_correlation(kernel), -1)) for kernel in kernels]
    known = [one for one in calls if one is not None]
    around = dict(zip(map(id, known), contexts(frames(file), known), strict=True))
    nothing = HostContext(phase="compute")
    return [
        _kernel(kernel, launched, around[id(launched)] if launched else nothing, world)
        for kernel, launched in zip(kernels, calls, strict=True)
    ]


def _kernel(event: Event, launched: Event | None, context: HostContext, world: int) -> Piece:
    kind, call, part = pieces_of_work.kernel_kind(event.name), None, context.phase
    action = event.args.get("action")
    if isinstance(action, str) and (found := _ACTION.match(action)):
        part = _PHASES[found.group(1)]
    if kind is not None:
        call = pieces_of_work.call(kind, event.args, context.call, world)
        part = call.kind
    elif "memcpy" in event.category and "DtoD" not in event.name:
        part = COPY
    # a product may clear or add up a workspace by kernels of its own
    main = "memset" not in event.category and "splitK" not in event.name and not event.name.startswith("Memset")
    return Piece(
        event.name,
        part,
        str(event.args.get("stream", event.thread)),
        event.begin,
        event.end,
        launched.begin if launched else nan,
        context.op,
        _text(event.args.get("layer")) or context.layer,
        context.shape if main else None,
        context.precision,
        call,
        nbytes=context.nbytes if main else 0.0,
    )


def _text(value: Any) -> str:
    return printable(value[:80]) if isinstance(value, str) else ""


def _loading(file: TraceFile) -> Iterator[Piece]:
    """Yield a piece for each time in which the host waited for samples."""
    for event in file.events:
        if event.name.startswith(LOADER):
            yield Piece(event.name, LOADING, "host", event.begin, event.end)


def simulated(timeline: Timeline, ranks: Sequence[int]) -> list[RankTrace]:
    """Return the simulated traces of *ranks*. The wait of a communication is the time from ready to begin."""
    begin, end = timeline.window
    width = (end - begin) / timeline.steps_measured
    steps = tuple(
        RealStep(n, begin + n * width, begin + (n + 1) * width) for n in range(max(1, round(timeline.steps_measured)))
    )
    return [
        RankTrace(
            Path("simulated"), rank, len(timeline.gpu_ranks), "", True, tuple(_simulated_pieces(timeline, rank)), steps,
        )
        for rank in ranks
    ]  # fmt: skip


def _simulated_pieces(timeline: Timeline, rank: int) -> list[Piece]:
    pieces = []
    for span in timeline.spans(rank):
        op = span.op
        call = _simulated_call(timeline, rank, op)
        begin = span.ready if call is not None else span.begin
        pieces.append(
            Piece(
                op.name, _simulated_part(op, call), op.stream, begin, span.end, nan, op.name, op.layer or "", call=call,
                wait=span.begin - begin,
            )
        )  # fmt: skip
    return sorted(pieces, key=lambda piece: piece.begin)


def _simulated_part(op: Op, call: Call | None) -> str:
    if call is not None:
        return call.kind
    if isinstance(op, Copy):
        return HOST if op.on_host else COPY
    if isinstance(op, Delay) or (isinstance(op, Compute) and op.on == "host"):
        return HOST
    return _PHASES.get(op.action.phase, "compute") if op.action else "compute"


def _simulated_call(timeline: Timeline, rank: int, op: Op) -> Call | None:
    if isinstance(op, Send | Recv):
        return Call("send" if isinstance(op, Send) else "recv", op.nbytes, family(op.over), 2)
    if not isinstance(op, Collective):
        return None
    place = timeline.schedule.mesh.axes[op.over].place(rank)
    ranks = len(timeline.schedule.mesh.axes[op.over].groups[place[0]]) if place else 1
    return Call(op.kind, op.nbytes, family(op.over), ranks)
