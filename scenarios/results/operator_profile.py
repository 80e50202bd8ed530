"""The profile of a simulated training step: time, FLOPs and bytes of every operation, what operators save, and the
time of one layer; as tables of text and as numbers for JSON.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.schedule import model_share
from clustersim.simulator.analysis.operator_times import BOUNDS, OperatorTime, operator_times
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.units import show
from clustersim.simulator.schedule.ops import Compute, Op
from clustersim.workloads.operators.model import Layer, Model, OperatorLayer

OUTSIDE = "outside the layers"
"""The kind of ops without a layer: the optimizer, and what belongs to communication."""


@dataclass
class OperatorRow:
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
    def sum(cls, rows: Iterable[OperatorRow]) -> OperatorRow:
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

    def by_operator(self) -> dict[str, OperatorRow]:
        """The rows of all operators on a GPU, the longest first."""
        rows = _grouped(self.times, lambda time: time.operation.operator)
        for (kind, operator), nbytes in self.saved.items():
            rows.setdefault(operator, OperatorRow()).saved += nbytes * self.held[kind]
        return _longest_first(rows)

    def by_operation(self) -> dict[str, OperatorRow]:
        """The rows of all elementary operations on a GPU, the longest first."""
        return _longest_first(_grouped(self.times, lambda time: time.operation.name))

    def by_class(self) -> dict[str, OperatorRow]:
        """The rows of all classes of operations on a GPU, the longest first."""
        return _longest_first(_grouped(self.times, lambda time: time.operation.kind))

    def of_one_layer(self) -> dict[str, dict[str, OperatorRow]]:
        """By kind of layer: the rows of the operators of one layer, the mean over the layers of that kind."""
        found: dict[str, dict[str, OperatorRow]] = {}
        for kind in self.held:
            rows: defaultdict[str, OperatorRow] = defaultdict(OperatorRow)
            for time in self.times:
                if self.kind(time.layer) == kind:
                    rows[time.operation.operator].add(time, 1.0 / self.held[kind])
            for (own, operator), nbytes in self.saved.items():
                if own == kind:
                    rows[operator].saved += nbytes
            found[kind] = _longest_first(rows)
        return found

    def whole(self) -> OperatorRow:
        """The sum of all rows."""
        return OperatorRow.sum(self.by_operator().values())


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


def _grouped(times: Iterable[OperatorTime], key: Callable[[OperatorTime], str]) -> dict[str, OperatorRow]:
    rows: defaultdict[str, OperatorRow] = defaultdict(OperatorRow)
    for time in times:
        rows[key(time)].add(time)
    return rows


def _longest_first(rows: Mapping[str, OperatorRow]) -> dict[str, OperatorRow]:
    return dict(sorted(rows.items(), key=lambda item: -item[1].seconds))


PHASES = ("forward", "backward", "recompute", "optimizer", "other")
"""Columns of time; those without any time are left out."""


def tables(profile: Profile) -> str:
    """Return tables by operator, elementary operation and class, and of one layer of each kind."""
    head = (
        f"{show(profile.seconds, 'time')} of computation in a step of {show(profile.step_time, 'time')}, "
        "the mean over the GPUs; saved: activations that one micro-batch keeps, if they are not recomputed"
    )
    whole = profile.whole()
    parts = [head, _table("operator", profile.by_operator(), whole)]
    parts += [_table("operation", profile.by_operation(), whole), _table("class", profile.by_class(), whole)]
    for kind, rows in profile.of_one_layer().items():
        name = f"of one {kind} layer" if kind.islower() else f"of one {kind}"
        parts.append(_table(f"{name} ({profile.held[kind]:.4g} a GPU)", rows, OperatorRow.sum(rows.values())))
    return "\n\n".join(parts)


def _table(title: str, rows: Mapping[str, OperatorRow], whole: OperatorRow) -> str:
    phases = [phase for phase in PHASES if whole.by_phase.get(phase)]
    header = [title, *phases, "share", "FLOPs", "moved", "saved", "kernels", "bound by"]
    lines = [_line(name, row, phases, whole) for name, row in {**rows, "all": whole}.items()]
    if not any(row.saved for row in rows.values()):
        place = header.index("saved")
        header, *lines = ([*line[:place], *line[place + 1 :]] for line in (header, *lines))
    return plain_text.table(lines, header, "l" + "r" * (len(header) - 2) + "l")


def _line(name: str, row: OperatorRow, phases: list[str], whole: OperatorRow) -> list[str]:
    return [
        name,
        *(show(seconds, "time") if (seconds := row.by_phase.get(phase, 0.0)) else "" for phase in phases),
        f"{row.seconds / whole.seconds:.1%}" if whole.seconds else "",
        show(row.flops, "rate", 3).removesuffix("/s") if row.flops else "",
        show(row.nbytes, "size", 3) if row.nbytes else "",
        show(row.saved, "size", 3) if row.saved else "",
        f"{row.kernels:,.0f}",
        bounds(row),
    ]


def bounds(row: OperatorRow) -> str:
    """Return what bounds *row*, with its share of the time where it is not all of it."""
    if not row.seconds:
        return ""
    share = row.by_bound[row.bound] / row.seconds
    return row.bound if share > 0.995 else f"{row.bound} {share:.0%}"


def summary(profile: Profile) -> dict[str, Any]:
    """Return the numbers of *profile* for JSON: s, FLOPs and bytes of one step on a GPU, the mean over the GPUs."""
    rows: dict[tuple[str, str, str, str, str], OperatorRow] = {}
    for time in profile.times:
        key = profile.kind(time.layer), time.operation.operator, time.operation.name, time.operation.kind, time.phase
        rows.setdefault(key, OperatorRow()).add(time)
    return {
        "name": profile.name,
        "step_time_s": profile.step_time,
        "computing_s": profile.seconds,
        "layers_per_gpu": dict(profile.held),
        "operators": [
            {
                "layers": "" if kind == OUTSIDE else kind,
                "operator": operator,
                "operation": operation,
                "class": group,
                "phase": phase,
                "seconds": row.seconds,
                "bound": row.bound,
                "bound_s": {name: row.by_bound[name] for name in BOUNDS},
                "flops": row.flops,
                "bytes": row.nbytes,
                "kernels": row.kernels,
            }
            for (kind, operator, operation, group, phase), row in rows.items()
        ],
        "saved_bytes_per_layer": [
            {"layers": kind, "operator": operator, "bytes": nbytes}
            for (kind, operator), nbytes in profile.saved.items()
        ],
    }


BACKWARD = frozenset("RBIW")
"""Phases that papers count as backward; recomputation is among them (Korthikanti et al. 2022, table 4)."""


def layer_seconds(timeline: Timeline, model: Model) -> dict[str, float]:
    """Seconds of one layer and micro-batch, ``forward``, ``backward`` and ``both``.

    The mean over the layers of the most frequent kind of *model*, the first and last layer excluded, on the first rank
    that has any. Ops on the compute stream count: computation, and exchanges that block it.
    """
    inner = model.layers[1:-1] or model.layers
    ((commonest, _),) = Counter(layer.kind for layer in inner).most_common(1)
    names = {layer.name for layer in inner if layer.kind == commonest}
    for rank in timeline.gpu_ranks:
        if any(op.layer in names for op in timeline.schedule.program(rank).distinct()):
            return _means(timeline, rank, names)
    return {"forward": 0.0, "backward": 0.0, "both": 0.0}


def _means(timeline: Timeline, rank: int, names: set[str]) -> dict[str, float]:
    program, written = timeline.schedule.program(rank), timeline.of(rank)
    kind = program.column(lambda op: _kind(op, names), np.int64)[written.op]
    passes = program.column(lambda op: op.name.endswith(f".{op.layer}"))[written.op]
    seconds = np.bincount(kind, written.end - written.begin, 3)
    count = max(1.0, float(passes[kind == 1].sum()))
    means = {"forward": float(seconds[1]) / count, "backward": float(seconds[2]) / count}
    return means | {"both": sum(means.values())}


def _kind(op: Op, names: set[str]) -> int:
    """1 for the forward pass of the layers *names* on the compute stream, 2 for the backward pass, else 0."""
    if op.layer not in names or op.action is None or op.stream != "compute":
        return 0
    return 1 if op.action.phase == "F" else 2 if op.action.phase in BACKWARD else 0
