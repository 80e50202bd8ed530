"""A scenario that executes a plan: the values by dotted key that change it."""

from __future__ import annotations

from math import ceil, lcm
from typing import Any

from scenarios.build.built import BuiltScenario
from scenarios.plan.chains.chain import Plan
from simulator.errors import ScenarioError
from workloads.composition import RANK_ORDER
from workloads.stages import ENDS

ORDERS = {"pipedream": "pipedream", "pipedream_2bw": "pipedream_2bw"}
"""The pipeline order of a method; 1F1B of the others."""

WITHOUT_TENSORS = {"sequence_parallel": False, "tp_overlap": False, "tp_split": "column_row", "tp_head": "vocabulary"}
"""Keys that belong to tensor parallelism, and their defaults."""


def overrides(plan: Plan, scenario: BuiltScenario) -> dict[str, Any]:
    """Return what to set in *scenario* so that it executes *plan*, by dotted key.

    What follows from the plan is among it only where the scenario has another value. The global batch is the next
    multiple of the replicas of all stages, where they do not divide it. That is a free choice for PipeDream, which
    updates weights after each micro-batch. Raises `ScenarioError` for a plan that a scenario cannot execute: one tensor
    degree and one choice of recomputation hold for all stages.
    """
    training, given = scenario.specification.training, scenario.specification.parallelism
    if training is None:
        raise ScenarioError(f"{scenario.name} measures a collective; it can execute no plan")
    tp, recompute = _of_all(plan)
    stages, replicas = len(plan.stages), [stage.replicas for stage in plan.stages]
    unit = lcm(*replicas) * plan.micro_batch_size
    chosen: dict[str, Any] = {
        "parallelism.tp": tp,
        "parallelism.pp": stages,
        "parallelism.dp": replicas[0] if len(set(replicas)) == 1 else replicas,
        "parallelism.schedule": ORDERS.get(plan.method, "1f1b"),
        "training.micro_batch_size": plan.micro_batch_size,
        "training.recompute": "full" if recompute else "none",
    }
    follows: dict[str, Any] = {
        "layout": _layout(plan, scenario) if stages > 1 else None,
        "placement": _placement(plan, scenario),
        "rank_order": list(RANK_ORDER),
        "virtual_stages": None,
        "scatter_gather": None,
        **(WITHOUT_TENSORS if tp == 1 else {}),
    }
    batch = ceil(training.global_batch_size / unit) * unit
    if batch != training.global_batch_size:
        chosen["training.global_batch_size"] = batch
    return chosen | {f"parallelism.{key}": value for key, value in follows.items() if getattr(given, key) != value}


def _of_all(plan: Plan) -> tuple[int, bool]:
    """Return the tensor degree and the recomputation of all stages. Raises `ScenarioError` if they differ."""
    if not plan.pipelined and len(plan.stages) > 1:
        raise ScenarioError(
            f"{plan.method} gives operators different parts; a scenario executes one number of parts by sample (dp) "
            "and one by parameter (tp), try uniform"
        )
    for key in ("tp", "recompute"):
        found = sorted({getattr(stage, key) for stage in plan.stages})
        if len(found) > 1:
            shown = " and ".join(str(value) for value in found)
            raise ScenarioError(f"{plan.method} has stages with {key} {shown}; a scenario has one for all, try uniform")
    return plan.stages[0].tp, plan.stages[0].recompute


def _layout(plan: Plan, scenario: BuiltScenario) -> list[int]:
    """Return the layers of each stage, embedding and head not counted."""
    assert scenario.model is not None
    counted = [layer.kind not in ENDS for layer in scenario.model.layers]
    layout, begin = [], 0
    for stage in plan.stages:
        layout.append(sum(counted[begin : begin + stage.layers]))
        begin += stage.layers
    return layout


def _placement(plan: Plan, scenario: BuiltScenario) -> str | list[int]:
    """Return the GPU of each rank, stage by stage; ``packed`` if they follow one another."""
    numbers = [gpu for stage in plan.stages for gpu in stage.gpus]
    if numbers == sorted(numbers):
        return "packed"
    cluster = scenario.cluster()
    nodes = list(dict.fromkeys(map(cluster.node_of, cluster.gpus)))
    by_node = sorted(range(len(cluster.gpus)), key=lambda gpu: nodes.index(cluster.node_of(cluster.gpus[gpu])))
    return [by_node[gpu] for gpu in numbers]
