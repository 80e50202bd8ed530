"""The profile of a simulated training step: time, FLOPs and bytes of every operation, and what operators save."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from scenarios.build.built import BuiltScenario
from scenarios.build.schedule import model_share
from simulator.analysis.operators import BOUNDS, OperatorTime, operator_times
from simulator.schedule import Compute
from simulator.timeline import Timeline
from workloads.model import Layer
from workloads.operators.layer import OperatorLayer

OUTSIDE = "outside the layers"
"""The kind of ops without a layer: the optimizer, and what belongs to communication."""


@dataclass
class Row:
    """The sum of several operations: seconds by phase and by what bounds them, FLOPs, bytes moved, kernels, and
    *saved*, the bytes that one micro-batch keeps for its backward pass.
    """

    by_phase: dict[str, float] = field(default_factory=dict)
    by_bound: dict[str, float] = field(default_factory=lambda: dict.fromkeys(BOUNDS, 0.0))
    flops: float = 0.0
    nbytes: float = 0.0
    kernels: float = 0.0
    saved: float = 0.0

    def add(self, time: OperatorTime, factor: float = 1.0) -> None:
        """Add *time*, multiplied by *factor*."""
        self.by_phase[time.phase] = self.by_phase.get(time.phase, 0.0) + factor * time.seconds
        for name, seconds in zip(BOUNDS, time.by_bound, strict=True):
            self.by_bound[name] += factor * seconds
        self.flops += factor * time.flops
        self.nbytes += factor * time.nbytes
        self.kernels += factor * time.kernels

    @classmethod
    def sum(cls, rows: Iterable[Row]) -> Row:
        """Return the sum of *rows*."""
        whole = cls()
        for row in rows:
            for name, seconds in row.by_phase.items():
                whole.by_phase[name] = whole.by_phase.get(name, 0.0) + seconds
            whole.by_bound = {name: seconds + row.by_bound[name] for name, seconds in whole.by_bound.items()}
            for name in ("flops", "nbytes", "kernels", "saved"):
                setattr(whole, name, getattr(whole, name) + getattr(row, name))
        return whole

    @property
    def seconds(self) -> float:
        """All of its time."""
        return sum(self.by_phase.values())

    @property
    def bound(self) -> str:
        """What bounds most of its time; none if it takes no time."""
        return max(BOUNDS, key=lambda name: self.by_bound[name]) if self.seconds else ""


@dataclass(frozen=True)
class Profile:
    """The *times* of one step of the run *name*, the mean over its GPUs.

    *step_time* in s. *kinds*: the kind of each layer by name. *held*: how many layers of a kind a GPU has, the mean.
    *saved*: bytes that one micro-batch saves, by kind of layer and operator, in one layer, if it is not recomputed.
    """

    name: str
    step_time: float
    times: tuple[OperatorTime, ...]
    kinds: Mapping[str, str]
    held: Mapping[str, float]
    saved: Mapping[tuple[str, str], float]

    @property
    def seconds(self) -> float:
        """Time in which a GPU computes."""
        return sum(time.seconds for time in self.times)

    def kind(self, layer: str) -> str:
        """The kind of the layer of that name."""
        return self.kinds.get(layer, OUTSIDE)

    def by_operator(self) -> dict[str, Row]:
        """The rows of all operators on a GPU, the longest first."""
        rows = _grouped(self.times, lambda time: time.operation.operator)
        for (kind, operator), nbytes in self.saved.items():
            rows.setdefault(operator, Row()).saved += nbytes * self.held[kind]
        return _longest_first(rows)

    def by_operation(self) -> dict[str, Row]:
        """The rows of all elementary operations on a GPU, the longest first."""
        return _longest_first(_grouped(self.times, lambda time: time.operation.name))

    def by_class(self) -> dict[str, Row]:
        """The rows of all classes of operations on a GPU, the longest first."""
        return _longest_first(_grouped(self.times, lambda time: time.operation.kind))

    def of_one_layer(self) -> dict[str, dict[str, Row]]:
        """By kind of layer: the rows of the operators of one layer, the mean over the layers of that kind."""
        found: dict[str, dict[str, Row]] = {}
        for kind in self.held:
            rows: defaultdict[str, Row] = defaultdict(Row)
            for time in self.times:
                if self.kind(time.layer) == kind:
                    rows[time.operation.operator].add(time, 1.0 / self.held[kind])
            for (own, operator), nbytes in self.saved.items():
                if own == kind:
                    rows[operator].saved += nbytes
            found[kind] = _longest_first(rows)
        return found

    def whole(self) -> Row:
        """The sum of all rows."""
        return Row.sum(self.by_operator().values())


def profile(scenario: BuiltScenario, timeline: Timeline) -> Profile:
    """Return the profile of *timeline*, a simulated step of *scenario*, which trains a model."""
    assert scenario.model is not None
    model = model_share(scenario.model, scenario.specification.parallelism.parts, scenario.document)
    kinds = {layer.name: layer.kind for layer in model.layers}
    held = _held(timeline, kinds)
    counts = _ranks_of_layers(timeline)
    saved: defaultdict[tuple[str, str], float] = defaultdict(float)
    whole = Counter[str]()
    for layer in model.layers:
        whole[layer.kind] += counts[layer.name]
    for layer in model.layers:
        for operator, nbytes in saved_bytes(layer, scenario.derived.micro_batch_size).items():
            saved[layer.kind, operator] += nbytes * counts[layer.name] / max(1, whole[layer.kind])
    times = tuple(operator_times(timeline, scenario.software))
    return Profile(scenario.name, timeline.step_time, times, kinds, held, saved)


def saved_bytes(layer: Layer, samples: int) -> dict[str, float]:
    """Return the bytes that each operator of *layer* keeps of a micro-batch of *samples*; only those that keep any."""
    if not isinstance(layer, OperatorLayer):
        nbytes = layer.activation_bytes(samples)
        return {"measured": nbytes} if nbytes else {}
    found: defaultdict[str, float] = defaultdict(float)
    for operator in layer.operators:
        found[operator.operation.operator] += operator.kept_bytes(samples)
    return {name: nbytes for name, nbytes in found.items() if nbytes}


def _held(timeline: Timeline, kinds: Mapping[str, str]) -> dict[str, float]:
    """Return how many layers of each kind a GPU has, the mean; only kinds that some GPU has."""
    found: defaultdict[str, float] = defaultdict(float)
    for layer, ranks in _ranks_of_layers(timeline).items():
        if layer in kinds:
            found[kinds[layer]] += ranks
    gpus = sum(len(ranks) for rank, ranks in timeline.classes.items() if timeline.schedule.program(rank).on == "gpu")
    return {kind: count / max(1, gpus) for kind, count in found.items()}


def _ranks_of_layers(timeline: Timeline) -> Counter[str]:
    """Return the number of GPUs that compute each layer."""
    found = Counter[str]()
    for rank, ranks in timeline.classes.items():
        program = timeline.schedule.program(rank)
        if program.on == "gpu":
            own = dict.fromkeys(op.layer for op in program.distinct() if isinstance(op, Compute) and op.layer)
            found.update(dict.fromkeys(own, len(ranks)))
    return found


def _grouped(times: Iterable[OperatorTime], key: Callable[[OperatorTime], str]) -> dict[str, Row]:
    rows: defaultdict[str, Row] = defaultdict(Row)
    for time in times:
        rows[key(time)].add(time)
    return rows


def _longest_first(rows: Mapping[str, Row]) -> dict[str, Row]:
    return dict(sorted(rows.items(), key=lambda item: -item[1].seconds))
