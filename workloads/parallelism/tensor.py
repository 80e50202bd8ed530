"""Tensor parallelism: the ranks of a group hold a share of every layer, and exchange what its products need.

`sharded` makes the model of one rank: its operators are cut, and name their exchanges over the axis ``tp``
(`workloads.operators.sharded`). The computation is made of that model, exchanges included. What is left to
`tensor_parallel` is a sum of gradients at the end of the step. Shoeybi et al. 2019, "Megatron-LM" (arXiv:1909.08053);
sequence parallelism as in Korthikanti et al. 2022 (arXiv:2205.05198).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
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
from workloads.shape import nearest_divisors
from workloads.transformer import Transformer

TENSOR = "tp"


class Tensor(Parallelism):
    """*tp* ranks share every layer.

    *sequence_parallel*: operators that are not cut run on a shard of the sequence each. *tp_overlap*: the part of the
    exchanges that runs beside their products; true is all of it. *tp_split*: how the two products of a block are cut.
    ``column_row`` is Megatron-LM's, with one exchange for two products; ``column_column`` has one for each.
    """

    axis: ClassVar[str] = TENSOR
    key: ClassVar[str] = "tp"

    tp: Count = 1
    sequence_parallel: Flag = False
    tp_overlap: Flag | Fraction = False
    tp_split: Literal["column_row", "column_column"] = "column_row"

    @model_validator(mode="after")
    def _belongs_to_tensor_parallelism(self) -> Self:
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
        """As given."""
        return {TENSOR: self.tp}

    def share(self, model: Model) -> Model:
        """The share of *model* on one rank."""
        return sharded(model, self.tp, sequence_parallel=self.sequence_parallel, by_columns=self.by_columns)

    def overlap(self, software: Software) -> Mapping[str, Overlap]:
        """*tp_overlap*; if it is 0, what the software overlaps by itself."""
        return {TENSOR: Overlap(float(self.tp_overlap), software.async_tensor)}

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """Sum the gradients of tensors that every rank has for its own shard of the sequence only."""
        return tensor_parallel(schedule, step.model, gradient_dtype=step.gradient_dtype)


def sharded(model: Model, degree: int, *, sequence_parallel: bool = False, by_columns: bool = False) -> Model:
    """The share of *model* that one of *degree* ranks holds. Raises `ScenarioError` for a degree that does not divide.

    Heads and the feed-forward size are divided; the vocabulary is padded. Key and value heads, if there are fewer than
    ranks, are held several times. *by_columns*: both products of a block are cut by columns
    (`workloads.operators.sharded`).
    """
    if degree == 1:
        return model
    if not isinstance(model, Transformer):
        raise ScenarioError(f"tp = {degree}: only a transformer is cut by tensors, {model.name} is not; try 1")
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
    """*schedule* of the `sharded` *model*: its exchanges are over ``tp``, and partial gradients are summed over it.

    *degree*: make so many copies of all ranks first; None: the mesh has the axis. Partial gradients are those of norms
    and biases, which with sequence parallelism each rank has for its own positions only. They are all-reduced before
    each optimizer step (Megatron-LM, finalize_model_grads). *gradient_dtype*: default is the model's precision.
    """
    width = BYTES[gradient_dtype or model.precision]
    schedule = schedule if degree is None else schedule.replicate(TENSOR, degree)

    def summed(program: Program) -> Program:
        def change(op: Op) -> Iterator[Op]:
            if isinstance(op, Compute) and op.action and op.action.phase == "O":
                stage = None if op.action.micro_batch is None else op.action.stage
                count = _partial_parameters(model, _layers(program, stage))
                if count:
                    name, nbytes = f"{op.name}.partial gradients", float(count * width)
                    yield Collective(name=name, kind="all_reduce", over=TENSOR, nbytes=nbytes)
            yield op

        return program.map_ops(change)

    return schedule.map_programs(summed)


def _layers(program: Program, stage: int | None) -> set[str]:
    """The layers that *program* computes: all, or those of one *stage*."""
    ops = (op for op in program.distinct() if op.action and op.action.phase == "F")
    return {op.layer for op in ops if op.layer and op.action and stage in (None, op.action.stage)}


def _partial_parameters(model: Model, layers: Collection[str]) -> int:
    """How many parameters of *layers* have gradients that are summed over the group."""
    tensors = (tensor for layer in model.layers if layer.name in layers for tensor in layer.tensors)
    return sum(tensor.count for tensor in tensors if TENSOR in tensor.reduced_over)
