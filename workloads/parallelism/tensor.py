"""Tensor parallelism: each rank of a group holds a shard of every layer, and the ranks exchange activations.

There are two parts. `sharded` makes the model of one rank; its operators name their exchanges over the axis ``tp``
(`workloads.operators.sharded`). The computation of a step is made from this model and has these exchanges already.
`tensor_parallel` is the pass that follows. It adds the all-reduce of those gradients that are partial sums.

Shoeybi et al. 2019, "Megatron-LM" (arXiv:1909.08053); sequence parallelism as in Korthikanti et al. 2022
(arXiv:2205.05198).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from simulator.accelerator import Software
from simulator.document import Count, Fault, Flag, Fraction
from simulator.errors import ScenarioError
from simulator.kernel import BYTES
from simulator.schedule import Collective, Compute, Op, Program, Schedule
from workloads.model import Model
from workloads.operators.lowering import Overlap
from workloads.operators.sharded import Cut
from workloads.parallelism import Parallelism, TrainingStep
from workloads.parallelism.search import Choices, Chosen, Job, divisors
from workloads.shape import nearest_divisors
from workloads.transformer import Transformer

TENSOR = "tp"


def _degrees(job: Job, chosen: Chosen) -> Sequence[int]:
    """Tensor parallelism communicates in every layer, so it stays in a node."""
    return divisors(job.node, job.node)


def _on_sequences(job: Job, chosen: Chosen) -> Sequence[bool]:
    return (True, False) if chosen["tp"] > 1 else (False,)


class Tensor(Parallelism):
    """Tensor parallelism: ranks hold a shard of every layer each."""

    axis: ClassVar[str] = TENSOR
    key: ClassVar[str] = "tp"
    searchable: ClassVar[Mapping[str, Choices]] = {"tp": _degrees, "sequence_parallel": _on_sequences}

    tp: Count = 1
    """Ranks that share every layer; they must divide the heads."""
    sequence_parallel: Flag = False
    """Norms and dropout run on a shard of the sequence on each tensor-parallel rank."""
    tp_overlap: Flag | Fraction = False
    """Fraction of each tensor-parallel exchange that overlaps with its matrix product; true is all of it."""
    tp_split: Literal["column_row", "column_column"] = "column_row"
    """column_row is Megatron-LM's, with one exchange for two products; column_column has one for each."""

    @model_validator(mode="after")
    def _needs_several_ranks(self) -> Self:
        if self.tp == 1:
            for key in ("sequence_parallel", "tp_overlap"):
                if getattr(self, key):
                    raise Fault(key, "belongs to tensor parallelism, but tp is 1")
            if self.by_columns:
                raise Fault("tp_split", "belongs to tensor parallelism, but tp is 1")
        if self.by_columns and self.sequence_parallel:
            raise Fault("sequence_parallel", "belongs to tp_split: column_row, but tp_split is column_column")
        return self

    @property
    def by_columns(self) -> bool:
        """True if both products of a block are cut by columns."""
        return self.tp_split == "column_column"

    def degrees(self, ranks: int) -> Mapping[str, int]:
        """The degree of ``tp``, as given."""
        return {TENSOR: self.tp}

    @property
    def boundary_copies(self) -> int:
        """All of its ranks, unless each holds a shard of the sequence."""
        return 1 if self.sequence_parallel else self.tp

    def share(self, model: Model) -> Model:
        """The model of one rank."""
        return sharded(model, self.tp, sequence_parallel=self.sequence_parallel, by_columns=self.by_columns)

    def overlap(self, software: Software) -> Mapping[str, Overlap]:
        """The overlap of exchanges over ``tp``: *tp_overlap*, and whether the software overlaps by itself."""
        return {TENSOR: Overlap(float(self.tp_overlap), software.async_tensor)}

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """Add the all-reduce of partial gradients; see `tensor_parallel`."""
        return tensor_parallel(schedule, step.model, gradient_dtype=step.gradient_dtype)


def sharded(model: Model, degree: int, *, sequence_parallel: bool = False, by_columns: bool = False) -> Model:
    """The model of one of *degree* ranks. Raises `ScenarioError` if *degree* does not divide the sizes of *model*.

    Attention heads and the feed-forward size are divided by *degree*. The vocabulary is padded to a multiple of it. If
    there are fewer key and value heads than ranks, several ranks hold the same one. *by_columns*: both products of a
    block are cut by columns (`workloads.operators.sharded`).
    """
    if degree == 1:
        return model
    if not isinstance(model, Transformer):
        raise ScenarioError(
            f"tp = {degree}: tensor parallelism needs a transformer, and {model.name} is not one; try 1"
        )
    if by_columns and model.shape.block == "parallel":
        raise ScenarioError("tp_split: column_column belongs to block: serial, but the model has block: parallel")
    keys = {"num_attention_heads": "heads", "ffn_hidden_size": "ffn_hidden_size"}
    for key, word in {**keys, **({"hidden_size": "hidden_size"} if by_columns else {})}.items():
        count: int = getattr(model.shape, key)
        if degree < 1 or count % degree:
            good = " or ".join(map(str, nearest_divisors(count, degree)))
            raise ScenarioError(f"tp = {degree} does not divide the {count} {word} of {model.name}; try {good}")
    if sequence_parallel and model.shape.seq_length % degree:
        raise ScenarioError(
            f"tp = {degree} does not divide seq_length = {model.shape.seq_length}, which sequence parallelism needs"
        )
    return model.reshaped(cut=Cut(TENSOR, degree, sequence_parallel, by_columns))


def tensor_parallel(
    schedule: Schedule, model: Model, degree: int | None = None, *, gradient_dtype: str | None = None
) -> Schedule:
    """*schedule* of the `sharded` *model*, with an all-reduce of partial gradients before each optimizer step.

    With sequence parallelism, a rank computes the gradients of norms and of some biases from its own shard of the
    sequence. So the gradient is the sum over the ranks (Megatron-LM, finalize_model_grads). *degree*: the number of
    copies of all ranks that are made first, joined by the axis ``tp``; None: the mesh has the axis. *gradient_dtype*:
    default is the precision of the model.
    """
    element_bytes = BYTES[gradient_dtype or model.precision]
    schedule = schedule if degree is None else schedule.replicate(TENSOR, degree)

    def sum_before_updates(program: Program) -> Program:
        def change(op: Op) -> Iterator[Op]:
            if isinstance(op, Compute) and op.action and op.action.phase == "O":
                # an optimizer step without micro-batch is the only one of its program and updates all its stages
                stage = None if op.action.micro_batch is None else op.action.stage
                count = _partial_parameters(model, _layers(program, stage))
                if count:
                    name, nbytes = f"{op.name}.partial gradients", float(count * element_bytes)
                    yield Collective(name=name, kind="all_reduce", over=TENSOR, nbytes=nbytes)
            yield op

        return program.map_ops(change)

    return schedule.map_programs(sum_before_updates)


def _layers(program: Program, stage: int | None) -> set[str]:
    """The names of the layers that *program* computes in *stage*; None: in all its stages."""
    ops = (op for op in program.distinct() if op.action and op.action.phase == "F")
    return {op.layer for op in ops if op.layer and op.action and stage in (None, op.action.stage)}


def _partial_parameters(model: Model, layers: Collection[str]) -> int:
    """The number of parameters of *layers* with partial gradients, which are reduced over ``tp``."""
    tensors = (tensor for layer in model.layers if layer.name in layers for tensor in layer.tensors)
    return sum(tensor.count for tensor in tensors if TENSOR in tensor.reduced_over)
