"""Traces of a timeline for trace viewers, in Perfetto's own format (a protobuf of packets, two for each slice, with
counters of memory and of links) or in Chrome's JSON.

The common part of all slices of an op is encoded once. A message may be written in pieces, one after the other
(https://protobuf.dev/programming-guides/encoding, "last one wins"), so a slice is a concatenation of such pieces.

Each rank is a process with a track for each stream. Arrows run from each send to its receive, and along the critical
path where it changes streams.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from clustersim.simulator.analysis import network_traffic
from clustersim.simulator.analysis.memory import curve
from clustersim.simulator.analysis.timeline import Floats, Timeline
from clustersim.simulator.charts.rows import chosen
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.files import suffix_of, written
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.traces.protobuf import FIXED_64, LENGTH, VARINT, tag, varint
from clustersim.simulator.traces.slices import Args, Slices, Track, op_texts, process_name, slices, tracks

NANOSECOND = 1e-9

MOST_POINTS = 2_000
"""Values of a counter: more than a screen has columns."""

LINKS = 1 << 40
"""The id of the track of all links; those of ranks are smaller."""

FIRST_COUNTER = 1 << 10
"""Ids of the counters of a rank begin here, behind those of its streams."""

SEQUENCE = 1
"""The one packet sequence of the file."""

_DOUBLE, _FIXED = struct.Struct("<d"), struct.Struct("<Q")

_PACKET = tag(1, LENGTH)
"""`Trace.packet`, the only field of a trace."""

MOST_SPANS = 1_000_000
"""Spans that a viewer in a browser can still show; as JSON about 200 MB."""


def write(timeline: Timeline, path: Path | str, ranks: Sequence[int] | None = None) -> None:
    """Write *timeline*, or its *ranks* alone, to *path*: ``.pftrace`` Perfetto, ``.json`` or ``.json.gz`` Chrome.

    Without *ranks*, the trace has one rank of each class of equal ranks if all have more than `MOST_SPANS` spans, or
    if the spans of some were not kept. The same timeline gives the same bytes. Raises `SimulatorError` for another
    suffix, for an unknown rank, and if the file cannot be written.
    """
    path = Path(path)
    form = FORMS[suffix_of(path, FORMS)]
    if ranks is None:
        kept = [first for first in timeline.classes if first in timeline.columns]
        all_kept = sum(len(timeline.classes[first]) for first in kept) == timeline.world_size
        ranks = None if all_kept and timeline.ops <= MOST_SPANS else kept
    content = form(timeline, chosen(timeline, ranks, most=timeline.world_size))
    with written(path) as beside:
        beside.write_bytes(content)


def perfetto(timeline: Timeline, ranks: Sequence[int], *, counted: bool = False) -> bytes:
    """Return the timeline as Perfetto's protobuf; times in whole ns.

    *counted*: with counters of the memory of each rank and of the use of links.
    """
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket

    form = _Form()
    pieces = []
    for number, packet in enumerate(p for rank in ranks for p in _descriptors(timeline, rank)):
        packet.trusted_packet_sequence_id = SEQUENCE
        if number == 0:
            packet.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        pieces.append(_encoded(Trace, packet))
    known: dict[int, list[tuple[bytes, bytes]]] = {}
    for track, content in slices(timeline, ranks):
        program = timeline.schedule.program_of[track.rank]
        if program not in known:
            known[program] = form.of_ops(timeline.schedule.programs[program])
        pieces += _slices(form, track, content, known[program], timeline.schedule.steps > 1)
    if counted:
        pieces += _counters(timeline, ranks)
    return b"".join(pieces)


def _slices(
    form: _Form, track: Track, content: Slices, ops: Sequence[tuple[bytes, bytes]], steps: bool
) -> Iterator[bytes]:
    """Yield the packets of *content*, each slice with the wait before it; *ops*: the encoded ops of its program."""
    place = form.event(track_uuid=_uuid(track.rank, track.number + 1))
    stop = form.event(type=form.stop) + place
    moments = (
        np.rint(column / NANOSECOND).astype(np.int64).tolist() for column in (content.waits, content.begin, content.end)
    )
    waited = ((content.begin - content.ready) * 1e6).tolist()
    arrows = (column.tolist() for column in content[6:])
    numbered = {
        step: form.event(debug_annotations=[form.annotation("step", step)]) for step in np.unique(content.step).tolist()
    }
    rows = zip(content.op.tolist(), content.step.tolist(), waited, *moments, *arrows, strict=True)
    for op, step, waited_us, waits, begin, end, sends, receives, leaves, enters, critical in rows:
        whole, wait = ops[op]
        if begin > waits:
            yield form.packet(waits, wait + place)
            yield form.packet(begin, stop)
        event = whole + place + form.waited + _DOUBLE.pack(waited_us)
        if steps:
            event += numbered[step]
        if critical:
            event += form.critical
        for number in filter(None, (sends, leaves)):
            event += form.starts + _FIXED.pack(number)
        for number in filter(None, (receives, enters)):
            event += form.ends + _FIXED.pack(number)
        yield form.packet(begin, event)
        yield form.packet(end, stop)


class _Form:
    """Encoded pieces of packets; the numbers of fields are those of Perfetto's own definition."""

    def __init__(self) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as definition

        self._event, self._annotation = definition.TrackEvent, definition.DebugAnnotation
        packet, event, annotation = (
            {field.name: field.number for field in message.DESCRIPTOR.fields}
            for message in (definition.TracePacket, self._event, self._annotation)
        )
        self.start, self.stop = self._event.TYPE_SLICE_BEGIN, self._event.TYPE_SLICE_END
        self._head = tag(packet["trusted_packet_sequence_id"], VARINT) + varint(SEQUENCE)
        self._head += tag(packet["timestamp"], VARINT)
        self._track_event = tag(packet["track_event"], LENGTH)
        # the last field of an annotation is the number that follows
        name = self._annotation(name="waited_us").SerializeToString()
        name += tag(annotation["double_value"], FIXED_64)
        self.waited = tag(event["debug_annotations"], LENGTH) + varint(len(name) + _DOUBLE.size) + name
        self.starts, self.ends = tag(event["flow_ids"], FIXED_64), tag(event["terminating_flow_ids"], FIXED_64)
        self.critical = self.event(debug_annotations=[self._annotation(name="critical_path", bool_value=True)])

    def event(self, **fields: Any) -> bytes:
        """Return a track event, or a piece of one, with these *fields*."""
        encoded: bytes = self._event(**fields).SerializeToString(deterministic=True)
        return encoded

    def annotation(self, name: str, value: str | float) -> Any:
        """Return an annotation of a slice: *value* under *name*."""
        if isinstance(value, str):
            return self._annotation(name=name, string_value=value)
        return self._annotation(name=name, double_value=value)

    def of_ops(self, program: Program) -> list[tuple[bytes, bytes]]:
        """Return for each op of *program* the begin of its slice, and the begin of the wait before it."""
        return [self._of_op(name, kind, args) for name, kind, args in zip(*op_texts(program), strict=True)]

    def _of_op(self, name: str, kind: str, args: Args) -> tuple[bytes, bytes]:
        annotations = [self.annotation(key, value) for key, value in args.items()]
        whole = self.event(type=self.start, name=name, categories=[kind], debug_annotations=annotations)
        awaited = [self.annotation("for", name)]
        return whole, self.event(type=self.start, name="wait", categories=["wait"], debug_annotations=awaited)

    def packet(self, moment: int, event: bytes) -> bytes:
        """Return the packet of a track *event* at *moment* (ns), as a field of the trace."""
        content = self._head + varint(moment) + self._track_event + varint(len(event)) + event
        return _PACKET + varint(len(content)) + content


