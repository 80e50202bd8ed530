"""Tensor parallelism: each rank of a group holds a shard of every layer, and the ranks exchange activations.

There are two parts. `sharded` makes the model of one rank; its operators name their exchanges over the axis ``tp``
(`workloads.operators.sharded`). The computation of a step is made from this model and has these exchanges already.
`tensor_parallel` is the pass that follows. It adds the all-reduce of those gradients that are partial sums.

Shoeybi et al. 2019, "Megatron-LM" (arXiv:1909.08053); sequence parallelism as in Korthikanti et al. 2022
(arXiv:2205.05198). Ranks of two and three dimensions: `workloads.operators.tensor_grids`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import model_validator

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import BelongsTo, Count, Flag, Fraction
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.operators.lowering import Overlap
from clustersim.workloads.operators.model import Model
from clustersim.workloads.parallelism._parallelism import (
    Choices,
    Chosen,
    Job,
    Parallelism,
    TrainingStep,
    divisors,
    is_transformer,
)
from clustersim.workloads.parallelism._tensor_grid import (
    DEPTH,
    OVERLAPPED,
    TENSOR,
    Mode,
    Overlapped,
    TensorGrid,
    X,
    Y,
    made_grid,
    nearest_square,
    on_grid,
    square_side,
    with_overlap,
)

if TYPE_CHECKING:
    from clustersim.workloads.architectures.shape import Shape
    from clustersim.workloads.architectures.transformer import Transformer
    from clustersim.workloads.operators.sharded import Grid

AUTO = "auto"
"""The degree that AxoNN's communication model chooses."""


def _degrees(job: Job, chosen: Chosen) -> Sequence[int]:
    """Tensor parallelism communicates in every layer, so it stays in a node."""
    return divisors(job.node, job.node)


def _on_sequences(job: Job, chosen: Chosen) -> Sequence[bool]:
    return (True, False) if isinstance(chosen["tp"], int) and chosen["tp"] > 1 else (False,)


def _overlapped(job: Job, chosen: Chosen) -> Sequence[bool]:
    """Megatron Core overlaps exchanges of shards of the sequence (--tp-comm-overlap needs --sequence-parallel)."""
    return (True, False) if job.overlaps and chosen["sequence_parallel"] is True else (False,)


OF_SEVERAL = BelongsTo("tp", to="tensor parallelism, but tp is 1")

OF_1D = BelongsTo("mode", "1d", to="tp_mode 1d, but it is {value}")

OF_AXONN = BelongsTo("mode", "3d", to="AxoNN's grid (tp: x, y and z), but tp_mode is {value}")


