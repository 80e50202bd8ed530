"""Perfetto's own trace format: a protobuf of packets, two for each slice.

The common part of all slices of an op is encoded once. A message may be written in pieces, one after the other
(https://protobuf.dev/programming-guides/encoding, "last one wins"), so a slice is a concatenation of such pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from simulator.analysis.traces.counters import counters
from simulator.analysis.traces.slices import Args, Slices, Track, op_texts, process_name, slices, tracks
from simulator.analysis.traces.wire import FIXED_64, LENGTH, VARINT, tag, varint
from simulator.schedule import Program
from simulator.timeline import Timeline

NANOSECOND = 1e-9
SEQUENCE = 1
"""The one packet sequence of the file."""


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
        pieces.append(Trace(packet=[packet]).SerializeToString(deterministic=True))
    known: dict[int, list[tuple[bytes, bytes]]] = {}
    for track, content in slices(timeline, ranks):
        program = timeline.schedule.program_of[track.rank]
        if program not in known:
            known[program] = form.of_ops(timeline.schedule.programs[program])
        pieces += _slices(form, track, content, known[program], timeline.schedule.steps > 1)
    if counted:
        pieces += counters(timeline, ranks, SEQUENCE)
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


_DOUBLE, _FIXED = struct.Struct("<d"), struct.Struct("<Q")


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


_PACKET = tag(1, LENGTH)
"""`Trace.packet`, the only field of a trace."""


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
