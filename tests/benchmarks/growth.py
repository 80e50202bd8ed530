"""How the cost of a simulation grows with replicas, micro-batches, layers and stragglers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import process_time

from clustersim.scenarios import Scenario

SCENARIO = "megascale_175b_12288a100"
STAGES = 8
BASE = {"replicas": 4, "micro_batches": 16, "layers": 48, "stragglers": 0}
"""The sizes that stay while one grows: 256 GPUs, one layer per virtual stage."""

GROWING = {
    "replicas": (4, 16, 64),
    "micro_batches": (16, 32, 64),
    "layers": (48, 96, 192),
    "stragglers": (0, 1, 2, 4),
}


@dataclass(frozen=True)
class Cost:
    """*seconds* of CPU time from loading to the result; *ops* of all *ranks*; *representatives* are simulated."""

    what: str
    amount: int
    ranks: int
    representatives: int
    ops: int
    seconds: float


def growth() -> Iterator[Cost]:
    """The costs while one size grows at a time."""
    cost("replicas", 4, changes(**BASE))  # imports what the others need too
    for what, amounts in GROWING.items():
        for amount in amounts:
            yield cost(what, amount, changes(**{**BASE, what: amount}))


def cost(what: str, amount: int, settings: Mapping[str, object]) -> Cost:
    """The cost of a simulation with *settings*."""
    begin = process_time()
    simulated = Scenario.load(SCENARIO, settings).run().summary()["simulation"]
    seconds = process_time() - begin
    return Cost(what, amount, simulated["ranks"], simulated["representatives"], simulated["ops"], seconds)


def changes(replicas: int, micro_batches: int, layers: int, stragglers: int) -> dict[str, object]:
    """The settings: a replica has eight nodes with a tensor group each; *stragglers* are in different replicas."""
    return {
        "cluster.nodes": STAGES * replicas,
        "parallelism.dp": replicas,
        "parallelism.virtual_stages": min(6, layers // STAGES),
        "training.global_batch_size": micro_batches * replicas,
        "model.num_layers": layers,
        "simulation.stragglers": [{"rank": 8 * number, "slowdown": 1.1 + number / 10} for number in range(stragglers)],
    }