class Tensor(Parallelism):
    """Tensor parallelism: ranks hold a shard of every layer each."""

    axis: ClassVar[str] = TENSOR
    key: ClassVar[str] = "tp"
    searchable: ClassVar[Mapping[str, Choices]] = {
        "tp": _degrees,
        "sequence_parallel": _on_sequences,
        "tp_overlap": _overlapped,
    }

    tp: Count | Literal["auto"] | TensorGrid = 1
    """Ranks that share every layer; they must divide the heads. {x: 2, y: 2, z: 2} is AxoNN's grid, auto the grid that
    its communication model chooses."""
    tp_mode: Mode | None = None
    """Dimensions of the grid: 1d (Megatron-LM), 2d (SUMMA, a square number of ranks), 2.5d (tp_depth square grids), 3d
    (AxoNN; tp is then x, y and z, auto, or a number whose grid its communication model chooses)."""
    tp_depth: Count | None = None
    """Square grids of tp_mode 2.5d."""
    auto_parallelize: Annotated[Flag, OF_AXONN] = False
    """AxoNN replaces linear layers only, as its auto_parallelize does: each exchanges samples for features and back."""
    sequence_parallel: Annotated[Flag, OF_SEVERAL, OF_1D] = False
    """Norms and dropout run on a shard of the sequence on each tensor-parallel rank."""
    tp_overlap: Annotated[Flag | Fraction | list[Overlapped], OF_SEVERAL] = False
    """Fraction of each tensor-parallel exchange that overlaps with its matrix product; true is all of it. On AxoNN's
    grid a list of what overlaps: all_reduce, reduce_scatter, all_gather."""
    tp_split: Annotated[Literal["column_row", "column_column"], OF_SEVERAL, OF_1D] = "column_row"
    """column_row is Megatron-LM's, with one exchange for two products; column_column has one for each."""

    tp_head: Literal["vocabulary", "sequence"] = "vocabulary"
    """What a rank has of the logits: those of a part of the vocabulary, or, with sequence_parallel, of a part of the
    sequence."""

    @model_validator(mode="after")
    def _fits_the_sequence(self) -> Self:
        if self.tp_head == "sequence" and not self.sequence_parallel:
            raise Fault("tp_head", "sequence belongs to sequence_parallel: true")
        if self.by_columns and self.sequence_parallel:
            raise Fault("sequence_parallel", "belongs to tp_split: column_row, but tp_split is column_column")
        return self

    @model_validator(mode="after")
    def _fits_its_mode(self) -> Self:
        mode = self.mode
        if self.tp_mode and self.tp_mode != mode:
            raise Fault("tp_mode", f"must be 3d, not {self.tp_mode}: tp is {'auto' if self.tp == AUTO else 'a grid'}")
        if (self.tp_depth is None) is (mode == "2.5d"):
            raise Fault(
                "tp_depth", f"belongs to tp_mode 2.5d, {'which needs it' if mode == '2.5d' else f'but it is {mode}'}"
            )
        if self.tp_overlap and (isinstance(self.tp_overlap, list), mode) not in ((False, "1d"), (True, "3d")):
            form = {"1d": "true or a fraction", "3d": f"a list of {', '.join(OVERLAPPED)}"}.get(mode, "false")
            raise Fault("tp_overlap", f"must be {form} with tp_mode {mode}")
        if mode in ("2d", "2.5d") and isinstance(self.tp, int) and not square_side(self.tp, self.tp_depth or 1):
            good = " or ".join(map(str, nearest_square(self.tp, self.tp_depth or 1)))
            grids = "a square grid" if mode == "2d" else f"{self.tp_depth} square grids"
            raise Fault("tp", f"{self.tp} ranks do not make {grids} of tp_mode {mode}; try {good}")
        return self

    @property
    def mode(self) -> Mode:
        """*tp_mode*, by default 3d for a grid or auto and 1d for a number."""
        return "3d" if not isinstance(self.tp, int) else self.tp_mode or "1d"

    @property
    def chosen_by_model(self) -> bool:
        """True if AxoNN's communication model has to choose the grid first."""
        return self.tp == AUTO or (self.mode == "3d" and isinstance(self.tp, int))

    @property
    def by_columns(self) -> bool:
        """True if both products of a block are cut by columns."""
        return self.tp_split == "column_column"

    def degrees(self, ranks: int) -> Mapping[str, int]:
        """The degree of ``tp``, as given; on a grid those of x, y and z."""
        if isinstance(self.tp, TensorGrid):
            # AxoNN numbers its ranks along y first (axonn/communication.py, intra_layer_column_parallel_rank)
            return {Y: self.tp.y, X: self.tp.x, DEPTH: self.tp.z}
        if self.chosen_by_model or not isinstance(self.tp, int):
            return {TENSOR: self.tp if isinstance(self.tp, int) else 1}
        side = square_side(self.tp, self.tp_depth or 1) if self.mode != "1d" else None
        return {X: side, Y: side, DEPTH: self.tp_depth or 1} if side else {TENSOR: self.tp}

    @property
    def ranks(self) -> int:
        """All ranks that share every layer."""
        return prod(self.degrees(1).values())

    @property
    def grid(self) -> "Grid | None":
        """The grid of the ranks; None if it has one dimension or one rank."""
        if self.mode == "1d" or self.chosen_by_model or self.ranks == 1:
            return None
        return made_grid(self.degrees(1), self.mode, only_linear=self.auto_parallelize)

    @property
    def sample_shares(self) -> int:
        """Those of the grid."""
        return self.grid.sample_shares if self.grid else 1

    @property
    def boundary_copies(self) -> int:
        """All of its ranks, unless each holds a shard of the sequence; on a grid those of x."""
        if self.grid:
            return self.grid.columns.ranks if self.grid.equal else 1
        return 1 if self.sequence_parallel else self.ranks

    def share(self, model: Model) -> Model:
        """The model of one rank."""
        if not self.grid:
            return sharded(
                model,
                self.ranks,
                sequence_parallel=self.sequence_parallel,
                by_columns=self.by_columns,
                sequence_head=self.tp_head == "sequence",
                overlapped=bool(self.tp_overlap),
            )
        return on_grid(_transformer(model, self.ranks), self.grid, only_linear=self.auto_parallelize)

    def overlap(self, software: Software) -> Mapping[str, Overlap]:
        """The overlap of exchanges over ``tp``: *tp_overlap*, and whether the software overlaps by itself.

        On a grid: of the gradients of inputs with those of weights, if all-reduces overlap.
        """
        if self.grid:
            beside = Overlap(asynchronous="all_reduce" in self._overlapped)
            return {side.over: beside for side in (self.grid.columns, self.grid.features)}
        share = 0.0 if isinstance(self.tp_overlap, list) else float(self.tp_overlap)
        return {TENSOR: Overlap(share, software.async_tensor)}

    def facts(self) -> Mapping[str, Any]:
        """The sides of the grid."""
        return {"tp_grid": " x ".join(f"{axis} {n}" for axis, n in self.degrees(1).items())} if self.grid else {}

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """Add the all-reduce of partial gradients, see `tensor_parallel`; on AxoNN's grid what overlaps."""
        axes = [axis for axis, ranks in self.degrees(1).items() if ranks > 1]
        schedule = tensor_parallel(schedule, step.model, gradient_dtype=step.gradient_dtype, axes=axes)
        return with_overlap(schedule, self._overlapped) if DEPTH in axes and self.mode == "3d" else schedule

    @property
    def _overlapped(self) -> Sequence[str]:
        return self.tp_overlap if isinstance(self.tp_overlap, list) else ()


