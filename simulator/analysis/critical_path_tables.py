"""The critical path as text: three lines for a report, and tables of its composition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from clustersim.simulator.analysis.critical_path import COMPUTATION, NO_LAYER, CriticalPath, kind_of, kinds
from clustersim.simulator.analysis.intervals import ONE_INSTANT
from clustersim.simulator.analysis.timeline import Floats
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.units import show
from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER_TEXT

LEAST = 5e-4
"""Least share of the step time in a line; less would be printed as 0.0 %."""

MOST_NAMED = 3
"""Ranks, layers, or gains in a line at most."""

MOST_ROWS = 10
"""Rows of each table at most."""


def lines(path: CriticalPath) -> list[str]:
    """Return lines with *path* by kind, its ranks and layers, and upper bounds of gains.

    Three lines; none where the timeline takes no time.
    """
    step = path.timeline.step_time
    if not step:
        return []
    layers = {name: seconds for name, seconds in path.by_layer().items() if name != NO_LAYER}
    where = [_shares(_top({_rank(path, rank): s for rank, s in path.by_rank().items()}, step), step)]
    if _top(layers, step):
        where.append(_shares(_top(layers, step), step))
    gained = [f"{what} {show(s, 'time')} ({s / step:.1%})" for what, s in _top(gains(path.by_kind()), step).items()]
    return [
        f"critical path: {_shares(_top(path.by_kind(), step, len(path.kinds)), step)}",
        f"  mostly on {'; '.join(where)}",
        f"  would gain at most: {', '.join(gained)}",
    ]


def gains(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return upper bounds of the gains of changes, s, from the *seconds* on the critical path by kind.

    >>> gains({"compute": 6.0, "recompute": 2.0, "optimizer": 0.0, "tp": 1.0, "copy": 0.0})
    {'GPUs twice as fast': 4.0, 'no recomputation': 2.0, 'free tp communication': 1.0, 'free copies': 0.0}
    """
    named = {"copy": "free copies", "host": "no host delays", "recompute": "no recomputation"}
    found = {"GPUs twice as fast": sum(seconds[kind] for kind in COMPUTATION) / 2}
    found |= {named[kind]: s for kind, s in seconds.items() if kind == "recompute"}
    others = {kind: s for kind, s in seconds.items() if kind not in COMPUTATION}
    return found | {named.get(kind, f"free {kind} communication"): s for kind, s in others.items()}


def _top(seconds: Mapping[str, float], step: float, most: int = MOST_NAMED) -> dict[str, float]:
    """Return the largest of *seconds*, at most *most*, none below `LEAST` of a *step*."""
    greatest = sorted(seconds.items(), key=lambda item: -_rounded(item[1]))[:most]
    return {name: s for name, s in greatest if s >= LEAST * step}


def _rounded(seconds: float) -> float:
    """Return *seconds* without the last digits, in which equal times may differ."""
    return float(f"{seconds:.9g}")


def _shares(seconds: Mapping[str, float], step: float) -> str:
    return ", ".join(f"{name} {s / step:.1%}" for name, s in seconds.items())


def _rank(path: CriticalPath, rank: int) -> str:
    return f"rank {rank} ({path.timeline.schedule.program(rank).role})"


def tables(path: CriticalPath, slack: Mapping[int, Floats]) -> str:
    """Return tables of *path* by kind, layer and rank, and of its longest stretches and ops; *slack*: of all spans."""
    timeline, step = path.timeline, path.timeline.step_time
    if not step:
        return "no critical path: the timeline takes no time"
    mean = f", the mean of {timeline.steps_measured:.4g} steps" if timeline.steps_run > 1 else ""
    spans = "1 span" if len(path.op) == 1 else f"{len(path.op):,} spans"
    sections = [f"{show(step, 'time')}{mean}; {spans} on {len(path.by_rank())} of {timeline.world_size:,} ranks"]
    sections += [_table("by kind", ["time", "share", "spans without slack"], _by_kind(path, slack), "lrrr")]
    layers = {name or "no layer": seconds for name, seconds in path.by_layer().items()}
    ranks = {_rank(path, rank): seconds for rank, seconds in path.by_rank().items()}
    for title, seconds in (("by layer", layers), ("by rank", ranks)):
        sections.append(_table(title, ["time", "share"], _greatest(seconds, step), "lrr"))
    sections.append(_table("longest stretches", ["time", "rank", "from", "to", "mostly"], _stretches(path), "rrllll"))
    sections.append(_table("longest ops", ["time", "rank", "op", "layer", "kind"], _ops(path), "rrllll"))
    return "\n\n".join(sections)


