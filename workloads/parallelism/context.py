"""Context parallelism: each rank of a group has a part of every sequence, and all have the same weights.

Only attention needs other positions (`workloads.operators.attentions`). The ranks of a group are replicas too:
gradients are reduced, and states are sharded, over all ranks with the same weights, ``dp`` x ``cp`` (Megatron-LM,
context parallelism guide; Llama 3, arXiv:2407.21783, section 3.3.2; torchtitan, ``dp_shard_cp``).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import model_validator

from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import BelongsTo, Count
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.schedule.mesh import Axis, Mesh
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.parallelism._parallelism import Choices, Chosen, Job, Parallelism, divisors, is_transformer

if TYPE_CHECKING:
    from clustersim.workloads.architectures.shape import Shape
    from clustersim.workloads.operators.attentions.context_parallel import ContextCut

CONTEXT = "cp"


LEAST_TOKENS = 4096
"""Tokens of a sample on a rank down to which a planner divides it; Llama 3 keeps 8,192 (arXiv:2407.21783, table 4)."""


def _degrees(job: Job, chosen: Chosen) -> Sequence[int]:
    gpus = job.gpus // (chosen["tp"] if isinstance(chosen["tp"], int) else 1)
    return divisors(gpus, max(1, job.tokens // LEAST_TOKENS))


OF_SEVERAL = BelongsTo("cp", to="context parallelism, but cp is 1")


class Context(Parallelism):
    """Context parallelism: ranks hold a part of every sequence each."""

    axis: ClassVar[str] = CONTEXT
    key: ClassVar[str] = "cp"
    same_weights: ClassVar[bool] = True
    searchable: ClassVar[Mapping[str, Choices]] = {"cp": _degrees}

    cp: Count = 1
    """Ranks that share every sequence."""
    cp_method: Annotated[Literal["ring", "zigzag", "all_gather", "ulysses"] | None, OF_SEVERAL] = None
    """ring (the default) passes keys and values around, all_gather gathers them, ulysses exchanges positions for heads
    (fewer key and value heads than ranks are repeated); zigzag is ring with cp_layout: zigzag."""
    cp_layout: Annotated[Literal["zigzag", "contiguous"] | None, OF_SEVERAL] = None
    """Positions of a rank: zigzag (the default, an early and a late chunk: equal work under a causal mask) or
    contiguous."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.cp_method == "ulysses" and self.cp_layout is not None:
            raise Fault("cp_layout", "belongs to ring and all_gather; with ulysses a rank attends to all positions")
        if self.cp_method == "zigzag" and self.cp_layout == "contiguous":
            raise Fault("cp_layout", "contiguous contradicts cp_method: zigzag; take cp_method: ring")
        return self

    @property
    def cut(self) -> "ContextCut":
        """How sequences are cut."""
        from clustersim.workloads.operators.attentions.context_parallel import ContextCut

        method = "ring" if self.cp_method in (None, "zigzag") else str(self.cp_method)
        return ContextCut(CONTEXT, self.cp, method, zigzag=self.cp_layout != "contiguous")

    def degrees(self, ranks: int) -> Mapping[str, int]:
        """The degree of ``cp``; no axis at all if it is 1."""
        return {CONTEXT: self.cp} if self.cp > 1 else {}

    def further_axes(self, mesh: Mesh) -> Mapping[str, Axis]:
        """``dp`` joins all ranks with the same weights."""
        return {REPLICAS: mesh.joint(CONTEXT, REPLICAS)} if self.cp > 1 else {}

    def share(self, model: Model) -> Model:
        """The model of one rank. Raises `ScenarioError` if *cp* does not divide, or for attention not made for it."""
        if self.cp == 1:
            return model
        if not is_transformer(model):
            raise ScenarioError(
                f"cp = {self.cp}: context parallelism needs a transformer, and {model.name} is not one; try 1"
            )
        _check_length(model.shape, self.cut, model.name)
        _check_attention(model.shape, self.cut, model.name)
        return model.reshaped(seq_length=model.shape.seq_length // self.cp, context=self.cut)

    def facts(self) -> Mapping[str, Any]:
        """The method and the layout."""
        if self.cp == 1:
            return {}
        layout = {} if self.cut.method == "ulysses" else {"cp_layout": "zigzag" if self.cut.zigzag else "contiguous"}
        return {"cp_method": self.cut.method, **layout}


def _check_length(shape: "Shape", cut: "ContextCut", name: str) -> None:
    """Raise `ScenarioError` unless the chunks of a sequence are equal, also on the shards of sequence parallelism."""
    from clustersim.workloads.architectures.shape import nearest_divisors

    length, shards = shape.seq_length, shape.cut.sequence_shards
    chunks = 2 * cut.ranks if cut.method != "ulysses" and cut.zigzag else cut.ranks
    if length % chunks or length // cut.ranks % shards:
        what = f"seq_length = {length} of {name} is not divisible by"
        if length % chunks and chunks > cut.ranks:
            raise ScenarioError(f"{what} 2 x cp = {chunks}, the chunks of cp_layout: zigzag")
        if length % chunks:
            good = " or ".join(map(str, nearest_divisors(length, cut.ranks)))
            raise ScenarioError(f"{what} cp = {cut.ranks}; try {good}")
        raise ScenarioError(f"{what} cp {cut.ranks} x tp {shards}, which sequence_parallel needs")


def _check_attention(shape: "Shape", cut: "ContextCut", name: str) -> None:
    """Raise `ScenarioError` if the attention of *shape* cannot be cut so."""
    from clustersim.workloads.architectures.shape import nearest_divisors
    from clustersim.workloads.blocks._block import Block
    from clustersim.workloads.operators.attentions.cross_attention import MemoryAttention
    from clustersim.workloads.operators.attentions.kernel_attention import KernelAttention

    for block in shape.blocks:
        fault = block.context_fault(shape.hidden_states, cut) if isinstance(block, Block) else ""
        if fault:
            raise ScenarioError(f"cp = {cut.ranks} does not fit {name}: {fault}")
    if shape.attention not in shape.blocks:
        return
    latent = shape.attention.latent
    if latent and latent.index and cut.method != "all_gather":
        raise ScenarioError(
            f"cp = {cut.ranks}: {name} attends to tokens that an indexer chooses, whose keys are gathered; "
            f"take cp_method: all_gather, not {cut.method}"
        )
    if cut.method == "ulysses":
        groups, ranks = shape.key_value_heads, cut.ranks
        part = f" of a rank of tp {shape.cut.ranks}" if shape.cut.ranks > 1 else ""
        why = "cp_method: ulysses gives each rank some of them"
        if shape.heads % ranks:
            good = " or ".join(str(n) for n in nearest_divisors(shape.heads, ranks) if n > 1) or "ring"
            what = f"cp = {ranks} does not divide the {shape.heads} heads of {name}{part}"
            raise ScenarioError(f"{what}; {why}; try {good}")
        if groups % ranks and ranks % groups:
            good = " or ".join(str(n) for n in nearest_divisors(groups, ranks) if n > 1) or "ring"
            what = f"cp = {ranks} does not divide the {groups} key and value heads of {name}{part}, nor they it"
            raise ScenarioError(f"{what}; {why}, or repeats of one; try {good}")
        if isinstance(shape.attention.kind, MemoryAttention):
            raise ScenarioError(f"cp = {cut.ranks}: the heads of a memory are parameters, which cp does not cut; try 1")
    elif isinstance(shape.attention.kind, KernelAttention):
        return
    elif shape.attention.kind != "flash":
        raise ScenarioError(
            f"cp = {cut.ranks}: cp_method: {cut.method} needs attention: flash, and {name} has {shape.attention.kind}; "
            "cp_method: ulysses takes any"
        )
    elif any(window.size and not window.chunked for window in shape.attention.windows) and (
        cut.method == "ring" or not shape.causal
    ):
        raise ScenarioError(
            f"cp = {cut.ranks}: cp_method: {cut.method} computes whole blocks of scores, and {name} has an "
            f"attention_window; take {'all_gather' if shape.causal else 'ulysses'}"
        )
