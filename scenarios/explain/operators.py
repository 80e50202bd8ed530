"""The work of a rank without a GPU: the outermost operators of its threads, and the operations of gloo."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import nan

from scenarios.explain import communication
from scenarios.explain.host import HOST_OPERATORS, PRODUCTS, contexts, frames
from scenarios.explain.piece import Call, Piece
from scenarios.explain.trace_file import Event, TraceFile


def operators(file: TraceFile, world: int) -> list[Piece]:
    """Return the operators of a trace without a GPU, and the operations of gloo."""
    own = [event for event in frames(file) if not event.name.startswith("gloo:")]
    outermost = list(_outermost(event for event in own if event.category in HOST_OPERATORS))
    around = contexts(own, [inner for _, inner in outermost])
    pieces = [
        Piece(
            event.name, context.phase, event.thread, event.begin, event.end, nan, context.op or event.name,
            context.layer, context.shape, context.precision, nbytes=context.nbytes,
        )
        for (event, _), context in zip(outermost, around, strict=True)
    ]  # fmt: skip
    for event in file.events:
        kind = communication.gloo_kind(event.name)
        if kind is not None:
            nbytes = communication.vector(kind, communication.tensor_bytes(event.args), world)
            ranks = 2 if kind in ("send", "recv") else world
            call = Call(kind, nbytes, "", ranks)
            pieces.append(Piece(event.name, kind, f"gloo {event.thread}", event.begin, event.end, call=call))
    return pieces


def _outermost(events: Iterable[Event]) -> Iterator[tuple[Event, Event]]:
    """Yield the outermost operators, each with a moment in its last matrix product, if it has one."""
    by_thread: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.name.startswith(("aten::", "torchvision::", "detach")):
            by_thread[event.thread].append(event)
    for row in by_thread.values():
        outer: Event | None = None
        inner: Event | None = None
        for event in row:
            if outer is not None and event.begin < outer.end:
                inner = inner if event.name not in PRODUCTS else event
                continue
            if outer is not None:
                yield outer, _moment(inner or outer)
            outer, inner = event, None
        if outer is not None:
            yield outer, _moment(inner or outer)


def _moment(event: Event) -> Event:
    """Return a moment inside *event*."""
    return event._replace(begin=event.begin + event.duration / 2, duration=0.0)
