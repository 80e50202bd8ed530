"""Counter tracks for Perfetto: memory of each rank by category, and use of the links by kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from simulator.analysis.memory import curve
from simulator.analysis.network import traffic
from simulator.errors import SimulatorError
from simulator.timeline import Floats, Timeline

NANOSECOND = 1e-9
MOST_POINTS = 2_000
"""Values of a counter: more than a screen has columns."""

LINKS = 1 << 40
"""The id of the track of all links; those of ranks are smaller."""

FIRST_COUNTER = 1 << 10
"""Ids of the counters of a rank begin here, behind those of its streams."""


def counters(timeline: Timeline, ranks: Sequence[int], sequence: int) -> Iterator[bytes]:
    """Yield the packets of the counters of *ranks* and of the links; *sequence*: the packet sequence of the file."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import CounterDescriptor, Trace

    for rank in ranks:
        held = curve(timeline, rank).highest(np.linspace(0.0, timeline.makespan, MOST_POINTS + 1))
        for place, (name, nbytes) in enumerate(held.by_category.items()):
            uuid = process(rank) | (FIRST_COUNTER + place)
            unit = CounterDescriptor(unit=CounterDescriptor.UNIT_SIZE_BYTES)
            yield _encoded(Trace, _described(uuid, process(rank), f"memory: {name}", sequence, unit))
            yield from _values(Trace, uuid, held.times, nbytes, sequence)
    try:
        uses = traffic.over_time(timeline)
    except SimulatorError:
        # nothing was sent, or transfers share no links
        return
    yield _encoded(Trace, _described(LINKS, 0, "links", sequence, None))
    places = count(LINKS + 1)
    for kind, use in uses.items():
        for what, share in (("mean", use.mean), ("busiest link", use.busiest)):
            uuid, unit = next(places), CounterDescriptor(unit_name="%")
            if not np.isfinite(share).all():
                continue
            yield _encoded(Trace, _described(uuid, LINKS, f"{kind}: {what}", sequence, unit))
            yield from _values(Trace, uuid, use.edges, np.append(share * 100.0, 0.0), sequence)


def process(rank: int) -> int:
    """Return the id of the track of the process of *rank*."""
    return (rank + 1) << 20


def _described(uuid: int, parent: int, name: str, sequence: int, counter: Any) -> Any:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

    packet = TracePacket(trusted_packet_sequence_id=sequence)
    packet.track_descriptor.uuid, packet.track_descriptor.name = uuid, name
    if parent:
        packet.track_descriptor.parent_uuid = parent
    if counter is not None:
        packet.track_descriptor.counter.CopyFrom(counter)
    return packet


def _values(trace: Any, uuid: int, times: Floats, values: Floats, sequence: int) -> Iterator[bytes]:
    """Yield the packets of the *values* of a counter, each from one of *times* (s) on; equal ones once."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent

    changed = np.append(True, np.diff(values) != 0)
    for moment, value in zip(times[changed].tolist(), values[changed].tolist(), strict=True):
        packet = TracePacket(trusted_packet_sequence_id=sequence, timestamp=round(moment / NANOSECOND))
        packet.track_event.type, packet.track_event.track_uuid = TrackEvent.TYPE_COUNTER, uuid
        packet.track_event.double_counter_value = value
        yield _encoded(trace, packet)


def _encoded(trace: Any, packet: Any) -> bytes:
    encoded: bytes = trace(packet=[packet]).SerializeToString(deterministic=True)
    return encoded