def _table(title: str, header: Iterable[str], rows: Iterable[list[str]], align: str) -> str:
    return plain_text.table(rows, [title, *header], align)


def _by_kind(path: CriticalPath, slack: Mapping[int, Floats]) -> Iterator[list[str]]:
    step, counts = path.timeline.step_time, _without_slack(path, slack)
    for kind, seconds in path.by_kind().items():
        without, spans = counts[kind]
        if spans:
            yield [kind, show(seconds, "time"), f"{seconds / step:.1%}", f"{without / spans:.1%} of {spans:,}"]
    without, spans = (sum(column) for column in zip(*counts.values(), strict=True))
    yield ["all", show(step, "time"), "100.0%", f"{without / spans:.1%} of {spans:,}"]


def _without_slack(path: CriticalPath, slack: Mapping[int, Floats]) -> dict[str, tuple[int, int]]:
    """Return (spans without *slack*, all spans) on all ranks, by kind."""
    timeline = path.timeline
    names = kinds(timeline.schedule)
    place = {name: number for number, name in enumerate(names)}
    found = np.zeros((2, len(names)), np.int64)
    for rank, ranks in timeline.classes.items():
        program = timeline.schedule.program(rank)
        kind = program.column(lambda op: place[kind_of(op)], np.int64)[timeline.of(rank).op]
        none = slack[rank] <= 10 * ONE_INSTANT * timeline.makespan
        found += len(ranks) * np.stack([np.bincount(one, minlength=len(names)) for one in (kind[none], kind)])
    return {name: (int(found[0, number]), int(found[1, number])) for number, name in enumerate(names)}


def _greatest(seconds: Mapping[str, float], step: float) -> Iterator[list[str]]:
    top = sorted(seconds.items(), key=lambda item: -_rounded(item[1]))
    for name, s in top[:MOST_ROWS]:
        yield [name, show(s, "time"), f"{s / step:.1%}"]
    rest = sum(s for _, s in top[MOST_ROWS:])
    if len(top) > MOST_ROWS:
        yield [f"{len(top) - MOST_ROWS} others", show(rest, "time"), f"{rest / step:.1%}"]


def _stretches(path: CriticalPath) -> Iterator[list[str]]:
    """Yield the longest stretches on one rank, in order of time."""
    starts = np.flatnonzero(np.diff(path.rank, prepend=-1))
    ends = np.append(starts[1:], len(path.rank))
    seconds = path.end[ends - 1] - path.begin[starts]
    for place in np.sort(np.argsort(-seconds, kind="stable")[:MOST_ROWS]).tolist():
        first, after = int(starts[place]), int(ends[place])
        own = np.bincount(path.kind[first:after], path.seconds[first:after], len(path.kinds))
        mostly = f"{path.kinds[int(own.argmax())]} {own.max() / max(own.sum(), 1e-300):.0%}"
        begin, length = show(float(path.begin[first]), "time"), show(float(seconds[place]), "time")
        yield [f"at {begin}", length, f"{path.rank[first]}", _name(path, first), _name(path, after - 1), mostly]


def _ops(path: CriticalPath) -> Iterator[list[str]]:
    """Yield the ops with most time on the path; those of all micro-batches and steps of a rank are added up."""
    found: dict[tuple[int, str], tuple[float, int, int]] = {}
    for rank in np.unique(path.rank).tolist():
        program, own = path.timeline.schedule.program(rank), np.flatnonzero(path.rank == rank)
        names = [op.name.replace(PLACEHOLDER_TEXT, "*") for op in program.distinct()]
        place = program.templated.places[path.op[own]]
        seconds, times = np.bincount(place, path.seconds[own]).tolist(), np.bincount(place).tolist()
        which, first = np.unique(place, return_index=True)
        for op, one in zip(which.tolist(), own[first].tolist(), strict=True):
            before, count, _ = found.get((rank, names[op]), (0.0, 0, one))
            found[rank, names[op]] = before + seconds[op], count + times[op], one
    for (rank, name), (length, count, one) in sorted(found.items(), key=lambda item: (-_rounded(item[1][0]), item[0]))[
        :MOST_ROWS
    ]:
        if length:
            kind, layer = path.kinds[path.kind[one]], path.layers[path.layer[one]]
            yield [f"{count:,} x", show(length, "time"), f"{rank}", name, layer, kind]


def _name(path: CriticalPath, place: int) -> str:
    return path.timeline.schedule.program(int(path.rank[place])).ops[int(path.op[place])].name
