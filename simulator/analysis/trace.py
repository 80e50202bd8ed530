"""Traces open a timeline in a trace viewer: Perfetto's own form, or the JSON of Chrome's.

Each rank is a process with a track for each stream; arrows run from each send to its receive.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from simulator.analysis.files import suffix_of, written
from simulator.analysis.rows import chosen
from simulator.analysis.slices import Slice, Track, process_name, slices, tracks
from simulator.timeline import Timeline

NANOSECOND = 1e-9
MOST_SPANS = 1_000_000
"""What a viewer in a browser still scrolls; as JSON about 200 MB."""

SEQUENCE = 1
"""The one packet sequence of the file."""


def write(timeline: Timeline, path: Path | str, ranks: Sequence[int] | None = None) -> None:
    """Write *timeline*, or its *ranks* alone, to *path*: ``.pftrace`` Perfetto, ``.json`` or ``.json.gz`` Chrome.

    Where no ranks are given and all together have more than `MOST_SPANS`, it holds the first of all that are equal.
    The same timeline gives the same bytes. Raises `SimulatorError` for another suffix, for a rank that there is not,
    and where the file cannot be written.
    """
    path = Path(path)
    form = FORMS[suffix_of(path, FORMS)]
    if ranks is None and timeline.ops > MOST_SPANS:
        ranks = timeline.distinct_ranks
    content = form(timeline, chosen(timeline, ranks, most=timeline.world_size))
    with written(path):
        path.write_bytes(content)


def chrome(timeline: Timeline, ranks: Sequence[int]) -> bytes:
    """The timeline in Chrome's trace event format, JSON object form; times in µs."""
    events = (json.dumps(event, separators=(",", ":")) for event in _chrome_events(timeline, ranks))
    text = ",\n".join(events)
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{text}\n]}}\n'.encode()


def _chrome_events(timeline: Timeline, ranks: Sequence[int]) -> Iterator[dict[str, Any]]:
    for rank in ranks:
        yield _named("process_name", rank, 0, name=process_name(timeline, rank))
        yield _named("process_sort_index", rank, 0, sort_index=rank)
        for track in tracks(timeline, rank):
            yield _named("thread_name", rank, track.number + 1, name=track.stream)
            yield _named("thread_sort_index", rank, track.number + 1, sort_index=track.number)
    for track, content in slices(timeline, ranks):
        for one in content:
            yield from _chrome_slice(track, one)


def _named(what: str, rank: int, thread: int, **args: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": args}


def _chrome_slice(track: Track, one: Slice) -> Iterator[dict[str, Any]]:
    place = {"pid": track.rank, "tid": track.number + 1}
    begin, length = one.begin * 1e6, (one.end - one.begin) * 1e6
    yield {"ph": "X", "name": one.name, "cat": one.kind, **place, "ts": begin, "dur": length, "args": one.args}
    # an arrow binds to the slice around its time stamp, so both of its ends stand well inside theirs
    message = {"name": "message", "cat": "message", **place}
    if one.sends:
        yield {"ph": "s", **message, "id": one.sends, "ts": begin + 0.25 * length}
    if one.receives:
        yield {"ph": "f", "bp": "e", **message, "id": one.receives, "ts": begin + 0.75 * length}


def perfetto(timeline: Timeline, ranks: Sequence[int]) -> bytes:
    """The timeline as Perfetto's protobuf; times in whole ns."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

    builder = TraceProtoBuilder()
    for rank in ranks:
        _describe(builder, timeline, rank)
    for track, content in slices(timeline, ranks):
        for one in content:
            begin = _packet(builder, one.begin)
            event = begin.track_event
            event.type, event.track_uuid = event.TYPE_SLICE_BEGIN, _uuid(track.rank, track.number + 1)
            event.name = one.name
            event.categories.append(one.kind)
            _annotate(event, one)
            end = _packet(builder, one.end).track_event
            end.type, end.track_uuid = end.TYPE_SLICE_END, event.track_uuid
    if builder.trace.packet:
        builder.trace.packet[0].sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    content_bytes: bytes = builder.trace.SerializeToString(deterministic=True)
    return content_bytes


def _uuid(rank: int, place: int) -> int:
    """Of a track: *place* 0 is the process of *rank*, n + 1 its n-th stream."""
    return (rank + 1) << 20 | place


def _describe(builder: Any, timeline: Timeline, rank: int) -> None:
    process = _descriptor(builder, _uuid(rank, 0))
    # pid 0 is the idle task to the viewer
    process.process.pid, process.process.process_name = rank + 1, process_name(timeline, rank)
    process.sibling_order_rank = rank
    process.child_ordering = process.EXPLICIT
    for track in tracks(timeline, rank):
        stream = _descriptor(builder, _uuid(rank, track.number + 1))
        stream.parent_uuid, stream.name, stream.sibling_order_rank = _uuid(rank, 0), track.stream, track.number


def _descriptor(builder: Any, uuid: int) -> Any:
    packet = builder.add_packet()
    packet.trusted_packet_sequence_id = SEQUENCE
    packet.track_descriptor.uuid = uuid
    return packet.track_descriptor


def _packet(builder: Any, moment: float) -> Any:
    packet = builder.add_packet()
    packet.trusted_packet_sequence_id = SEQUENCE
    packet.timestamp = round(moment / NANOSECOND)
    return packet


def _annotate(event: Any, one: Slice) -> None:
    for name, value in one.args.items():
        annotation = event.debug_annotations.add()
        annotation.name = name
        if isinstance(value, str):
            annotation.string_value = value
        else:
            annotation.double_value = value
    if one.sends:
        event.flow_ids.append(one.sends)
    if one.receives:
        event.terminating_flow_ids.append(one.receives)


def _compressed(timeline: Timeline, ranks: Sequence[int]) -> bytes:
    return gzip.compress(chrome(timeline, ranks), mtime=0)


FORMS: dict[str, Callable[[Timeline, Sequence[int]], bytes]] = {
    ".pftrace": perfetto,
    ".json": chrome,
    ".json.gz": _compressed,
}
"""The forms of a trace by the suffix of its file."""
