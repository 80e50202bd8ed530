"""Parts of the report of a run: breakdown, pipeline as text, tables of collectives and of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from clustersim.simulator.analysis.memory import Memory, stage_of
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.charts.palette import parts_in_order
from clustersim.simulator.charts.pipeline import pipeline_ranks, stretches
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.units import show

EQUAL = 1e-9
"""Relative difference below which two times are printed as equal: sums of millions of doubles agree to that."""

LEAST_PART = 1e-6
"""Of the step time; a shorter part of a breakdown changes no printed figure of the step time."""


class CollectiveRow(NamedTuple):
    """One line of a table of collectives: *size* in bytes, *time* in s, bandwidths in bytes/s."""

    size: float
    time: float
    algbw: float
    busbw: float
    algorithm: str
    protocol: str


def label_of(part: str) -> str:
    """Return the printed name of a part of a breakdown.

    >>> label_of("exposed_dp")
    'exposed dp'
    """
    return part.replace("_", " ")


def breakdown_table(parts: Mapping[str, float], width: int = 40) -> str:
    """Return a line for each part of a breakdown above `LEAST_PART`: seconds, share, and its segment of a bar."""
    shown = [part for part in parts_in_order(parts) if _seen(part, parts)]
    total = sum(parts.values())
    bars = plain_text.waterfall([parts[part] for part in shown], width)
    rows = [
        [label_of(part), show(parts[part], "time"), f"{parts[part] / total:.1%}", piece]
        for part, piece in zip(shown, bars, strict=True)
    ]
    return plain_text.table(rows, align="lrrl")


def comparison(breakdowns: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table with a column for each breakdown; of two also the difference, second less first.

    Parts below `LEAST_PART` of every step time are left out.
    """
    parts = parts_in_order(part for one in breakdowns.values() for part in one)
    columns = list(breakdowns.values())
    rows = [
        [label_of(part), *_cells([one.get(part, 0.0) for one in columns])]
        for part in parts
        if any(_seen(part, one) for one in columns)
    ]
    rows.append(["step time", *_cells([sum(one.values()) for one in columns])])
    header = ["", *breakdowns, *(["difference"] if len(columns) == 2 else [])]
    return plain_text.table(rows, header, "lr")


def _seen(part: str, parts: Mapping[str, float]) -> bool:
    return parts.get(part, 0.0) > LEAST_PART * sum(parts.values())


def _cells(values: Sequence[float]) -> list[str]:
    cells = [show(value, "time") for value in values]
    if len(values) == 2:
        change = values[1] - values[0]
        cells.append(
            "="
            if abs(change) <= EQUAL * max(map(abs, values))
            else f"{'+' if change > 0 else '-'}{show(abs(change), 'time', 3)}"
        )
    return cells


def pipeline_chart(timeline: Timeline, width: int = 100, ranks: Sequence[int] | None = None) -> str:
    """Return a line of *width* characters for the first rank of each pipeline stage, or for each of *ranks*.

    A box begins with phase and micro-batch, ``F0``; dots are bubble.
    """
    if not timeline.makespan:
        return ""
    rows = []
    for rank in pipeline_ranks(timeline, ranks):
        done = (
            (f"{s.action.phase}{'' if s.action.micro_batch is None else s.action.micro_batch}", s.begin, s.end)
            for s in stretches(timeline, rank)
        )
        name = f"stage {stage_of(timeline.schedule, rank)}" if ranks is None else f"rank {rank}"
        rows.append([name, plain_text.boxes(done, (0.0, timeline.makespan), width)])
    return plain_text.table(rows, align="rl")


def fits_in_text(timeline: Timeline, width: int = 100) -> bool:
    """Return whether `pipeline_chart` is legible: few stages, at least two characters for a mean box."""
    ranks = pipeline_ranks(timeline)
    return 1 < len(ranks) <= 16 and all(2 * len(stretches(timeline, rank)) <= width for rank in ranks)


def collective_table(measurements: Iterable[CollectiveRow]) -> str:
    """Return a table with the columns of nccl-tests: size in bytes, time in µs, bandwidths in GB/s."""
    rows = [
        [
            f"{m.size:.0f}",
            f"{m.time * 1e6:.2f}",
            f"{m.algbw / 1e9:.2f}",
            f"{m.busbw / 1e9:.2f}",
            m.algorithm,
            m.protocol,
        ]
        for m in measurements
    ]
    return plain_text.table(
        [["(B)", "(us)", "(GB/s)", "(GB/s)", "", ""], *rows],
        ["size", "time", "algbw", "busbw", "algorithm", "protocol"],
        "rrrrl",
    )


def memory_table(memory: Memory, reserved: Mapping[str, float] | None = None) -> str:
    """Return the peak by category with its sum, *reserved* memory, and the peak of each stage.

    *reserved*: bytes that the process holds beyond its tensors.
    """
    peak = memory.peak
    rows = [[name, show(nbytes, "size")] for name, nbytes in peak.by_category.items() if nbytes > 0]
    rows.append([f"peak, rank {peak.rank}", show(peak.nbytes, "size")])
    rows += [[f"reserved: {name}", show(nbytes, "size")] for name, nbytes in (reserved or {}).items() if nbytes]
    if len(memory.stages) > 1:
        rows += [[f"stage {stage}", show(nbytes, "size")] for stage, nbytes in enumerate(memory.stages)]
    if memory.host_bytes:
        rows.append(["host", show(memory.host_bytes, "size")])
    return plain_text.table(rows, align="lrl")
