"""How many replicas share the parameters, the gradients and the optimizer states: a number for each.

MiCS divides all three within one group (Zhang et al. 2022, "MiCS: near-linear scaling for training gigantic model on
public cloud", arXiv:2205.00119); AMSP lets each have a group size of its own (Chen et al. 2023, "AMSP: reducing
communication overhead of ZeRO for efficient LLM training", arXiv:2311.00257, section 4). Groups are nested, so that a
shard of one state lies within a shard of another: the parameters of a rank are needed most often, and change least.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from simulator.document import Count, Section
from simulator.errors import ScenarioError
from workloads.shape import nearest_divisors


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
        given = (self.parameters, self.gradients, self.optimizer)
        parameters, gradients, optimizer = (replicas if size == "all" else size for size in given)
        made = GroupSizes(parameters, gradients, optimizer, replicas)
        names = ("groups.parameters", "groups.gradients", "groups.optimizer", "the replicas")
        nested = (parameters, gradients, optimizer, replicas)
        for place, (inner, outer) in enumerate(pairwise(nested)):
            if replicas > 1 and outer % inner:
                good = " or ".join(map(str, nearest_divisors(outer, min(inner, outer))))
                raise ScenarioError(
                    f"{names[place]} = {inner} does not divide {names[place + 1]} ({outer}), but groups are nested; "
                    f"try {good}"
                )
        return made


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """The ranks of each group, and of all *replicas*; each divides the next."""

    parameters: int
    gradients: int
    optimizer: int
    replicas: int
