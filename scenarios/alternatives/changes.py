"""What to change in a scenario: steps along one key, for less memory, a smaller bubble or a shorter step.

The values that a key may take are those of the `Space`. A change that a rule forbids is left out when it is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.memory_need import MemoryNeed, memory_need
from clustersim.simulator.analysis.metrics import Bubble
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.units import show
from clustersim.workloads.operators.stages import ENDS
from clustersim.workloads.parallelism.ddp import BUCKET_BYTES
from clustersim.workloads.parallelism.fsdp import FullyShardedDataParallel
from clustersim.workloads.parallelism.zero import Zero


@dataclass(frozen=True)
class Change:
    """*values* by dotted key in place of those that it *was* before, and in *words*; its effect when it is tried.

    *step_time*: with it, s. *need*: the memory of the tightest GPU with it.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    was: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""
    step_time: float | None = None
    need: MemoryNeed | None = None

    @property
    def fits(self) -> bool:
        """True if it has been tried and fits."""
        return self.need is not None and self.need.fits

    @property
    def options(self) -> str:
        """The change as options of the command line."""
        shown = {key: f'"{value}"' if isinstance(value, list) else value for key, value in self.values.items()}
        return " ".join(f"--set {key}={value}" for key, value in shown.items())

    @property
    def text(self) -> str:
        """The words, else the options."""
        return self.words or self.options

    def of(self, scenario: BuiltScenario) -> BuiltScenario:
        """Return *scenario* with the change. Raises `SimulatorError` if a rule forbids it."""
        return scenario.changed(self.values, self.text)


def change(scenario: BuiltScenario, values: Mapping[str, Any], words: str = "") -> Change:
    """Return the change of *scenario* to *values*."""
    return Change(values, {key: scenario.document.get(tuple(key.split("."))) for key in values}, words)


# Less memory.


def remedies(scenario: BuiltScenario) -> list[Change]:
    """Return changes of *scenario* that need less memory; those that cost least time come first."""
    space = Space(scenario)
    moves = (_precision, _sharding, _smaller_that_fits, _recompute, _cut)
    return [one for move in moves for one in move(scenario, space)]


def remedy_line(scenario: BuiltScenario) -> str:
    """Return the `remedies` of *scenario* that suffice, as one sentence, each with what it needs by an upper bound.

    If none suffices alone, it has all that help. More of the memory that is short is always among them: of a GPU, of
    the host, or of drives.
    """
    now = memory_need(scenario, scenario.schedule())
    short = now.short
    larger = f"nodes with more {short}" if short else "a GPU with more memory"
    tried = [one for one in with_needs(scenario, remedies(scenario)) if _bytes(one, short) < now.bytes_in(short)]
    enough = [one for one in tried if one.fits]
    told = [f"{one.text} ({one.need.amount_in(short)})" for one in enough or tried if one.need]
    if not told:
        return f"try {larger}"
    if enough:
        return f"try {', '.join(told)} or {larger}"
    return f"nothing suffices alone; try several of {', '.join(told)}, or {larger}"


def with_needs(scenario: BuiltScenario, several: Iterable[Change]) -> Iterator[Change]:
    """Yield those of *several* changes that can be made, with an upper bound of the memory that they need."""
    for one in several:
        try:
            changed = one.of(scenario)
            yield replace(one, need=memory_need(changed, changed.schedule()))
        except SimulatorError:
            continue


def _bytes(one: Change, short: str) -> float:
    assert one.need is not None
    return one.need.bytes_in(short)


def _precision(scenario: BuiltScenario, space: Space) -> Iterator[Change]:
    training = scenario.specification.training
    half = space.job.precisions[0]
    if training is not None and training.precision == "fp32" != half:
        yield change(scenario, {"training.precision": half}, f"precision: {half}")


def _sharding(scenario: BuiltScenario, space: Space) -> Iterator[Change]:
    """Yield the next stage of ZeRO; stages 2 and 3 do not go with a pipeline."""
    data, derived = scenario.specification.parallelism.data, scenario.derived
    if isinstance(data, FullyShardedDataParallel):
        if not data.reshard:
            yield change(scenario, {"parallelism.data.reshard": True}, "data: {reshard: true}")
        return
    stage = data.stage if isinstance(data, Zero) else 0
    further = {"method": "zero", "stage": stage + 1}
    stages = [one.get("stage") for one in space.choices("data", {"pp": derived.degree("pp")})]
    if derived.replicas > 1 and stage + 1 in stages:
        words = f"ZeRO-{stage + 1} (data: {{method: zero, stage: {stage + 1}}})"
        yield change(scenario, {"parallelism.data": further}, words)


