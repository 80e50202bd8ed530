"""The trace of one real rank: its pieces of work, and its training steps.

With a GPU, pieces are its kernels. Without one, pieces are the operators of the host's threads: the outermost ones that
are no frame around others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

from scenarios.explain import communication, steps
from scenarios.explain.host import LOADER, Context, contexts, frames
from scenarios.explain.operators import operators
from scenarios.explain.piece import COPY, LOADING, Piece
from scenarios.explain.steps import Step
from scenarios.explain.trace_file import Event, TraceFile, read
from simulator.errors import TraceError
from simulator.plain_text import printable

KERNELS = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
LAUNCHES = ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime")

_PHASES = {"F": "forward", "B": "backward", "I": "backward", "W": "backward", "R": "backward", "O": "optimizer"}
_ACTION = re.compile(r"\d+([FBIWRO])")


@dataclass(frozen=True)
class RankTrace:
    """The *pieces* of *rank*, in order of their begin, and its measured *steps*.

    *on_gpu*: the pieces are kernels. *device*: the name of the GPU, empty if unknown. *marked*: the trace itself
    says where steps begin. *origin*: the time 0 of the pieces on the clock of the host, s. *own_end*: when the
    rank itself ended the step, if other ranks end it later.
    """

    path: Path
    rank: int
    world_size: int
    device: str
    on_gpu: bool
    pieces: tuple[Piece, ...]
    steps: tuple[Step, ...]
    marked: bool = True
    origin: float = 0.0
    own_end: float = inf

    @property
    def step_time(self) -> float:
        """The mean duration of its steps, s."""
        return sum(step.seconds for step in self.steps) / len(self.steps)

    def measured(self) -> list[Piece]:
        """Return the pieces that begin in the measured steps."""
        return [piece for step in self.steps for piece in self.pieces if step.begin <= piece.begin < step.end]


def rank_trace(path: Path) -> RankTrace:
    """Return the trace at *path*. Raises `TraceError` if it is none, or has no work in it."""
    file = read(path)
    rank, world = _place(file)
    launches = {key: event for event in file.events if event.category in LAUNCHES for key in _correlation(event)}
    kernels = [event for event in file.events if event.category in KERNELS and event.duration >= 0]
    pieces = _kernels(file, kernels, launches, world) if kernels else operators(file, world)
    if not pieces:
        raise TraceError(f"{path}: has neither kernels of a GPU nor operators; record ProfilerActivity.CUDA or CPU")
    ordered = sorted([*pieces, *_loading(file)], key=lambda piece: piece.begin)
    ranges = steps.marked(file)
    found = steps.on_gpu(ordered, ranges) if kernels else ranges
    whole = (Step(0, ordered[0].begin, max(piece.end for piece in ordered)),)
    measured = tuple(step for step in found or whole if step.end > step.begin)
    if not measured:
        raise TraceError(f"{path}: its steps have no duration")
    return RankTrace(
        path,
        rank,
        world,
        _device(file, kernels),
        bool(kernels),
        steps.after_backward(ordered, measured),
        measured,
        bool(ranges),
        file.origin,
    )


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
    nothing = Context(phase="compute")
    return [
        _kernel(kernel, launched, around[id(launched)] if launched else nothing, world)
        for kernel, launched in zip(kernels, calls, strict=True)
    ]


def _kernel(event: Event, launched: Event | None, context: Context, world: int) -> Piece:
    kind, call, part = communication.kernel_kind(event.name), None, context.phase
    action = event.args.get("action")
    if isinstance(action, str) and (found := _ACTION.match(action)):
        part = _PHASES[found.group(1)]
    if kind is not None:
        call = communication.call(kind, event.args, context.call, world)
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