def _uuid(rank: int, place: int) -> int:
    """Return the id of a track: *place* 0 is the process of *rank*, n + 1 its n-th stream."""
    return (rank + 1) << 20 | place


def _descriptors(timeline: Timeline, rank: int) -> Iterator[Any]:
    """Yield the packets with the names of the process of *rank* and of its tracks."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

    packet = TracePacket()
    process = packet.track_descriptor
    process.uuid = _uuid(rank, 0)
    # the viewer takes pid 0 as the idle task
    process.process.pid, process.process.process_name = rank + 1, process_name(timeline, rank)
    process.sibling_order_rank = rank
    process.child_ordering = process.EXPLICIT
    yield packet
    for track in tracks(timeline, rank):
        packet = TracePacket()
        stream = packet.track_descriptor
        stream.uuid, stream.parent_uuid = _uuid(rank, track.number + 1), _uuid(rank, 0)
        stream.name, stream.sibling_order_rank = track.stream, track.number
        yield packet


def _counters(timeline: Timeline, ranks: Sequence[int]) -> Iterator[bytes]:
    """Yield the packets of the counters of *ranks* and of the links."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import CounterDescriptor, Trace

    for rank in ranks:
        held = curve(timeline, rank).highest(np.linspace(0.0, timeline.makespan, MOST_POINTS + 1))
        for place, (name, nbytes) in enumerate(held.by_category.items()):
            uuid = _uuid(rank, 0) | (FIRST_COUNTER + place)
            unit = CounterDescriptor(unit=CounterDescriptor.UNIT_SIZE_BYTES)
            yield _encoded(Trace, _described(uuid, _uuid(rank, 0), f"memory: {name}", unit))
            yield from _values(Trace, uuid, held.times, nbytes)
    try:
        uses = network_traffic.over_time(timeline)
    except SimulatorError:
        # nothing was sent, or transfers share no links
        return
    yield _encoded(Trace, _described(LINKS, 0, "links", None))
    places = count(LINKS + 1)
    for kind, use in uses.items():
        for what, share in (("mean", use.mean), ("busiest link", use.busiest)):
            uuid, unit = next(places), CounterDescriptor(unit_name="%")
            if not np.isfinite(share).all():
                continue
            yield _encoded(Trace, _described(uuid, LINKS, f"{kind}: {what}", unit))
            yield from _values(Trace, uuid, use.edges, np.append(share * 100.0, 0.0))


