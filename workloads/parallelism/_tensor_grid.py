"""Grids of tensor-parallel ranks: their keys, axes and rules; and AxoNN's communication model, and its exchanges of
weights beside the products.

Modes are called as in Colossal-AI: ``1d`` is Megatron-LM's, ``2d`` Optimus, ``2.5d`` Tesseract, ``3d`` AxoNN's.

Singh et al. 2025 (arXiv:2502.08145, section V-B, equations 1 to 7). Collectives are rings without latency, nothing
overlaps, and computation is not looked at: it is the same on all grids. In the paper's letters, a product of m rows, k
inputs and n outputs has its outputs cut over x and its inputs over y, or over y and x every other time.

As its authors programmed it for Perlmutter (axonn-ai/Megatron-AxoNN at 8a4ae241, examples/comm_model.py): gradients are
reduced over the replicas in fp32, and what is recomputed sums its outputs again. They take the second product of the
feed-forward network as one from h to 4 h; here it is one from 4 h to h. They leave out the logits.

An operator names these exchanges where it needs them, on the stream ``compute``
(`workloads.operators.tensor_grids`). The passes here move them to a stream named like their axis, as AxoNN
overlaps them (Singh et al. 2025, arXiv:2502.08145, section V-D; axonn/intra_layer/overlap_communication.py). NCCL runs
the collectives of one group in order, so one stream has both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isqrt
from typing import TYPE_CHECKING, Literal

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import Count, Section
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule

if TYPE_CHECKING:
    from clustersim.workloads.architectures.shape import Shape
    from clustersim.workloads.architectures.transformer import Transformer
    from clustersim.workloads.operators.sharded import Grid

TENSOR = "tp"
"""The axis of the ranks that share every layer, and the family of the axes of a grid."""

X, Y, DEPTH = f"{TENSOR}.x", f"{TENSOR}.y", f"{TENSOR}.z"
"""The axes of a grid."""

Mode = Literal["1d", "2d", "2.5d", "3d"]

Overlapped = Literal["all_reduce", "reduce_scatter", "all_gather"]
"""What overlaps in AxoNN (axonn/intra_layer/overlap_communication.py, ``optimize_communication``)."""

OVERLAPPED: tuple[Overlapped, ...] = ("all_reduce", "reduce_scatter", "all_gather")
"""All of these."""


class TensorGrid(Section):
    """AxoNN's three-dimensional grid of tensor-parallel ranks."""

    x: Count = 1
    """Ranks that cut the outputs of the first product of a block, heads among them; alone it is Megatron-LM's."""
    y: Count = 1
    """Ranks that cut the inputs of the first product of a block, and the hidden features between blocks."""
    z: Count = 1
    """Ranks that divide the samples of a micro-batch, and hold the weights in shards."""


