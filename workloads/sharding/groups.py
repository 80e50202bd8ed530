"""How many replicas share the parameters, the gradients and the optimizer states: a group size for each state.

With d replicas and sizes in that order, DDP is (1, 1, 1), ZeRO-1 (1, 1, d), ZeRO-2 (1, d, d), ZeRO-3 and FSDP
(d, d, d) (Rajbhandari et al., arXiv:1910.02054), and hybrid shards and MiCS (h, h, h) (Zhang et al. 2022, "MiCS:
near-linear scaling for training gigantic model on public cloud", arXiv:2205.00119). AMSP lets each state have a size of
its own (Chen et al. 2023, "AMSP: reducing communication overhead of ZeRO for efficient LLM training",
arXiv:2311.00257, section 4).

Groups are nested, so that a shard of one state lies within a shard of another: the parameters of a rank are needed most
often, and change least. Neighbours form a group. The place i of a rank among the replicas decides its shards: i mod p
of the parameters, i mod g of the gradients, i mod o of the optimizer states.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from simulator.document import Count, Section
from simulator.errors import ScenarioError
from simulator.schedule import Schedule
from simulator.schedule.mesh import Axis
from workloads.operators.parameter import REPLICAS
from workloads.shape import nearest_divisors

STATES = ("parameters", "gradients", "optimizer")
"""What is divided, in the order of group sizes."""

SHARD = "dp.shard"
"""Ranks of a group, if all groups that are smaller than the replicas have one size."""
PARAMETERS = "dp.parameters"
"""Ranks that share the parameters, if other states have other groups; likewise the next two."""
GRADIENTS = "dp.gradients"
OPTIMIZER_STATES = "dp.states"
OPTIMIZER = "dp.optimizer"
"""Ranks of one group of optimizer states with the same shard of the gradients."""
REPLICA = "dp.replica"
"""Ranks with the same shard of the optimizer states."""
UPDATED = "dp.updated"
"""Ranks of one group of optimizer states with the same shard of the parameters."""


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """The ranks that share each state, out of *replicas*: 1 for a whole copy on each rank, None for all of them.

    Each size divides the next. A tensor with replicas of its own, such as an expert, is divided over all of these if a
    state is divided at all.
    """

    parameters: int | None
    gradients: int | None
    optimizer: int | None
    replicas: int

    @classmethod
    def of(cls, divided: Collection[str], replicas: int, hybrid: int | None = None) -> GroupSizes:
        """The states *divided* are shared by *hybrid* neighbours, or by all *replicas*; of others each has a copy."""
        size = hybrid if hybrid is not None and hybrid < replicas else None
        parameters, gradients, optimizer = (size if state in divided else 1 for state in STATES)
        return cls(parameters, gradients, optimizer, replicas)

    def divides(self, state: str) -> bool:
        """True if ranks hold shards of *state*."""
        return bool(getattr(self, state) != 1)

    def ranks(self, state: str, replicas: int | None = None) -> int:
        """The ranks that share *state*; *replicas*: those of one program, if not all have the same number."""
        size: int | None = getattr(self, state)
        return (replicas or self.replicas) if size is None else size

    def axis(self, outer: str, inner: str = "") -> str:
        """The axis of the ranks of a group of *outer*, a state or "replicas", with the same shard of *inner*."""
        return self._axes()[self.ranks(outer), self.ranks(inner) if inner else 1]

    def with_axes(self, schedule: Schedule) -> Schedule:
        """*schedule* with the axes of these groups, but those of single ranks."""
        several = {name: key for key, name in self._axes().items() if name != REPLICAS and key[0] > key[1]}
        return with_neighbours(schedule, several) if several else schedule

    def _axes(self) -> dict[tuple[int, int], str]:
        """Axes by (ranks of neighbours, stride within them). Equal groups have one axis; all replicas are ``dp``."""
        (p, g, o), n = map(self.ranks, STATES), self.replicas
        cut = {size for size in (p, g, o) if size not in (1, n)}
        found: dict[tuple[int, int], str] = {(n, 1): REPLICAS}
        found |= {(size, 1): SHARD for size in cut if len(cut) == 1}
        for key, name in (
            ((p, 1), PARAMETERS),
            ((g, 1), GRADIENTS),
            ((o, 1), OPTIMIZER_STATES),
            ((o, g), OPTIMIZER),
            ((n, o), REPLICA),
            ((o, p), UPDATED),
        ):
            found.setdefault(key, name)
        return found


class Groups(Section):
    """Replicas that share each of the three states: a number of neighbours, 1 for a whole copy on each rank, or all."""

    parameters: Count | Literal["all"] = "all"
    """Replicas that share the parameters; they are gathered within the group before each use."""
    gradients: Count | Literal["all"] = "all"
    """Replicas that share the gradients; they are reduced within the group in every backward pass."""
    optimizer: Count | Literal["all"] = "all"
    """Replicas that share the optimizer states; gradients are summed over the other replicas once a step."""

    def sizes(self, replicas: int) -> GroupSizes:
        """Of *replicas* ranks. Raises `ScenarioError` unless each size divides the next, and the last all replicas."""
        given = [None if size == "all" else size for size in (self.parameters, self.gradients, self.optimizer)]
        made = GroupSizes(given[0], given[1], given[2], replicas)
        names = (*(f"groups.{state}" for state in STATES), "the replicas")
        nested = (*map(made.ranks, STATES), replicas)
        for place, (inner, outer) in enumerate(pairwise(nested)):
            if replicas > 1 and outer % inner:
                good = " or ".join(map(str, nearest_divisors(outer, min(inner, outer))))
                raise ScenarioError(
                    f"{names[place]} = {inner} does not divide {names[place + 1]} ({outer}), but groups are nested; "
                    f"try {good}"
                )
        return made


def check_hybrid(replicas: int, hybrid: int | None) -> None:
    """Raise `ScenarioError` unless groups of *hybrid* ranks divide the *replicas*."""
    if hybrid is None or replicas == 1:
        return
    if hybrid < 2:
        raise ScenarioError(f"hybrid = {hybrid} shards nothing; give 2 or more ranks to share the states, or use ddp")
    if replicas % hybrid:
        good = " or ".join(str(n) for n in nearest_divisors(replicas, hybrid) if n > 1)
        raise ScenarioError(f"hybrid = {hybrid} does not divide dp = {replicas}; try {good}")


def with_hybrid_axes(schedule: Schedule, shards: int) -> Schedule:
    """*schedule* with ``dp`` divided into `SHARD` (groups of *shards* neighbours) and `REPLICA` (across them)."""
    replicas = max(len(group) for group in schedule.mesh.axes[REPLICAS].groups)
    return with_neighbours(schedule, {SHARD: (shards, 1), REPLICA: (replicas, shards)})


def with_neighbours(schedule: Schedule, axes: Mapping[str, tuple[int, int]]) -> Schedule:
    """*schedule* with *axes*, each by (size, stride): replicas whose places are equal modulo stride, within neighbours.

    *size*: how many neighbours.
    """
    groups = schedule.mesh.axes[REPLICAS].groups

    def joined(size: int, stride: int) -> Axis:
        blocks = (group[begin : begin + size] for group in groups for begin in range(0, len(group), size))
        return Axis(tuple(block[place::stride] for block in blocks for place in range(stride)))

    return replace(schedule, mesh=schedule.mesh.extended(0, {name: joined(*key) for name, key in axes.items()}))
