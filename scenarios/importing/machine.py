"""The cluster of an imported run: what the files say of nodes and GPUs, on a preset or on an inventory of a server."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import topologies
from scenarios.importing.facts import Facts
from simulator.errors import ScenarioError
from topologies.inventory.inventory import section

ASSUMED = "dgx_h100"
"""The cluster of a run of which no file names one: the most widespread server with eight GPUs."""


@dataclass(frozen=True)
class Options:
    """What the command line says: the *cluster*, its *nodes*, the *accelerator* and *nic* that an inventory lacks.

    *dataset_samples*: samples of the data set, for epochs.
    """

    cluster: str | None = None
    nodes: int | None = None
    accelerator: str | None = None
    nic: str | None = None
    dataset_samples: int | None = None


def settle(facts: Facts, options: Options) -> None:
    """Give *facts* the keys of the section ``cluster``, and ``run.gpus``. Raises `ScenarioError` at a contradiction."""
    facts.option("run.nodes", options.nodes, "--nodes")
    facts.option("cluster.preset", options.cluster, "--cluster")
    nodes, each, gpus = (facts.whole(key) for key in ("run.nodes", "run.gpus_per_node", "run.gpus"))
    if options.nodes:
        # another number of nodes: the number of GPUs of the files holds no more
        gpus = None
        facts.found.pop("run.gpus", None)
    inventory = facts.value("run.inventory")
    if inventory is not None and options.cluster is None:
        _of_inventory(facts, options, nodes or 1)
        size = len(inventory.gpus)
    else:
        if options.cluster is None:
            why = "no file names the cluster; --cluster NAME gives another (clustersim list clusters)"
            facts.assume("cluster.preset", ASSUMED, why)
        size = _gpus_of_a_node(facts)
    if each is not None and nodes is not None and gpus is not None and each * nodes != gpus:
        raise facts.error("run.gpus", f"{gpus} GPUs are not {nodes} nodes of {each}")
    if each is None and gpus is not None and nodes is not None:
        if gpus % nodes:
            raise facts.error("run.gpus", f"{gpus} GPUs do not spread evenly over {nodes} nodes")
        each = gpus // nodes
    if each is not None and each > size:
        raise facts.error(
            "run.gpus_per_node",
            f"{each} GPUs a node, but one of {facts.value('cluster.preset')} has {size}; give another --cluster",
        )
    _count(facts, nodes, each, gpus, size, inventory is not None)


def _count(facts: Facts, nodes: int | None, each: int | None, gpus: int | None, size: int, inventory: bool) -> None:
    """Give the number of nodes and of GPUs; *size*: GPUs of a node of the cluster."""
    used = each or size
    if nodes is None:
        nodes = ceil(gpus / used) if gpus else 1
        if gpus:
            facts.follows("run.gpus", "cluster.nodes", nodes, f"{gpus} GPUs, {used} a node")
        else:
            facts.assume("cluster.nodes", 1, "no file gives the number of nodes; --nodes N does")
    else:
        facts.follows("run.nodes", "cluster.nodes", nodes, "")
    if used != size and nodes > 1 and not inventory:
        source = "run.gpus_per_node" if "run.gpus_per_node" in facts.found else "run.gpus"
        facts.follows(source, "cluster.node.accelerators", used, "" if source == "run.gpus_per_node" else "GPUs a node")
    if gpus is None:
        key = "run.gpus_per_node" if each else "cluster.nodes"
        facts.follows(key, "run.gpus", nodes * used, f"{nodes} nodes of {used} GPUs")


def _gpus_of_a_node(facts: Facts) -> int:
    """Return the GPUs of a node of the preset. Raises `ScenarioError` for an unknown one."""
    preset = facts.value("cluster.preset")
    try:
        return len(topologies.cluster({"preset": preset, "nodes": 1}).gpus)
    except ScenarioError as error:
        raise facts.error("cluster.preset", str(error).removeprefix("cluster.preset: ")) from None


def _of_inventory(facts: Facts, options: Options, nodes: int) -> None:
    """Give the section ``cluster`` of *nodes* servers such as the one in the files."""
    made = section(facts.value("run.inventory"), nodes, accelerator=options.accelerator, nic=options.nic)
    for key, value in made["node"].items():
        facts.follows("run.inventory", f"cluster.node.{key}", value, "")
    if nodes > 1:
        facts.assume("cluster.fabric", {"kind": "fat_tree"}, "no file describes the network between the nodes")