def _smaller_that_fits(scenario: BuiltScenario, space: Space) -> Iterator[Change]:
    """Yield the largest smaller micro-batch that fits, or one sample."""
    size = scenario.derived.micro_batch_size
    smaller = [
        change(scenario, {"training.micro_batch_size": number}, f"micro_batch_size: {number} (now {size})")
        for number in range(size // 2, 0, -1)
        if size % number == 0
    ]
    fitting = (one for one in with_needs(scenario, smaller) if one.fits)
    yield from [one] if (one := next(fitting, smaller[-1] if smaller else None)) else []


def _recompute(scenario: BuiltScenario, space: Space) -> Iterator[Change]:
    """Yield the methods of recomputation beyond that of the scenario."""
    training = scenario.specification.training
    methods = space.choices("recompute", {})
    if training is None or training.recompute_method == "optimal":
        return
    now = training.recompute_method
    for method in methods[methods.index(now) + 1 :] if now in methods else [one for one in methods[-1:] if one != now]:
        yield change(scenario, {"training.recompute": method}, f"recompute: {method}")


def _cut(scenario: BuiltScenario, space: Space) -> Iterator[Change]:
    """Yield more tensor or pipeline parallelism, where replicas can be given up for it; micro-batches stay."""
    derived, parallelism = scenario.derived, scenario.specification.parallelism
    if derived.replicas % 2 or derived.by_stage or scenario.model is None:
        return
    # without a size a micro-batch is all that a replica has, and grows as replicas become fewer
    kept = {"training.micro_batch_size": derived.micro_batch_size, "parallelism.dp": "auto"}
    given = scenario.specification.training and scenario.specification.training.micro_batch_size
    told = "" if given else f" and micro_batch_size: {derived.micro_batch_size}"
    tp, pp = 2 * derived.degree("tp"), 2 * derived.degree("pp")
    wider = space.as_given().changed(tp=tp, micro_batch_size=derived.micro_batch_size)
    if parallelism.mode == "1d" and tp in space.choices("tp", {}) and space.allows(wider):
        yield change(scenario, {"parallelism.tp": tp, **kept}, f"tp: {tp}{told}")
    gathers = "parameters" in parallelism.data.sharded or "gradients" in parallelism.data.sharded
    if not gathers and len(scenario.model.layers) > pp:
        yield change(scenario, {"parallelism.pp": pp, **kept}, f"pp: {pp}{told}")


# A smaller bubble.


def against_bubble(scenario: BuiltScenario, causes: Bubble) -> Iterator[Change]:
    """Yield changes against the largest cause that a change of keys can lessen, the most promising first."""
    moves: list[Callable[[BuiltScenario, Bubble], Iterator[Change]]] = [_more_stages, _layout]
    for move in reversed(moves) if causes.unequal_stages > causes.fill_and_drain else moves:
        yield from move(scenario, causes)
    yield from _half_micro_batch(scenario)


def _more_stages(scenario: BuiltScenario, causes: Bubble) -> Iterator[Change]:
    """Yield an interleaved order: v virtual stages divide fill and drain by v (arXiv:2104.04473, section 2.2)."""
    parallelism, derived = scenario.specification.parallelism, scenario.derived
    pp, virtual = derived.degree("pp"), 2 * parallelism.stages_per_rank
    fitting = derived.micro_batches % pp == 0 and _layers(scenario) % (pp * virtual) == 0
    if parallelism.order_name in ("gpipe", "one_f_one_b", "interleaved") and fitting and parallelism.layout is None:
        values = {"parallelism.schedule": "interleaved", "parallelism.virtual_stages": virtual}
        yield change(scenario, values)


def _layout(scenario: BuiltScenario, causes: Bubble) -> Iterator[Change]:
    """Yield a layout with a layer fewer on the slowest stage, and one more on the stage with fewest layers.

    It promises a gain if the slowest stage works a whole layer longer than the mean.
    """
    parallelism, pp, layers = scenario.specification.parallelism, scenario.derived.degree("pp"), _layers(scenario)
    given = parallelism.layout
    counts = list(given) if isinstance(given, list) else [layers // pp] * pp if layers % pp == 0 else []
    if parallelism.stages_per_rank > 1 or not counts or causes.excess * layers / pp <= 1:
        return
    counts[causes.slowest] -= 1
    others = [stage for stage in range(pp) if stage != causes.slowest]
    counts[min(others, key=lambda stage: (counts[stage], abs(stage - pp / 2)))] += 1
    if counts[causes.slowest] > 0:
        yield change(scenario, {"parallelism.layout": counts})


def _layers(scenario: BuiltScenario) -> int:
    return sum(layer.kind not in ENDS for layer in scenario.model.layers) if scenario.model else 0


def _half_micro_batch(scenario: BuiltScenario) -> Iterator[Change]:
    if scenario.derived.micro_batch_size % 2 == 0:
        yield change(scenario, {"training.micro_batch_size": scenario.derived.micro_batch_size // 2})


# A shorter step.


def of_configuration(scenario: BuiltScenario) -> Iterator[Change]:
    """Yield changes that could shorten the step: micro-batch and bucket halved and doubled, no recomputation."""
    training, derived = scenario.specification.training, scenario.derived
    assert training is not None
    if not derived.by_stage:
        if derived.micro_batches % 2 == 0:
            yield change(scenario, {"training.micro_batch_size": 2 * derived.micro_batch_size})
        yield from _half_micro_batch(scenario)
    data = scenario.specification.parallelism.data
    bucket = getattr(data, "bucket", None) or (BUCKET_BYTES if data.method == "ddp" else None)
    if bucket and derived.replicas > 1:
        for factor in (0.5, 2.0):
            yield change(scenario, {"parallelism.data.bucket": show(bucket * factor, "size", 6)})
    if training.recompute_method != "none":
        yield change(scenario, {"training.recompute": "none"})
