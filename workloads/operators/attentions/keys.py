"""The key `attention` of a model: a word, or a section of a kind with parameters of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from simulator.document import Count, Fault, Index, Section
from simulator.document.names import known
from simulator.document.quantities import number

if TYPE_CHECKING:
    from workloads.operators.attentions.kind import AttentionKind

ATTENTIONS = ["unfused", "flash"]
"""Core attentions that are named by a word."""

KINDS = ("sparse", "low_rank", "lsh", "memory")
"""Kinds with a section."""


def _known(kind: Any) -> Any:
    if kind not in KINDS:
        raise ValueError(f'must be {", ".join(KINDS[:-1])} or {KINDS[-1]}, not "{kind}"')
    return kind


KNOWN = BeforeValidator(_known)


class SparseKeys(Section):
    """Block-sparse attention: scores are computed in the blocks of a pattern only."""

    kind: Annotated[Literal["sparse"], KNOWN]
    """sparse: blocks of scores. Required."""
    block: Count = 64
    """Rows and columns of a block of scores; 64 by default, a tile of a product."""
    window: Count | Literal["sqrt"] | None = None
    """Positions near a position to which it attends; sqrt: sqrt(summary x seq_length), the law n^1.5 of Sparse
    Transformers."""
    summary: Index = 0
    """The last positions of every window, to which all attend (Sparse Transformer, DeepSpeed's fixed pattern)."""
    global_: Index = Field(0, alias="global")
    """The first positions, which attend to all and to which all attend (Longformer, BigBird)."""
    random: Index = 0
    """Further positions at random to which each attends (BigBird)."""
    density: Annotated[float, BeforeValidator(number(0.0, 1.0))] | None = None
    """Share of all blocks that is computed, 0 to 1, in place of a pattern."""

    @model_validator(mode="after")
    def _sound(self) -> SparseKeys:
        if (self.density is None) == (self.window is None):
            raise Fault("window" if self.density is None else "density", "give either a window or a density")
        for key in ("summary", "global_", "random"):
            if self.density is not None and getattr(self, key):
                raise Fault(key.rstrip("_"), "belongs to a window, but density is given")
        if self.density == 0:
            raise Fault("density", "must be above 0, not 0")
        if self.window == "sqrt" and not self.summary:
            raise Fault("window", "sqrt needs a summary, the positions of each window that all others see")
        return self

    def made(self) -> AttentionKind:
        """The kind."""
        from workloads.operators.attentions.block_sparse import BlockSparse

        window = self.window if isinstance(self.window, int) else 0
        return BlockSparse(self.block, window, self.summary, self.global_, self.random, self.density)


class LowRankKeys(Section):
    """Low-rank attention: keys and values are projected along the sequence (Linformer)."""

    kind: Annotated[Literal["low_rank"], KNOWN]
    """low_rank: Linformer. Required."""
    rank: Count = 256
    """Rows of the projected keys and values; 256 by default, as the paper has for 512 tokens and more."""

    def made(self) -> AttentionKind:
        """The kind."""
        from workloads.operators.attentions.low_rank import LowRank

        return LowRank(self.rank)


class HashedKeys(Section):
    """Attention within buckets of similar positions (Reformer)."""

    kind: Annotated[Literal["lsh"], KNOWN]
    """lsh: locality-sensitive hashing. Required."""
    rounds: Count = 8
    """Rounds of hashing; 8 by default, with which the paper comes close to full attention."""
    chunk: Count = 64
    """Positions of a chunk, which attends to itself and to the one before it."""

    def made(self) -> AttentionKind:
        """The kind."""
        from workloads.operators.attentions.hashed import Hashed

        return Hashed(self.rounds, self.chunk)


class MemoryKeys(Section):
    """Attention by way of learned vectors that see all positions (Set Transformer)."""

    kind: Annotated[Literal["memory"], KNOWN]
    """memory: a memory of all positions. Required."""
    tokens: Count = 64
    """Vectors of the memory."""

    def made(self) -> AttentionKind:
        """The kind."""
        from workloads.operators.attentions.memory import Memory

        return Memory(self.tokens)


def _word(name: Any) -> Any:
    return known(name, "workloads.operators", only=ATTENTIONS) if isinstance(name, str) else name


Word = Annotated[str, BeforeValidator(_word), WithJsonSchema({"type": "string", "examples": ATTENTIONS})]


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return kind if (kind := value.get("kind")) in KINDS else "sparse"
    return str(getattr(value, "kind", "word"))


AttentionKeys = Annotated[
    Annotated[Word, Tag("word")]
    | Annotated[SparseKeys, Tag("sparse")]
    | Annotated[LowRankKeys, Tag("low_rank")]
    | Annotated[HashedKeys, Tag("lsh")]
    | Annotated[MemoryKeys, Tag("memory")],
    Discriminator(_kind),
]
"""A word, the import path of the user's own (a function from a `Shape` to operators), or a section."""
