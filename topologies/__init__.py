"""The hardware catalogue, node shapes, fabrics and named clusters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clustersim.simulator.hardware.cluster import Cluster


def cluster(section: Mapping[str, Any] | str, folder: Path | None = None) -> Cluster:
    """Return the cluster of *section*: the ``cluster:`` part of a scenario, or the name of a preset.

    Paths in it are relative to *folder*. Raises `ScenarioError` for an invalid section, and `ClusterError` if its parts
    do not fit together.

    >>> len(cluster({"preset": "dgx_a100_80gb", "nodes": 2}).gpus)
    16
    """
    from clustersim.topologies.cluster_section import specification

    data = {"preset": section} if isinstance(section, str) else dict(section)
    return specification(data).build(folder)
