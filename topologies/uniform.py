"""A uniform cluster is the machine of the alpha-beta model: every device has one full-duplex port into a crossbar."""

from __future__ import annotations

import numpy as np

from simulator.accelerator import Accelerator
from simulator.cluster import Cluster, Link
from simulator.cluster.topology import sorted_topology
from simulator.cluster.vertices import NONE, Numbered, Vertices

CROSSBAR = 1
"""The number of the crossbar's vertex, which follows the first device."""


def uniform(
    gpus: int, bandwidth: float, latency: float, hosts: int = 1, accelerator: Accelerator | None = None
) -> Cluster:
    """Build a cluster on which d bytes between any two devices take *latency* + d / *bandwidth* (s, bytes/s).

    The sender's link has half of the latency and the receiver's link the other half. All devices are in one node.

    >>> cluster = uniform(4, 10e9, 5e-6)
    >>> cluster.latency(cluster.route("gpu 0", "gpu 3"))
    5e-06
    """
    kinds = ("gpu", "host", "switch")
    kind = np.insert(np.repeat([0, 1], [gpus, hosts]), CROSSBAR, 2)
    number = np.insert(np.r_[:gpus, :hosts], CROSSBAR, 0)
    inside = np.where(kind == 2, NONE, 0)
    computes = (accelerator or Accelerator(),)
    vertices = Vertices(kinds, kind, (0,), inside, computes, inside, Numbered(kinds, kind, number))
    devices = np.flatnonzero(kind != 2)
    crossbar = np.full(len(devices), CROSSBAR)
    ends = np.r_[devices, crossbar], np.r_[crossbar, devices]
    port = Link("port", bandwidth, latency / 2)
    topology = sorted_topology(vertices, (port,), *ends, np.zeros(2 * len(devices), np.int64))
    return Cluster(topology, _through, "uniform")


def _through(source: int, target: int) -> list[int]:
    return [source] if source == target else [source, CROSSBAR, target]
