"""A uniform cluster is the machine of the alpha-beta model: every device has one full-duplex port into a crossbar."""

from __future__ import annotations

import networkx as nx

from simulator.accelerator import Accelerator
from simulator.cluster import Cluster, Link


def uniform(
    gpus: int, bandwidth: float, latency: float, hosts: int = 1, accelerator: Accelerator | None = None
) -> Cluster:
    """A message of d bytes between any two devices costs *latency* + d / *bandwidth* (s, bytes/s), end to end.

    Half of the latency lies on the sender's link, half on the receiver's; all devices stand in one node.

    >>> cluster = uniform(4, 10e9, 5e-6)
    >>> cluster.latency(cluster.route("gpu 0", "gpu 3"))
    5e-06
    """
    graph: nx.DiGraph[str] = nx.DiGraph()
    link = Link("port", bandwidth, latency / 2)
    accelerator = accelerator or Accelerator()
    for kind, number in (("gpu", gpus), ("host", hosts)):
        for device in (f"{kind} {index}" for index in range(number)):
            graph.add_node(device, kind=kind, node=0, accelerator=accelerator)
            graph.add_edge(device, "switch 0", link=link)
            graph.add_edge("switch 0", device, link=link)
    graph.nodes["switch 0"]["kind"] = "switch"
    return Cluster(graph, _through, "uniform")


def _through(source: str, target: str) -> list[str]:
    return [source] if source == target else [source, "switch 0", target]