def _described(uuid: int, parent: int, name: str, counter: Any) -> Any:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

    packet = TracePacket(trusted_packet_sequence_id=SEQUENCE)
    packet.track_descriptor.uuid, packet.track_descriptor.name = uuid, name
    if parent:
        packet.track_descriptor.parent_uuid = parent
    if counter is not None:
        packet.track_descriptor.counter.CopyFrom(counter)
    return packet


def _values(trace: Any, uuid: int, times: Floats, values: Floats) -> Iterator[bytes]:
    """Yield the packets of the *values* of a counter, each from one of *times* (s) on; equal ones once."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent

    changed = np.append(True, np.diff(values) != 0)
    for moment, value in zip(times[changed].tolist(), values[changed].tolist(), strict=True):
        packet = TracePacket(trusted_packet_sequence_id=SEQUENCE, timestamp=round(moment / NANOSECOND))
        packet.track_event.type, packet.track_event.track_uuid = TrackEvent.TYPE_COUNTER, uuid
        packet.track_event.double_counter_value = value
        yield _encoded(trace, packet)


def _encoded(trace: Any, packet: Any) -> bytes:
    """Return *packet* as a field of the message type *trace*."""
    encoded: bytes = trace(packet=[packet]).SerializeToString(deterministic=True)
    return encoded


def chrome(timeline: Timeline, ranks: Sequence[int]) -> bytes:
    """Return the timeline in Chrome's trace event format, JSON object form; times in µs."""
    text = ",\n".join(_chrome_events(timeline, ranks))
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{text}\n]}}\n'.encode()


