"""The size of an imported run: nodes and GPUs of its cluster, replicas, micro-batch and global batch.

DeepSpeed's rule (deepspeed/runtime/config.py, ``_batch_assertion``) is that of all: the global batch is micro-batch x
accumulation x replicas.
"""

from __future__ import annotations

from math import ceil, prod

from clustersim import topologies
from clustersim.scenarios.exchange.facts import Facts
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.topologies.inventory import section

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


def settle_cluster(facts: Facts, options: Options) -> None:
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


INNER = ("tp", "pp", "cp")
"""Axes whose ranks share a replica."""

MICRO, BATCH, ACCUMULATION = "training.micro_batch_size", "training.global_batch_size", "run.accumulation"


PARTS = (ACCUMULATION, "run.replica_batch_size", "run.micro_batches")
"""Facts from which a batch follows."""


def replicas(facts: Facts) -> int:
    """Return the number of replicas. Raises `ScenarioError` if the degrees do not divide the GPUs."""
    gpus = facts.whole("run.gpus") or 1
    degrees = {axis: facts.whole(f"parallelism.{axis}") or 1 for axis in INNER}
    inner = prod(degrees.values())
    key = next((f"parallelism.{axis}" for axis, degree in degrees.items() if degree > 1), "run.gpus")
    shown = " x ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1)
    if gpus % inner:
        shown = shown if shown == f"{key.partition('.')[2]} {inner}" else f"{shown} = {inner}"
        raise facts.error(key, f"{shown} does not divide the {gpus} GPUs; give --nodes, or change a degree")
    given = facts.whole("run.dp")
    if given is not None and given * inner != gpus:
        needed = f"{shown + ' x ' if shown else ''}dp {given}"
        raise facts.error(
            "run.dp", f"{needed} needs {given * inner} GPUs, not {gpus}; give --nodes, or change a degree"
        )
    return gpus // inner


def settle_batch(facts: Facts, dp: int) -> None:
    """Give *facts* both batch sizes for *dp* replicas. Raises `ScenarioError` if they contradict each other."""
    _of_local(facts)
    micro, steps, batch = facts.whole(MICRO), facts.whole(ACCUMULATION), facts.whole(BATCH)
    accumulates = ACCUMULATION in facts.found and facts.found[ACCUMULATION].given
    if batch is not None and micro is not None and accumulates and steps is not None and micro * steps * dp != batch:
        raise facts.error(
            BATCH,
            f"the global batch {batch} is not micro-batch {micro} x accumulation {steps} x {dp} replicas, "
            f"{micro * steps * dp}",
            "the rule of DeepSpeed, Megatron-LM and the Trainer; change one of them, or the number of GPUs (--nodes)",
        )
    if batch is not None and micro is not None and batch % (micro * dp):
        raise facts.error(
            BATCH, f"the global batch {batch} is not a multiple of micro-batch {micro} x {dp} replicas = {micro * dp}"
        )
    if batch is None and micro is not None:
        how = f"{micro} x {steps or 1} accumulation x {dp} replicas"
        facts.follows(MICRO, BATCH, micro * (steps or 1) * dp, how)
    elif batch is not None and micro is None:
        if batch % (dp * (steps or 1)):
            raise facts.error(
                BATCH, f"the global batch {batch} is not a multiple of {dp} replicas x accumulation {steps or 1}"
            )
        facts.follows(BATCH, MICRO, batch // (dp * (steps or 1)), f"/ ({dp} replicas x {steps or 1} accumulation)")
    elif batch is None:
        facts.assume(MICRO, 1, "no file gives a batch; --set training.micro_batch_size=N does")
        accumulation = steps or facts.whole("parallelism.pp") or 1
        facts.assume(BATCH, accumulation * dp, f"{accumulation} micro-batches for each of {dp} replicas")


def _of_local(facts: Facts) -> None:
    """Take the samples of a replica, torchtitan's local batch, apart: with a pipeline it has several micro-batches."""
    local, micro = facts.whole("run.replica_batch_size"), facts.whole(MICRO)
    orders = facts.whole("run.micro_batches")
    if local is None:
        if orders is not None and ACCUMULATION not in facts.found:
            facts.follows("run.micro_batches", ACCUMULATION, orders, "")
        return
    if micro is None:
        facts.follows("run.replica_batch_size", MICRO, local, "")
        return
    if local % micro:
        raise facts.error(
            "run.replica_batch_size", f"the local batch {local} is not a multiple of the micro-batch {micro}"
        )
    if facts.whole(BATCH) is None and ACCUMULATION not in facts.found:
        facts.follows("run.replica_batch_size", ACCUMULATION, local // micro, f"/ {micro}")
