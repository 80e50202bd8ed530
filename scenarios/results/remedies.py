"""What to change if memory does not suffice: values that the scenario does not have yet."""

from __future__ import annotations

from collections.abc import Iterator

from scenarios.build.built import BuiltScenario
from scenarios.build.notes import selective_saves
from simulator.errors import ScenarioError
from workloads.parallelism.fsdp import FullyShardedDataParallel
from workloads.parallelism.tensor import sharded
from workloads.parallelism.zero import Zero


def remedies(scenario: BuiltScenario) -> list[str]:
    """Return changes of *scenario* that need less memory; those that cost least time come first."""
    return [*_precision(scenario), *_sharding(scenario), *_batch(scenario), *_recompute(scenario), *_cut(scenario)]


def remedy_line(scenario: BuiltScenario) -> str:
    """Return the `remedies` of *scenario* as one sentence; a larger GPU is always among them."""
    *others, last = [*remedies(scenario), "a GPU with more memory"]
    return "try " + " or ".join(filter(None, (", ".join(others), last)))


def _precision(scenario: BuiltScenario) -> Iterator[str]:
    training = scenario.specification.training
    if training is not None and training.precision == "fp32":
        yield "precision: bf16"


def _batch(scenario: BuiltScenario) -> Iterator[str]:
    size = scenario.derived.micro_batch_size
    if size > 1:
        smaller = next(number for number in range(size // 2, 0, -1) if size % number == 0)
        yield f"micro_batch_size: {smaller} (now {size})"


def _recompute(scenario: BuiltScenario) -> Iterator[str]:
    training = scenario.specification.training
    if training is None or training.recompute == "full":
        return
    if training.recompute == "none" and selective_saves(scenario):
        yield "recompute: selective"
    yield "recompute: full"


def _sharding(scenario: BuiltScenario) -> Iterator[str]:
    """Yield the next stage of ZeRO; stages 2 and 3 do not go with a pipeline."""
    data, derived = scenario.specification.parallelism.data, scenario.derived
    if isinstance(data, FullyShardedDataParallel):
        if not data.reshard:
            yield "data: {reshard: true}"
        return
    stage = data.stage if isinstance(data, Zero) else 0
    if derived.replicas > 1 and stage < (1 if derived.degree("pp") > 1 else 3):
        yield f"ZeRO-{stage + 1} (data: {{method: zero, stage: {stage + 1}}})"


def _cut(scenario: BuiltScenario) -> Iterator[str]:
    """Yield more tensor or pipeline parallelism, where replicas can be given up for it."""
    derived, model = scenario.derived, scenario.model
    if derived.replicas % 2 or derived.by_stage or model is None:
        return
    tp = derived.degree("tp")
    if tp * 2 <= _node(scenario) and _divides(scenario, tp * 2):
        yield f"tp: {tp * 2}"
    data = scenario.specification.parallelism.data
    gathers = isinstance(data, FullyShardedDataParallel) or (isinstance(data, Zero) and data.stage > 1)
    if not gathers and len(model.layers) > 2 * derived.degree("pp"):
        yield f"pp: {2 * derived.degree('pp')}"


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
