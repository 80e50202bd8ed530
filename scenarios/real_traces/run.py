"""A real run: the traces of its ranks, checked against one another, and what they say of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import median, stdev

from clustersim.scenarios.real_traces.breakdown import Late, breakdown, latest, mean
from clustersim.scenarios.real_traces.kernels_and_communications import with_waits
from clustersim.scenarios.real_traces.rank_trace import RankTrace, rank_trace
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import TraceError

UNUSUAL, ENOUGH = 1.25, 4
"""A step that is so many times as long as the median is unusual; it is left out if so many others remain, or more."""

SUFFIXES = (".json", ".json.gz", ".trace", ".gz", ".sqlite")
"""Names of traces in a folder."""


@dataclass(frozen=True)
class RealRun:
    """The *traces* of ranks of one run, with the waits of their communications, by rank.

    *unusual*: the numbers of the steps that are left out, since they were longer than the others.
    """

    traces: tuple[RankTrace, ...]
    unusual: tuple[int, ...] = ()

    @cached_property
    def breakdowns(self) -> dict[int, dict[str, float]]:
        """The seconds of a step by part, for each rank."""
        return {trace.rank: breakdown(trace) for trace in self.traces}

    @cached_property
    def parts(self) -> dict[str, float]:
        """The mean over the ranks."""
        return mean(list(self.breakdowns.values()))

    @cached_property
    def step_time(self) -> float:
        """The mean step time of the ranks, s."""
        return sum(trace.step_time for trace in self.traces) / len(self.traces)

    @cached_property
    def spread(self) -> float:
        """Twice the standard deviation of the step, the mean of the ranks, s; 0 for one step."""
        steps = [[step.seconds for step in trace.steps] for trace in self.traces]
        means = [sum(one) / len(one) for one in zip(*steps, strict=False)]
        return 2.0 * stdev(means) if len(means) > 1 else 0.0

    @cached_property
    def late(self) -> Late | None:
        """The latest rank; None with the trace of one rank only."""
        return latest(self.breakdowns)

    @property
    def world_size(self) -> int:
        """The number of ranks of the job, with or without a trace."""
        return max(trace.world_size for trace in self.traces)

    @property
    def on_gpu(self) -> bool:
        """True if the traces have kernels of GPUs."""
        return self.traces[0].on_gpu


def run_of(paths: Sequence[Path], fastest: int | None = None) -> RealRun:
    """Return the run of the traces at *paths*, files or folders of files; of its steps only the *fastest* if given.

    Raises `TraceError`.
    """
    traces = [rank_trace(path) for path in _files(paths)]
    by_rank: dict[int, RankTrace] = {}
    for trace in traces:
        if trace.rank in by_rank:
            first = by_rank[trace.rank].path
            raise TraceError(f"{trace.path}: is of rank {trace.rank}, and so is {first}; give one trace of each rank")
        by_rank[trace.rank] = trace
    _same(traces, lambda trace: f"{trace.world_size} ranks")
    _same(traces, lambda trace: "a GPU" if trace.on_gpu else "no GPU")
    common = _with_common_window(_common_steps(by_rank))
    unusual = _unusual(common) if fastest is None else _slower(common, fastest)
    if unusual:
        common = {rank: _without(trace, unusual) for rank, trace in common.items()}
    return RealRun(tuple(with_waits([common[rank] for rank in sorted(common)])), unusual)


def _with_common_window(traces: dict[int, RankTrace]) -> dict[int, RankTrace]:
    """Return *traces* of a single step on GPUs with its begin and end on any rank, if their clocks agree.

    On one rank alone, the waits before its first and after its last kernel are not seen.
    """
    if any(len(trace.steps) > 1 or not trace.on_gpu for trace in traces.values()):
        return traces
    begins, ends = ([trace.origin + trace.steps[0][n] for trace in traces.values()] for n in (1, 2))
    if max(begins) >= min(ends):
        return traces
    return {
        rank: replace(
            trace,
            steps=(trace.steps[0]._replace(begin=min(begins) - trace.origin, end=max(ends) - trace.origin),),
            own_end=trace.steps[0].end,
        )
        for rank, trace in traces.items()
    }


def _unusual(traces: Mapping[int, RankTrace]) -> tuple[int, ...]:
    """Return the numbers of the steps that are much longer than the median."""
    means = _means(traces)
    found = tuple(number for number, mean in means.items() if mean > UNUSUAL * median(means.values()))
    return found if len(means) - len(found) >= ENOUGH else ()


def _slower(traces: Mapping[int, RankTrace], fastest: int) -> tuple[int, ...]:
    """Return the numbers of all steps but the *fastest* ones."""
    means = _means(traces)
    return tuple(sorted(sorted(means, key=lambda number: means[number])[fastest:]))


def _means(traces: Mapping[int, RankTrace]) -> dict[int, float]:
    """Return the mean duration over the ranks of each step, by its number, s."""
    seconds: dict[int, list[float]] = {}
    for trace in traces.values():
        for step in trace.steps:
            seconds.setdefault(step.number, []).append(step.seconds)
    return {number: sum(several) / len(several) for number, several in seconds.items()}


def _without(trace: RankTrace, numbers: Sequence[int]) -> RankTrace:
    return replace(trace, steps=tuple(step for step in trace.steps if step.number not in numbers))


def _files(paths: Sequence[Path]) -> list[Path]:
    found = []
    for path in paths:
        if path.is_dir():
            inside = sorted(one for one in path.iterdir() if one.is_file() and one.name.endswith(SUFFIXES))
            if not inside:
                raise TraceError(f"{path}: has no traces (.json, .json.gz, .sqlite)")
            found += inside
        else:
            found.append(path)
    return found


def _same(traces: Sequence[RankTrace], what: Callable[[RankTrace], str]) -> None:
    for trace in traces[1:]:
        if what(trace) != what(traces[0]):
            first, other = traces[0], trace
            raise TraceError(
                f"{other.path}: is of a run with {what(other)}, but {first.path} of one with {what(first)}; give the "
                "traces of one run"
            )


def _common_steps(traces: Mapping[int, RankTrace]) -> dict[int, RankTrace]:
    """Return *traces* with the steps that all of them have."""
    if not all(trace.marked for trace in traces.values()):
        return dict(traces)
    numbers = set.intersection(*({step.number for step in trace.steps} for trace in traces.values()))
    if not numbers:
        raise TraceError("the traces have no training step in common; record the same ProfilerStep on all ranks")
    return {
        rank: replace(trace, steps=tuple(step for step in trace.steps if step.number in numbers))
        for rank, trace in traces.items()
    }
