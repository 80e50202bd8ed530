"""Hybrid sharding: groups of replicas share the states, and the groups hold equal copies."""

from __future__ import annotations

from dataclasses import replace

from simulator.errors import ScenarioError
from simulator.schedule import Schedule
from simulator.schedule.mesh import Axis
from workloads.operators.parameter import REPLICAS
from workloads.shape import nearest_divisors

SHARD, REPLICA = "dp.shard", "dp.replica"
"""The axes of a hybrid: within a group of shards, and across the groups."""


def with_hybrid_axes(schedule: Schedule, shards: int) -> Schedule:
    """Return *schedule* with ``dp`` divided into ``dp.shard`` (groups of *shards* neighbours) and ``dp.replica``."""
    groups = schedule.mesh.axes[REPLICAS].groups
    inner = tuple(group[i : i + shards] for group in groups for i in range(0, len(group), shards))
    outer = tuple(group[i::shards] for group in groups for i in range(shards))
    axes = {SHARD: Axis(inner), REPLICA: Axis(outer)}
    return replace(schedule, mesh=schedule.mesh.extended(0, axes))


def check_hybrid(replicas: int, hybrid: int | None) -> None:
    """Raise `ScenarioError` unless groups of *hybrid* ranks divide the *replicas*."""
    if hybrid is None or replicas == 1:
        return
    if hybrid < 2:
        raise ScenarioError(f"hybrid = {hybrid} shards nothing; give 2 or more ranks to share the states, or use ddp")
    if replicas % hybrid:
        good = " or ".join(str(n) for n in nearest_divisors(replicas, hybrid) if n > 1)
        raise ScenarioError(f"hybrid = {hybrid} does not divide dp = {replicas}; try {good}")