def _chrome_events(timeline: Timeline, ranks: Sequence[int]) -> Iterator[str]:
    for rank in ranks:
        yield _named("process_name", rank, 0, name=process_name(timeline, rank))
        yield _named("process_sort_index", rank, 0, sort_index=rank)
        for track in tracks(timeline, rank):
            yield _named("thread_name", rank, track.number + 1, name=track.stream)
            yield _named("thread_sort_index", rank, track.number + 1, sort_index=track.number)
    known: dict[int, list[tuple[str, str, str]]] = {}
    for track, content in slices(timeline, ranks):
        number = timeline.schedule.program_of[track.rank]
        if number not in known:
            known[number] = _chrome_texts(timeline.schedule.programs[number])
        yield from _chrome_slices(track, content, known[number], timeline.schedule.steps > 1)


def _named(what: str, rank: int, thread: int, **args: str | int) -> str:
    return _json({"ph": "M", "name": what, "pid": rank, "tid": thread, "args": args})


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _chrome_texts(program: Program) -> list[tuple[str, str, str]]:
    """Return for each op its quoted name, name and category as members of an event, and its arguments as members."""
    texts = op_texts(program)
    return [
        (
            _json(name),
            f'"name":{_json(name)},"cat":"{kind}"',
            "".join(f",{_json(k)}:{_json(v)}" for k, v in args.items()),
        )
        for name, kind, args in zip(*texts, strict=True)
    ]


def _chrome_slices(track: Track, content: Slices, texts: Sequence[tuple[str, str, str]], steps: bool) -> Iterator[str]:
    place = f'"pid":{track.rank},"tid":{track.number + 1}'
    message, path = (f'"name":"{name}","cat":"{name}",{place}' for name in ("message", "critical path"))
    micro = ((column * 1e6).tolist() for column in content[2:6])
    arrows = (column.tolist() for column in content[6:])
    rows = zip(content.op.tolist(), content.step.tolist(), *micro, *arrows, strict=True)
    for op, step, ready, waits, begin, end, sends, receives, leaves, enters, critical in rows:
        name, named, args = texts[op]
        if begin > waits:
            yield (
                f'{{"ph":"X","name":"wait","cat":"wait",{place},"ts":{waits!r},"dur":{begin - waits!r},'
                f'"args":{{"for":{name}}}}}'
            )
        details = (f',"step":{step}' if steps else "") + (',"critical_path":true' if critical else "")
        yield (
            f'{{"ph":"X",{named},{place},"ts":{begin!r},"dur":{end - begin!r},'
            f'"args":{{"waited_us":{begin - ready!r}{args}{details}}}}}'
        )
        # an arrow belongs to the slice around its time stamp; therefore its ends are well inside their slices
        if sends:
            yield f'{{"ph":"s",{message},"id":{sends},"ts":{0.75 * begin + 0.25 * end!r}}}'
        if receives:
            yield f'{{"ph":"f","bp":"e",{message},"id":{receives},"ts":{0.25 * begin + 0.75 * end!r}}}'
        if leaves:
            yield f'{{"ph":"s",{path},"id":{leaves},"ts":{0.1 * begin + 0.9 * end!r}}}'
        if enters:
            yield f'{{"ph":"f","bp":"e",{path},"id":{enters},"ts":{0.9 * begin + 0.1 * end!r}}}'


def _compressed(timeline: Timeline, ranks: Sequence[int]) -> bytes:
    return gzip.compress(chrome(timeline, ranks), mtime=0)


FORMS: dict[str, Callable[[Timeline, Sequence[int]], bytes]] = {
    ".pftrace": perfetto,
    ".json": chrome,
    ".json.gz": _compressed,
}
"""The forms of a trace by the suffix of its file."""