def square_side(ranks: int, depth: int = 1) -> int | None:
    """The side q of *depth* square grids of *ranks* in all, at least 2; None if there is none.

    >>> square_side(16), square_side(8, depth=2), square_side(8)
    (4, 2, None)
    """
    side = isqrt(ranks // depth)
    return side if side > 1 and side * side * depth == ranks else None


def nearest_square(ranks: int, depth: int = 1) -> list[int]:
    """The numbers of ranks nearest to *ranks* that make *depth* square grids.

    >>> nearest_square(8), nearest_square(8, depth=3)
    ([4, 9], [12])
    """
    side = isqrt(ranks // depth)
    return [one * one * depth for one in (side, side + 1) if one > 1]


def made_grid(degrees: Mapping[str, int], mode: Mode, *, only_linear: bool) -> Grid:
    """The grid of these *degrees* by axis. *only_linear*: as ``axonn.auto_parallelize`` makes it."""
    from clustersim.workloads.operators.sharded import Side
    from clustersim.workloads.operators.tensor_grids import agarwal, replaced, summa

    x, y, z = (Side(axis, degrees[axis]) for axis in (X, Y, DEPTH))
    if mode == "3d":
        return replaced(x, y, z) if only_linear else agarwal(x, y, z)
    return summa(x, y, z)


def check_cut_by_grids(model: Transformer) -> None:
    """Raise `ScenarioError` if grids do not cut all operators of *model*."""
    shape = model.shape
    for beyond, what in (
        (shape.block != "serial", f"block: {shape.block}"),
        (not shape.causal, "a bidirectional head"),
        (shape.decoder, "an encoder and a decoder"),
        (shape.num_nextn_predict_layers, "num_nextn_predict_layers"),
        (shape.lora, "lora"),
        (shape.layers, "layers of other blocks than attention and mlp"),
    ):
        if beyond:
            raise ScenarioError(
                f"a grid of tensor-parallel ranks needs a causal decoder with block: serial, and {model.name} has "
                f"{what}; give one degree, such as tp: 4"
            )


def on_grid(model: Transformer, grid: Grid, *, only_linear: bool) -> Transformer:
    """The model of one rank of *grid*. Raises `ScenarioError` if its sides do not divide the sizes of *model*."""
    from clustersim.workloads.architectures.shape import nearest_divisors
    from clustersim.workloads.operators.sharded import Cut

    check_cut_by_grids(model)
    shape = model.shape
    if only_linear and shape.embedding.tied:
        raise ScenarioError("auto_parallelize replaces the logits' layer, so it needs tie_embeddings: false")
    sizes = {
        "num_attention_heads": shape.attention.num_heads,
        "ffn_hidden_size": shape.mlp.ffn_hidden_size,
        "hidden_size": shape.hidden_size,
    }
    cuts = [("num_attention_heads", grid.columns), ("ffn_hidden_size", grid.columns), ("hidden_size", grid.features)]
    if only_linear:
        x, y, _ = grid.samples
        cuts = [(key, side) for key in ("hidden_size", "ffn_hidden_size") for side in (x, y)]
    for key, side in cuts:
        count = sizes[key]
        if count % side.ranks:
            good = " or ".join(map(str, nearest_divisors(count, side.ranks)))
            name = side.over.removeprefix(f"{TENSOR}.")
            raise ScenarioError(f"{name} = {side.ranks} does not divide {key} = {count} of {model.name}; try {good}")
    return model.reshaped(cut=Cut(grid.columns.over, grid.columns.ranks, grid=grid))


def with_overlap(schedule: Schedule, overlapped: Collection[str]) -> Schedule:
    """*schedule* with what AxoNN overlaps, beside all-reduces: gathers and reduce-scatters of weights over z."""

    def change(program: Program) -> Program:
        program = gathered_once(program, DEPTH)
        if "all_gather" in overlapped:
            program = gathered_ahead(program, DEPTH)
        return scattered_beside(program, DEPTH) if "reduce_scatter" in overlapped else program

    return schedule.map_programs(change)


Bandwidth = Callable[[int, int], float]
"""(ranks of the sides before a side, ranks of the side) -> bytes/s of a ring over the side, while all rings run."""


@dataclass(frozen=True, slots=True)
class FourDimensions:
    """Ranks along x, y and z, and *data* replicas of such a grid; y varies fastest with the rank, then x, then z."""

    x: int
    y: int
    z: int
    data: int

    def __str__(self) -> str:
        return f"x {self.x} y {self.y} z {self.z} dp {self.data}"


@dataclass(frozen=True, slots=True)
class LayerProduct:
    """A product of *inputs* and *outputs*; *transposed*: x and y have changed places."""

    inputs: int
    outputs: int
    transposed: bool = False


def products(shape: Shape) -> Iterator[LayerProduct]:
    """The products of a transformer of that *shape*, which is not cut: four for each layer, and the logits."""
    queries, keys = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
    hidden, feed_forward = shape.hidden_size, shape.mlp.ffn_hidden_size
    for _ in range(shape.num_layers):
        yield LayerProduct(hidden, queries + 2 * keys)
        yield LayerProduct(queries, hidden, transposed=True)
        yield LayerProduct(hidden, feed_forward * (2 if shape.mlp.gated else 1))
        yield LayerProduct(feed_forward, hidden, transposed=True)
    yield LayerProduct(hidden, shape.vocabulary)


def communication_seconds(
    made: Sequence[LayerProduct],
    rows: float,
    grid: FourDimensions,
    bandwidth: Bandwidth,
    *,
    width: int,
    gradient_width: int = 4,
    micro_batches: int = 1,
    forwards: int = 1,
) -> float:
    """Seconds of all collectives of a step over *rows* tokens of all replicas, elements of *width* bytes.

    *gradient_width*: bytes of a gradient that replicas reduce.
    *micro_batches* of a replica: each gathers weights and scatters their gradients. *forwards*: 2 if the forward pass
    is recomputed; its sums are then repeated.
    """
    x, y, z, d = grid.x, grid.y, grid.z, grid.data
    rate_y, rate_x = bandwidth(1, y), bandwidth(y, x)
    rate_z, rate_d = bandwidth(x * y, z), bandwidth(x * y * z, d)
    total = 0.0
    for product in made:
        k, n = product.inputs, product.outputs
        block, m = k * n / (x * y), rows / (z * d)
        columns, inner = (y, x) if product.transposed else (x, y)
        rate_columns, rate_inner = (rate_y, rate_x) if product.transposed else (rate_x, rate_y)
        # gathered before the forward and the backward pass, scattered after it
        weights = 3 * micro_batches * (z - 1) / z * block / rate_z
        outputs = 2 * forwards * (inner - 1) / inner * m * n / columns / rate_inner
        inputs = 2 * (columns - 1) / columns * m * k / inner / rate_columns
        replicas = 2 * (d - 1) / d * block / z / rate_d
        total += width * (weights + outputs + inputs) + gradient_width * replicas
    return total


Ops = tuple[Op, ...]

Place = tuple[int | None, str | None]
"""(stage, layer)."""


def gathered_once(program: Program, over: str) -> Program:
    """*program* without the gathers of the backward pass of a layer that is recomputed just before.

    The backward pass uses the weights that the last recomputation has gathered (AxoNN,
    ``cache_weights_in_all_gather``). So these are held until then.
    """

    def change(ops: Ops) -> Iterator[Op]:
        begins = _last_recomputations(ops)
        last = [i for i, op in enumerate(ops) if _gathers(op, over) and i >= begins.get(_place(op), len(ops))]
        phases = {phase: {_place(ops[i]) for i in last if _phase(ops[i]) == phase} for phase in "RBI"}
        again = phases["R"] & (phases["B"] | phases["I"])
        held = 0.0
        for index, op in enumerate(ops):
            if isinstance(op, Collective) and index in last and _place(op) in again:
                held += op.nbytes if _phase(op) == "R" else 0.0
                yield from (op,) * (_phase(op) == "R")
            elif held and isinstance(op, Compute):
                yield replace(op, frees={**op.frees, "buffers": op.frees.get("buffers", 0.0) - held})
                held = 0.0
            else:
                yield op

    return _by_template(program, change)


def gathered_ahead(program: Program, over: str) -> Program:
    """*program* with each gather over *over* issued one product ahead: when the product before it can begin."""

    def change(ops: Ops) -> Iterator[Op]:
        places = [place for place, op in enumerate(ops) if _gathers(op, over)]
        moved = [replace(ops[place], stream=over, after=_before(ops, issue)) for place, issue in _issues(places)]
        issued: defaultdict[int, list[Op]] = defaultdict(list)
        for op, (_, issue) in zip(moved, _issues(places), strict=True):
            issued[issue].append(op)
        awaited: tuple[str, ...] = ()
        for place, op in enumerate(ops):
            if _gathers(op, over):
                yield from issued[place]
                awaited += (op.name,)
            elif awaited and isinstance(op, Compute):
                yield replace(op, after=(*op.after, *awaited))
                awaited = ()
            else:
                yield op

    return _by_template(program, change)


def _issues(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(place of a gather, place where it is issued): that of the gather before it."""
    return zip(places, [*places[:1], *places[:-1]], strict=True)


def _before(ops: Ops, place: int) -> tuple[str, ...]:
    """The name of the last computation before *place*, if there is one."""
    names = [op.name for op in ops[:place] if isinstance(op, Compute)]
    return tuple(names[-1:])


def scattered_beside(program: Program, over: str) -> Program:
    """*program* with reduce-scatters over *over* beside what follows; only the optimizer step waits for them.

    A computation without kernels at the end of a layer's backward pass is ready when all of the layer's gradients are,
    so that data parallelism can reduce them further.
    """

    def change(ops: Ops) -> Iterator[Op]:
        last: dict[tuple[Action | None, str | None], int] = {
            (op.action, op.layer): place for place, op in enumerate(ops) if isinstance(op, Compute) and op.layer
        }
        pending: set[tuple[Action | None, str | None]] = set()
        for place, op in enumerate(ops):
            key: tuple[Action | None, str | None] = (op.action, op.layer)
            if isinstance(op, Collective) and op.kind == "reduce_scatter" and _on(op, over):
                yield replace(op, stream=over, after=_before(ops, place))
                pending.add(key)
                continue
            if op.action and op.action.phase == "O":
                ready = Compute(name=f"{op.name}.reduced", stream=over, kernels=())
                yield from (ready, replace(op, after=(*op.after, ready.name)))
                continue
            yield op
            if last.get(key) == place and key in pending:
                name = f"{op.name}.reduced"
                yield Compute(name=name, action=op.action, layer=op.layer, stream=over, after=(op.name,), kernels=())

    return _by_template(program, change)


def _last_recomputations(ops: Ops) -> dict[Place, int]:
    """By place, the index of the first op of the last recomputation before the backward pass."""
    found: dict[Place, int] = {}
    latest: Place | None = None
    for index, op in enumerate(ops):
        if op.action and op.layer:
            place = _place(op) if op.action.phase == "R" else None
            if place and place != latest:
                found[place] = index
            latest = place
    return found


def _phase(op: Op) -> str:
    return op.action.phase if op.action else ""


def _place(op: Op) -> Place:
    """(stage, layer)."""
    return op.action.stage if op.action else None, op.layer


def _gathers(op: Op, over: str) -> bool:
    return isinstance(op, Collective) and op.kind == "all_gather" and _on(op, over)


def _on(op: Collective, over: str) -> bool:
    return op.over == over and op.stream == "compute"


def _by_template(program: Program, change: Callable[[Ops], Iterator[Op]]) -> Program:
    ops = program.templated
    mapped = [tuple(change(tuple(template))) for template in ops.templates]
    return program.with_templated_ops(ops.mapped(mapped))
