"""The gap between a real step and the simulated one, attributed to causes that sum to it.

Both steps are divided into the same parts, so the differences of the parts sum to the gap. If one rank is later than in
the simulation, the gap is explained on that rank. What it has more than the others is its lateness, the rest are the
other causes.

A real run beside the simulation of a scenario.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from clustersim.scenarios.real_traces.breakdown import DEPENDENCY, GAPS, WAITS, Late, Noise, breakdown, latest, mean
from clustersim.scenarios.real_traces.kernels_and_communications import (
    MESSAGES,
    ExposedTime,
    Size,
    by_layer,
    family,
    large,
    longest,
    overlaps,
    sizes,
)
from clustersim.scenarios.real_traces.pieces_of_work import COPY, HOST, LOADING, PHASES, WAITING
from clustersim.scenarios.real_traces.rank_trace import RankTrace, simulated
from clustersim.scenarios.real_traces.run import RealRun
from clustersim.scenarios.run.running import simulated as simulate
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import TraceError

SIGNIFICANT, WITHOUT_GPU = 0.05, 0.2
"""Share of the simulated step from which a longer duration is named; without a GPU ranks share processors, and healthy
steps of `tests.benchmarks.explain` differ by up to 17 % from recording to recording."""

STRUCTURAL, CERTAIN = ("other_sizes", "missing_overlap"), 0.02
"""Causes that are seen in what was sent, and when, not in durations; share of the step from which they are named."""

NOISE = "noise"
"""The kind of a cause that is no fault: a rank is late by chance, or by its processor."""

LATE = 0.02
"""Share of the simulated step from which one rank is later than the others on purpose or not."""

WORST = 0.1
"""Share of a cause from which a kernel or a layer is named with it."""

OTHER_SIZES = 0.25
"""Relative difference of the number or the mean size of communications from which they are others than simulated."""

Parts = Mapping[str, float]


class Cause(NamedTuple):
    """A cause of the gap: its *kind*, *seconds* of a step, negative if the real step is faster, and the subject.

    *subject*: the rank that is late, the phase of kernels, or the kind of communication. *text*: the cause in words.
    *measured* and *simulated*: of communications of other sizes the mean bytes; of slow ones the seconds of a step.
    """

    kind: str
    seconds: float
    text: str
    subject: str = ""
    measured: float = 0.0
    simulated: float = 0.0


@dataclass(frozen=True)
class Gap:
    """The *causes* of the difference between *real* and *simulated* step time (s), the largest first.

    *spread*: by how much the real steps vary, or the operators in them, s. *calls*: the simulated communications.
    """

    real: float
    simulated: float
    causes: tuple[Cause, ...]
    spread: float
    on_gpu: bool = True
    calls: tuple[Size, ...] = ()

    @property
    def seconds(self) -> float:
        """Real minus simulated, s."""
        return self.real - self.simulated

    @property
    def threshold(self) -> float:
        """Seconds from which a longer duration is named: more than the steps themselves vary."""
        return max((SIGNIFICANT if self.on_gpu else WITHOUT_GPU) * self.simulated, self.spread)

    @property
    def first(self) -> Cause | None:
        """The first cause of a slower step; None if none is sure.

        Durations count by what exceeds the variation of the steps. Numbers, sizes and the overlap of communications do
        not vary from step to step.
        """
        sure = [cause for cause in self.causes if cause.kind != NOISE and cause.seconds > self._least(cause)]
        return max(sure, key=self._beyond, default=None)

    def _least(self, cause: Cause) -> float:
        return CERTAIN * self.simulated if cause.kind in STRUCTURAL else self.threshold

    def _beyond(self, cause: Cause) -> float:
        return cause.seconds - (0.0 if cause.kind in STRUCTURAL else self.spread)


def gap(run: RealRun, simulated: Sequence[RankTrace], gpu: Accelerator | None = None) -> Gap:
    """Return the gap of *run* to the *simulated* traces of the same ranks; *gpu* prices single kernels."""
    expected = {trace.rank: breakdown(trace) for trace in simulated}
    step = sum(trace.step_time for trace in simulated) / len(simulated)
    late = latest(run.breakdowns, expected)
    if late is not None and late.seconds < LATE * step:
        late = None
    noise = Noise(run.traces)
    hidden = late is not None and noise.hides(late, LATE * step)
    ranks = [late.rank] if late else list(expected)
    real, should = (mean([several[rank] for rank in ranks]) for several in (run.breakdowns, expected))
    differences = _differences(run, simulated, ranks, real, should, late.because if late else {})
    of_ranks = [[trace for trace in traces if trace.rank in ranks] for traces in (run.traces, simulated)]
    above = [(one.phase, one.name, one.excess) for one in longest(of_ranks[0], gpu)] + _of_layers(*of_ranks)
    causes = [
        *(_noise(late, noise) if late and hidden else _late(late)),
        *(_with_kernels(cause, above) for cause in differences),
    ]
    rest = run.step_time - step - sum(cause.seconds for cause in causes)
    causes.append(Cause("other", rest, "not attributed: steps of the ranks differ in length"))
    ordered = sorted((cause for cause in causes if cause.seconds), key=lambda cause: -cause.seconds)
    varying = sum(noise.varying.values()) / len(noise.varying)
    return Gap(run.step_time, step, tuple(ordered), max(run.spread, varying), run.on_gpu, tuple(sizes(simulated)))


def _late(late: Late | None) -> Iterator[Cause]:
    if late is not None:
        what = ", ".join(f"{part} {seconds * 1e3:.2f} ms" for part, seconds in list(late.because.items())[:3])
        text = f"rank {late.rank} is late and the others wait for it: longer {what}"
        yield Cause("late_rank", late.seconds, text, str(late.rank))


def _noise(late: Late, noise: Noise) -> Iterator[Cause]:
    """Yield the lateness of a rank as noise: it is attributed, but nobody is blamed."""
    processor = noise.processor(late.rank)
    why = f"operators and gaps of a rank vary by up to {noise.most * 1e3:.2f} ms a step"
    if processor > late.seconds / 2:
        why = f"all its operators alike take longer, {processor * 1e3:.2f} ms: its processor is slower or busier"
    yield Cause(NOISE, late.seconds, f"rank {late.rank} is behind the others, within the noise: {why}", str(late.rank))


def _differences(
    run: RealRun,
    simulated: Sequence[RankTrace],
    ranks: Sequence[int],
    real: Parts,
    should: Parts,
    explained: Parts,
) -> Iterator[Cause]:
    """Yield the causes other than a late rank; *explained*: seconds by part that are those of the late rank."""

    def more(*parts: str) -> float:
        return sum(real.get(part, 0.0) - should.get(part, 0.0) - explained.get(part, 0.0) for part in parts)

    for phases in _phases(run, real, should):
        yield Cause("kernels", more(*phases), _kernels_text(phases, real, should), phases[0])
    known = {*PHASES, *WAITS, COPY, LOADING, HOST, GAPS}
    kinds = dict.fromkeys(part for part in {**real, **should} if part not in known)
    for kind in dict.fromkeys(map(family, kinds)):
        extra = more(*(part for part in kinds if family(part) == kind))
        yield from _communication(run, simulated, ranks, kind, extra)
    if run.on_gpu:
        yield Cause("launch_bound", more(HOST, GAPS), "the GPU waits for the host: launches come late")
    yield Cause("loading", more(LOADING), "the host waits for samples")
    yield Cause("copies", more(COPY), "copies between GPU and host that nothing hides")
    yield Cause("waits", more(WAITING, DEPENDENCY), "waits for other ranks and streams: pipeline bubble, late partners")


def _phases(run: RealRun, real: Parts, should: Parts) -> list[tuple[str, ...]]:
    """Return the parts of computation that are compared: each phase, or all together if only one side divides it.

    Without a GPU, computation includes the work of the host between its operators.
    """
    between = () if run.on_gpu else (HOST, GAPS)
    present = [{phase for phase in PHASES if parts.get(phase, 0.0) > 0} for parts in (real, should)]
    if between or present[0] != present[1]:
        return [(*PHASES, *between)]
    return [(phase,) for phase in PHASES if phase in present[0]]


def _kernels_text(phases: Sequence[str], real: Parts, should: Parts) -> str:
    takes, priced = (sum(parts.get(phase, 0.0) for phase in phases) for parts in (real, should))
    how = f"{takes / priced:.2f} times the simulated time" if priced else "the simulation has none"
    which = f"of the {phases[0]} phase" if len(phases) == 1 else "of all phases"
    return f"kernels {which}: {how}"


def _of_layers(real: Sequence[RankTrace], simulated: Sequence[RankTrace]) -> list[tuple[str, str, float]]:
    """Return (phase, layer, seconds above the simulated ones) of the layers that both name."""
    takes, should = by_layer(real), by_layer(simulated)
    return [(phase, layer, takes[phase, layer] - should[phase, layer]) for phase, layer in takes.keys() & should.keys()]


def _with_kernels(cause: Cause, above: Sequence[tuple[str, str, float]]) -> Cause:
    """Return *cause*; if kernels are slower than priced, its text names the products and layers that are most so.

    *above*: (phase, name, seconds of a step above the price).
    """
    if cause.kind != "kernels" or cause.seconds <= 0:
        return cause
    mine = [(seconds, name) for phase, name, seconds in above if phase == cause.subject]
    named = [
        f"{name} {seconds * 1e3:+.2f} ms" for seconds, name in sorted(mine)[::-1] if seconds > WORST * cause.seconds
    ]
    return cause._replace(text=f"{cause.text}; above their price: {', '.join(named[:2])}") if named else cause


def _communication(
    run: RealRun, simulated: Sequence[RankTrace], ranks: Sequence[int], kind: str, extra: float
) -> Iterator[Cause]:
    """Yield the causes of *extra* exposed seconds of a *kind* of communication."""
    real = _mean_overlap([trace for trace in run.traces if trace.rank in ranks], kind)
    should = _mean_overlap([trace for trace in simulated if trace.rank in ranks], kind)
    missing = max(should.hidden * min(1.0, real.seconds / should.seconds if should.seconds else 0.0) - real.hidden, 0.0)
    missing = min(missing, max(extra, 0.0))
    others = other_sizes(run.traces, simulated, kind)
    if others is not None and others.measured > others.simulated:
        # nothing can be hidden before the gradients of a large bucket are complete
        missing = 0.0
    hidden = f"{real.hidden * 1e3:.2f} ms a step are hidden behind computation, simulated {should.hidden * 1e3:.2f} ms"
    yield Cause("missing_overlap", missing, f"{kind} overlaps less: {hidden}", kind)
    longer = f"{kind} takes longer: {real.seconds * 1e3:.2f} ms a step, simulated {should.seconds * 1e3:.2f} ms"
    slow = Cause("slow_collectives", 0.0, longer, kind, real.seconds, should.seconds)
    yield (others or slow)._replace(seconds=extra - missing)


def _mean_overlap(traces: Sequence[RankTrace], kind: str) -> ExposedTime:
    found = [overlaps(trace).get(kind, ExposedTime(0.0, 0.0)) for trace in traces]
    return ExposedTime(*(sum(column) / len(found) for column in zip(*found, strict=True)))


def other_sizes(real: Sequence[RankTrace], simulated: Sequence[RankTrace], kind: str) -> Cause | None:
    """Return the cause that communications of *kind* differ in number or size; None if they do not."""
    if kind == MESSAGES:
        return None
    rows = [large(sizes(traces), kind) for traces in (real, simulated)]
    counts = [sum(one.per_step for one in row) for row in rows]
    if not all(counts):
        return None
    means = [
        sum(one.per_step * (one.call.nbytes or 0.0) for one in row) / count
        for row, count in zip(rows, counts, strict=True)
    ]
    if all(abs(a - b) <= OTHER_SIZES * max(a, b) for a, b in (counts, means)):
        return None
    texts = [f"{count:.4g} of {nbytes / 1e6:.4g} MB" for count, nbytes in zip(counts, means, strict=True)]
    text = f"{kind} of other sizes (buckets): {texts[0]} a step, simulated {texts[1]}"
    return Cause("other_sizes", 0.0, text, kind, *means)


def compared(run: RealRun, scenario: Scenario) -> tuple[Timeline, Gap]:
    """Simulate *scenario*; return its timeline, and the gap of *run* to it.

    Raises `ScenarioError` for a scenario without a training step, `TraceError` if the run has other ranks.
    """
    if scenario.variants:
        names = ", ".join(list(scenario.variants)[:8])
        raise TraceError(f"{scenario.name} has variants ({names}); compare the run with a scenario that has none")
    scenario.check_trains("explain")
    timeline = simulate(scenario, scenario.schedule())
    ranks = len(timeline.gpu_ranks)
    if run.world_size != ranks:
        raise TraceError(
            f"{run.traces[0].path}: is of a run with {run.world_size} ranks, but {scenario.name} has {ranks}; "
            "set the nodes of its cluster to those of the run"
        )
    gpu = scenario.cluster().accelerator(scenario.derived.devices[0])
    return timeline, gap(run, simulated(timeline, [trace.rank for trace in run.traces]), gpu)
