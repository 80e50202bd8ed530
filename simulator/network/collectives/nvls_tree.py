"""NVLink SHARP inside servers and two binary trees between them, for GPUs of equal place.

NCCL's NVLSTree (2.18 and later), which needs no support of the fabric.
"""

from __future__ import annotations

from collections.abc import Sequence

from clustersim.simulator.network.collectives.sharp import through_heads
from clustersim.simulator.network.collectives.tree import double_tree
from clustersim.simulator.network.step import Group, Step, Transfer


def all_reduce(group: Group, nbytes: float) -> list[Step]:
    """The sum at every position: by NVSwitches to the heads, up and down the trees, and back by NVSwitches."""
    return through_heads(group, nbytes, _trees, inside_switch=True, between_switches=False)


def _trees(heads: Sequence[int]) -> list[list[Transfer]]:
    """Two lanes, one for each tree: from the leaves up to the first head."""
    trees = double_tree(len(heads))
    return [[(heads[child], heads[parent]) for parent, child in reversed(tree)] for tree in trees]
