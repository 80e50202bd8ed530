"""The grid that AxoNN's communication model chooses for ``tp: auto``.

All grids x, y and z with replicas that use all GPUs and divide the model and the batch are ranked by the seconds that
they communicate (`workloads.parallelism._tensor_grid`). Of those that fit into memory and are within `NEAR` of the
least, that with most replicas is taken: its rings are the shortest, and the model knows no latency. The authors run
the ten best ones on their machine instead. They measure the bandwidths of rings within a node by all-gathers, which are
simulated here. A ring that leaves a node shares the node's bandwidth with all others (Singh et al. 2025,
arXiv:2502.08145, section V-B).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from math import inf

from clustersim.scenarios.build.network import library_of
from clustersim.scenarios.specification.specification import Specification
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.network.transport import Transport
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.workloads.architectures.transformer import Transformer
from clustersim.workloads.memory.optimizer import resident_states
from clustersim.workloads.parallelism._parallelism import divisors
from clustersim.workloads.parallelism._tensor_grid import (
    Bandwidth,
    FourDimensions,
    TensorGrid,
    check_cut_by_grids,
    communication_seconds,
    products,
)
from clustersim.workloads.parallelism.tensor import Tensor

FILL = 0.8
"""Share of a GPU's memory for what is counted here; CUDA's context, buffers and fragmentation need the rest."""

PROFILED_BYTES = 256e6
"""Bytes of a profiled all-gather: large enough that latency is a small part, as with the weights of large models."""

NEAR = 0.05
"""Two grids are as good if their seconds differ by less: the paper's ranking is no finer, which is why its authors run
ten of them."""

SHOWN = 3
"""The grids beside the chosen one that a report shows."""


@dataclass(frozen=True, slots=True)
class GridChoice:
    """The *grid* that communicates for so many *seconds*, the *best* ones with theirs, and the number of *grids*."""

    grid: FourDimensions
    seconds: float
    best: tuple[tuple[float, FourDimensions], ...]
    grids: int

    def __str__(self) -> str:
        told = ", ".join(f"{grid} {seconds:.3g} s" for seconds, grid in self.best)
        return (
            f"tp: auto took {self.grid}: {self.seconds:.3g} s of communication by AxoNN's model (arXiv:2502.08145, "
            f"section V-B), the most replicas of those within {NEAR:.0%} of the least of {self.grids} grids that fits "
            f"into memory; least: {told}"
        )


def chosen_grid(specification: Specification, cluster: Cluster, document: Document) -> GridChoice:
    """Return the grid for the scenario of *specification* on *cluster*. Raises `ScenarioError` if there is none."""
    training = specification.training
    assert training is not None
    assert specification.model is not None
    model = specification.model.build(training.base_precision, fused=True)
    if not isinstance(model, Transformer):
        raise document.error(("parallelism", "tp"), f"auto chooses the grid of a transformer; {model.name} is not one")
    try:
        check_cut_by_grids(model)
    except ScenarioError as error:
        raise document.error(("parallelism", "tp"), f"auto: {error}") from None
    rate = profiled(cluster, library_of(specification, cluster))
    made, width, rows = list(products(model.shape)), BYTES[training.base_precision], model.tokens_per_sample
    ranked: list[tuple[float, FourDimensions]] = []
    for grid in _grids(specification, model, len(cluster.gpus)):
        micro_batches = training.global_batch_size // (grid.data * _micro_batch(specification, grid))
        seconds = communication_seconds(
            made,
            rows * training.global_batch_size,
            grid,
            rate,
            width=width,
            micro_batches=micro_batches,
            forwards=2 if training.recompute_method == "full" else 1,
        )
        ranked.append((seconds, grid))
    ranked.sort(key=lambda one: (one[0], str(one[1])))
    capacity = min(gpu.memory_bytes or inf for gpu in cluster.count(cluster.gpus))
    fitting = (one for one in ranked if _bytes(specification, model, one[1]) <= FILL * capacity)
    first = next(fitting, None)
    if first is None:
        what = "fits into memory" if ranked else "divides the heads, the batch and the GPUs"
        raise document.error(("parallelism", "tp"), f"auto: none of the {len(ranked)} grids x, y, z and dp {what}")
    near = [first, *takewhile(lambda one: one[0] <= first[0] * (1 + NEAR), fitting)]
    seconds, grid = max(near, key=lambda one: one[1].data)
    return GridChoice(grid, seconds, tuple(ranked[:SHOWN]), len(ranked))


def _grids(specification: Specification, model: Transformer, gpus: int) -> Iterator[FourDimensions]:
    """All grids of all GPUs that divide *model* and the batch."""
    training, parallelism = specification.training, specification.parallelism
    assert training is not None
    each, shape = gpus // parallelism.pp, model.shape
    for ranks in [parallelism.tp] if isinstance(parallelism.tp, int) else divisors(each, each):
        data = parallelism.dp if isinstance(parallelism.dp, int) else each // ranks
        if data * ranks != each:
            continue
        for x in divisors(ranks, ranks):
            for y in divisors(ranks // x, ranks // x):
                grid = FourDimensions(x, y, ranks // (x * y), data)
                if shape.attention.num_heads % x or shape.mlp.ffn_hidden_size % x or shape.hidden_size % y:
                    continue
                micro = _micro_batch(specification, grid)
                if micro and micro % grid.z == 0 and training.global_batch_size % (data * micro) == 0:
                    yield grid


def _micro_batch(specification: Specification, grid: FourDimensions) -> int:
    training = specification.training
    assert training is not None
    return training.micro_batch_size or training.global_batch_size // grid.data


def _bytes(specification: Specification, model: Transformer, grid: FourDimensions) -> float:
    """Bytes of a rank: states, and activations of a micro-batch, or the inputs of all layers if recomputed."""
    training = specification.training
    assert training is not None
    tensor = Tensor(tp=TensorGrid(x=grid.x, y=grid.y, z=grid.z))
    try:
        share = tensor.share(model)
    except ScenarioError:
        return inf
    micro, layers = _micro_batch(specification, grid), share.layers
    kept = [layer.activation_bytes(micro) for layer in layers]
    if training.recompute_method == "full":
        inner = [layer.output_bytes(micro) for layer in layers[1:-1]]
        activations = sum(inner) + max(max(kept[1:-1], default=0.0), kept[-1])
    else:
        activations = sum(kept)
    tensors = [tensor for layer in layers for tensor in layer.tensors]
    held = resident_states(tensors, training.update_rule, training.base_precision, training.gradient_dtype)
    return sum(held.values()) / specification.parallelism.pp + activations


def profiled(cluster: Cluster, library: Transport) -> Bandwidth:
    """The bandwidth of rings on *cluster*, from simulated all-gathers of *library* on its first nodes."""
    first = cluster.node_of(cluster.gpus[0])
    node = sum(cluster.node_of(gpu) == first for gpu in cluster.gpus)
    most = len(cluster.gpus)

    @cache
    def bandwidth(before: int, ranks: int) -> float:
        if ranks == 1:
            return inf
        if before * ranks <= node:
            return _all_gathers(cluster, library, before, ranks)
        whole = min(node, most // 2)
        # a node's links between nodes, shared by the rings that leave it
        return whole * _all_gathers(cluster, library, whole, 2) / min(node, before)

    return bandwidth


def _all_gathers(cluster: Cluster, library: Transport, groups: int, ranks: int) -> float:
    """Bytes/s of a ring of *ranks* while *groups* of them run side by side on the first GPUs."""
    gather = Collective(name="all-gather", kind="all_gather", over="ring", nbytes=PROFILED_BYTES)
    mesh = Mesh.regular({"group": groups, "ring": ranks})
    schedule = Schedule(mesh, (Program("rank", (gather,)),), (0,) * mesh.world_size)
    seconds = simulate(schedule, cluster, transport=library, engine="simpy").step_time
    return PROFILED_BYTES * (ranks - 1) / ranks / seconds
