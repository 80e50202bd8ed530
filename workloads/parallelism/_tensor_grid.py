"""Grids of tensor-parallel ranks: their keys, axes and rules.

Modes are called as in Colossal-AI: ``1d`` is Megatron-LM's, ``2d`` Optimus, ``2.5d`` Tesseract, ``3d`` AxoNN's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isqrt
from typing import TYPE_CHECKING, Literal

from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import Count, Section
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule

if TYPE_CHECKING:
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
    from clustersim.workloads.operators.grids.summa import summa
    from clustersim.workloads.operators.grids.three_dimensional import agarwal, replaced
    from clustersim.workloads.operators.sharded import Side

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

    from clustersim.workloads.parallelism._axonn import gathered_ahead, gathered_once, scattered_beside

    def change(program: Program) -> Program:
        program = gathered_once(program, DEPTH)
        if "all_gather" in overlapped:
            program = gathered_ahead(program, DEPTH)
        return scattered_beside(program, DEPTH) if "reduce_scatter" in overlapped else program

    return schedule.map_programs(change)