def _transformer(model: Model, degree: int) -> "Transformer":
    """*model*. Raises `ScenarioError` if it is no transformer."""
    if is_transformer(model):
        return model
    raise ScenarioError(f"tp = {degree}: tensor parallelism needs a transformer, and {model.name} is not one; try 1")


def sharded(
    model: Model,
    degree: int,
    *,
    sequence_parallel: bool = False,
    by_columns: bool = False,
    sequence_head: bool = False,
    overlapped: bool = False,
) -> Model:
    """The model of one of *degree* ranks. Raises `ScenarioError` if *degree* does not divide the sizes of *model*.

    Attention heads and the feed-forward size are divided by *degree*. The vocabulary is padded to a multiple of it. If
    there are fewer key and value heads than ranks, several ranks hold the same one. *by_columns*: both products of a
    block are cut by columns (`workloads.operators.sharded`). *sequence_head*: a rank computes all logits of its shard
    of the sequence, with a copy of their weight. *overlapped*: exchanges run beside their products, piece by piece.
    """
    if degree == 1:
        return model
    from clustersim.workloads.architectures.shape import nearest_divisors
    from clustersim.workloads.operators.sharded import Cut

    model = _transformer(model, degree)
    if by_columns and model.shape.block == "parallel":
        raise ScenarioError("tp_split: column_column belongs to block: serial, but the model has block: parallel")
    for word, count in _counts(model.shape, by_columns=by_columns).items():
        if degree < 1 or count % degree:
            good = " or ".join(map(str, nearest_divisors(count, degree)))
            raise ScenarioError(f"tp = {degree} does not divide the {count} {word} of {model.name}; try {good}")
    if sequence_parallel and model.shape.seq_length % degree:
        raise ScenarioError(
            f"tp = {degree} does not divide seq_length = {model.shape.seq_length}, which sequence parallelism needs"
        )
    if sequence_head and model.shape.embedding.tied:
        raise ScenarioError(
            "tp_head: sequence needs tie_embeddings: false, since the embedding is cut over the vocabulary"
        )
    batch_first = model.shape.software.batch_first
    pieces = degree if overlapped and batch_first else 1
    return model.reshaped(
        cut=Cut(
            TENSOR,
            degree,
            sequence_parallel,
            by_columns,
            sequence_head=sequence_head,
            batch_first=batch_first,
            pieces=pieces,
        )
    )


def _counts(shape: "Shape", *, by_columns: bool) -> Mapping[str, int]:
    """By name, what tensor-parallel ranks must divide."""
    found: dict[str, int] = {}
    for block in shape.blocks:
        found |= block.counts(shape.hidden_size)
    return found | ({"hidden_size": shape.hidden_size} if by_columns else {})


def tensor_parallel(
    schedule: Schedule,
    model: Model,
    degree: int | None = None,
    *,
    gradient_dtype: str | None = None,
    axes: Sequence[str] = (TENSOR,),
) -> Schedule:
    """*schedule* of the `sharded` *model*, with an all-reduce of partial gradients before each optimizer step.

    With sequence parallelism, a rank computes the gradients of norms and of some biases from its own shard of the
    sequence, or of the samples. So the gradient is the sum over the ranks (Megatron-LM, finalize_model_grads).
    *degree*: the number of copies of all ranks that are made first, joined by the axis ``tp``; None: the mesh has the
    *axes*. *gradient_dtype*: default is the precision of the model.
    """
    element_bytes = BYTES[gradient_dtype or model.precision]
    schedule = schedule if degree is None else schedule.replicate(TENSOR, degree)

    def sum_before_updates(program: Program) -> Program:
        def change(op: Op) -> Iterator[Op]:
            if isinstance(op, Compute) and op.action and op.action.phase == "O":
                # an optimizer step without micro-batch is the only one of its program and updates all its stages
                stage = None if op.action.micro_batch is None else op.action.stage
                layers = _layers(program, stage)
                for axis in axes:
                    count = _partial_parameters(model, layers, axis)
                    if count:
                        name = f"{op.name}.partial gradients{'' if axis == TENSOR else f' over {axis}'}"
                        yield Collective(name=name, kind="all_reduce", over=axis, nbytes=float(count * element_bytes))
            yield op

        return program.map_ops(change)

    return schedule.map_programs(sum_before_updates)


def _layers(program: Program, stage: int | None) -> set[str]:
    """The names of the layers that *program* computes in *stage*; None: in all its stages."""
    return {op.layer for op in program.in_phase("F") if op.layer and op.action and stage in (None, op.action.stage)}


def _partial_parameters(model: Model, layers: Collection[str], axis: str) -> int:
    """The number of parameters of *layers* with partial gradients, which are reduced over *axis*."""
    tensors = (tensor for layer in model.layers if layer.name in layers for tensor in layer.tensors)
    return sum(tensor.count for tensor in tensors if tensor.trainable and axis in tensor.reduced_over[:-1])
