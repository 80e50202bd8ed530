"""What to change if memory does not suffice: values that the scenario does not have yet, and what each would need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from scenarios.build.built import BuiltScenario
from scenarios.build.notes import selective_saves
from scenarios.results.memory_need import MemoryNeed, memory_need
from simulator.errors import ScenarioError, SimulatorError
from workloads.parallelism.fsdp import FullyShardedDataParallel
from workloads.parallelism.tensor import sharded
from workloads.parallelism.zero import Zero


class Remedy(NamedTuple):
    """*text* names the change, and *values* has it by dotted key."""

    text: str
    values: Mapping[str, Any]


def remedies(scenario: BuiltScenario) -> list[Remedy]:
    """Return changes of *scenario* that need less memory; those that cost least time come first."""
    return [*_precision(scenario), *_sharding(scenario), *_batch(scenario), *_recompute(scenario), *_cut(scenario)]


def remedy_line(scenario: BuiltScenario) -> str:
    """Return the `remedies` of *scenario* that suffice, as one sentence, each with what it needs by an upper bound.

    If none suffices alone, it has all that help. More of the memory that is short is always among them: of a GPU, of
    the host, or of drives.
    """
    now = memory_need(scenario, scenario.schedule())
    short = now.short
    larger = f"nodes with more {short}" if short else "a GPU with more memory"
    needs = {
        one.text: need
        for one in remedies(scenario)
        if (need := _need(scenario, one)) and need.bytes_in(short) < now.bytes_in(short)
    }
    enough = {text: need for text, need in needs.items() if need.fits}
    told = [f"{text} ({need.amount_in(short)})" for text, need in (enough or needs).items()]
    if not told:
        return f"try {larger}"
    if enough:
        return f"try {', '.join(told)} or {larger}"
    return f"nothing suffices alone; try several of {', '.join(told)}, or {larger}"


def _need(scenario: BuiltScenario, remedy: Remedy) -> MemoryNeed | None:
    """Return an upper bound of what *scenario* needs with *remedy*; None if it cannot be so."""
    try:
        changed = scenario.changed(remedy.values, remedy.text)
        return memory_need(changed, changed.schedule())
    except SimulatorError:
        return None


def _precision(scenario: BuiltScenario) -> Iterator[Remedy]:
    training = scenario.specification.training
    if training is not None and training.precision == "fp32":
        yield Remedy("precision: bf16", {"training.precision": "bf16"})


def _batch(scenario: BuiltScenario) -> Iterator[Remedy]:
    """Yield the largest smaller micro-batch that fits, or one sample."""
    size = scenario.derived.micro_batch_size
    smaller = [
        Remedy(f"micro_batch_size: {number} (now {size})", {"training.micro_batch_size": number})
        for number in range(size // 2, 0, -1)
        if size % number == 0
    ]
    fitting = (one for one in smaller if (need := _need(scenario, one)) and need.fits)
    yield from [one] if (one := next(fitting, smaller[-1] if smaller else None)) else []


def _recompute(scenario: BuiltScenario) -> Iterator[Remedy]:
    training = scenario.specification.training
    if training is None or training.recompute_method in ("full", "optimal"):
        return
    if training.recompute_method == "none" and selective_saves(scenario):
        yield Remedy("recompute: selective", {"training.recompute": "selective"})
    yield Remedy("recompute: full", {"training.recompute": "full"})


def _sharding(scenario: BuiltScenario) -> Iterator[Remedy]:
    """Yield the next stage of ZeRO; stages 2 and 3 do not go with a pipeline."""
    data, derived = scenario.specification.parallelism.data, scenario.derived
    if isinstance(data, FullyShardedDataParallel):
        if not data.reshard:
            yield Remedy("data: {reshard: true}", {"parallelism.data.reshard": True})
        return
    stage = data.stage if isinstance(data, Zero) else 0
    if derived.replicas > 1 and stage < (1 if derived.degree("pp") > 1 else 3):
        section = {"method": "zero", "stage": stage + 1}
        yield Remedy(f"ZeRO-{stage + 1} (data: {{method: zero, stage: {stage + 1}}})", {"parallelism.data": section})


def _cut(scenario: BuiltScenario) -> Iterator[Remedy]:
    """Yield more tensor or pipeline parallelism, where replicas can be given up for it; micro-batches stay."""
    derived, model = scenario.derived, scenario.model
    if derived.replicas % 2 or derived.by_stage or model is None:
        return
    # without a size a micro-batch is all that a replica has, and grows as replicas become fewer
    kept = {"training.micro_batch_size": derived.micro_batch_size, "parallelism.dp": "auto"}
    given = scenario.specification.training and scenario.specification.training.micro_batch_size
    told = "" if given else f" and micro_batch_size: {derived.micro_batch_size}"
    tp, mode = derived.degree("tp"), scenario.specification.parallelism.mode
    if mode == "1d" and tp * 2 <= _node(scenario) and _divides(scenario, tp * 2):
        yield Remedy(f"tp: {tp * 2}{told}", {"parallelism.tp": tp * 2, **kept})
    data = scenario.specification.parallelism.data
    gathers = isinstance(data, FullyShardedDataParallel) or (isinstance(data, Zero) and data.stage > 1)
    if not gathers and len(model.layers) > 2 * derived.degree("pp"):
        pp = 2 * derived.degree("pp")
        yield Remedy(f"pp: {pp}{told}", {"parallelism.pp": pp, **kept})


def _node(scenario: BuiltScenario) -> int:
    """Return the number of GPUs in the node of rank 0."""
    cluster = scenario.cluster()
    first = cluster.node_of(scenario.derived.devices[0])
    return sum(cluster.node_of(gpu) == first for gpu in cluster.gpus)


def _divides(scenario: BuiltScenario, tp: int) -> bool:
    assert scenario.model is not None
    try:
        sharded(scenario.model, tp)
    except ScenarioError:
        return False
    return True
