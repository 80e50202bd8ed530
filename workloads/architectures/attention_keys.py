"""Keys of attention in a model: a word or a section of a kind, latent attention, and windows by layer.

Gemma 2 (arXiv:2408.00118) and GPT-OSS have a window in every other layer, Gemma 3 (arXiv:2503.19786) in five of six,
OLMo 3 in three of four; Llama 4 cuts the sequence into chunks in three of four (transformers,
src/transformers/models/*/configuration_*.py, ``layer_types``). The first layers of each turn have the window.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.names_and_parameters import known
from clustersim.simulator.reading.quantities import Count, Flag, Index, Section, number
from clustersim.simulator.reading.validation import Fault

if TYPE_CHECKING:
    from clustersim.workloads.operators.attentions.core_attention import AttentionKind, Latent

ATTENTIONS = ["unfused", "flash"]
"""Core attentions that are named by a word."""

KINDS = ("sparse", "low_rank", "lsh", "memory", "linear", "performer")
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
    def _sound(self) -> Self:
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

    def made(self) -> "AttentionKind":
        """The kind."""
        from clustersim.workloads.operators.attentions.sparse_attention import BlockSparse

        window = self.window if isinstance(self.window, int) else 0
        return BlockSparse(self.block, window, self.summary, self.global_, self.random, self.density)


class LowRankKeys(Section):
    """Low-rank attention: keys and values are projected along the sequence (Linformer)."""

    kind: Annotated[Literal["low_rank"], KNOWN]
    """low_rank: Linformer. Required."""
    rank: Count = 256
    """Rows of the projected keys and values; 256 by default, as the paper has for 512 tokens and more."""

    def made(self) -> "AttentionKind":
        """The kind."""
        from clustersim.workloads.operators.attentions.cross_attention import LowRank

        return LowRank(self.rank)


class HashedKeys(Section):
    """Attention within buckets of similar positions (Reformer)."""

    kind: Annotated[Literal["lsh"], KNOWN]
    """lsh: locality-sensitive hashing. Required."""
    rounds: Count = 8
    """Rounds of hashing; 8 by default, with which the paper comes close to full attention."""
    chunk: Count = 64
    """Positions of a chunk, which attends to itself and to the one before it."""

    def made(self) -> "AttentionKind":
        """The kind."""
        from clustersim.workloads.operators.attentions.sparse_attention import Hashed

        return Hashed(self.rounds, self.chunk)


class MemoryKeys(Section):
    """Attention by way of learned vectors that see all positions (Set Transformer)."""

    kind: Annotated[Literal["memory"], KNOWN]
    """memory: a memory of all positions. Required."""
    tokens: Count = 64
    """Vectors of the memory."""

    def made(self) -> "AttentionKind":
        """The kind."""
        from clustersim.workloads.operators.attentions.cross_attention import MemoryAttention

        return MemoryAttention(self.tokens)


class LinearKeys(Section):
    """Attention by feature maps in place of a softmax, linear in the length (Katharopoulos et al.)."""

    kind: Annotated[Literal["linear"], KNOWN]
    """linear: elu(x) + 1 of queries and keys. Required."""
    features: Count | None = None
    """Features of the map; by default those of a head."""
    chunk: Count = 64
    """Positions of a chunk under a causal mask; 64 by default, as in flash-linear-attention."""

    def made(self) -> "AttentionKind":
        """The kind."""
        from clustersim.workloads.operators.attentions.kernel_attention import KernelAttention

        return KernelAttention(self.features or 0, random=False, chunk=self.chunk)


class PerformerKeys(Section):
    """Attention that estimates the softmax by random features, linear in the length (Performer)."""

    kind: Annotated[Literal["performer"], KNOWN]
    """performer: positive random features of queries and keys (FAVOR+). Required."""
    features: Count = 256
    """Random features; 256 by default, as in the paper's experiments."""
    chunk: Count = 64
    """Positions of a chunk under a causal mask; 64 by default."""

    def made(self) -> "AttentionKind":
        """The kind."""
        from clustersim.workloads.operators.attentions.kernel_attention import KernelAttention

        return KernelAttention(self.features, random=True, chunk=self.chunk)


def _word(name: Any) -> Any:
    return known(name, "clustersim.workloads.operators", only=ATTENTIONS) if isinstance(name, str) else name


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
    | Annotated[MemoryKeys, Tag("memory")]
    | Annotated[LinearKeys, Tag("linear")]
    | Annotated[PerformerKeys, Tag("performer")],
    Discriminator(_kind),
]
"""A word, the import path of the user's own (a function from a `Shape` to operators), or a section."""


class LatentKeys(Section):
    """Keys of multi-head latent attention. Without kv_lora_rank attention is not latent."""

    kv_lora_rank: Count | None = None
    """Features of the vector from which keys and values are made (multi-head latent attention); by default none."""
    q_lora_rank: Count | None = None
    """Features of the vector from which queries are made; by default they are made from the hidden state."""
    qk_nope_head_dim: Count = 128
    """Features of a query that are not rotated, for each head; 128 by default, as in Megatron-LM (qk_head_dim)."""
    qk_rope_head_dim: Count = 64
    """Features of a query that are rotated, for each head; 64 by default (qk_pos_emb_head_dim)."""
    v_head_dim: Count = 128
    """Features of a value, for each head; 128 by default."""
    index_topk: Count | None = None
    """Tokens to which a position attends, which an indexer chooses (DeepSeek-V3.2, GLM-5); by default all before it."""
    index_n_heads: Count = 64
    """Heads of the indexer; 64 by default, as in DeepSeek-V3.2."""
    index_head_dim: Count = 128
    """Features of a head of the indexer; 128 by default."""
    index_layers: Annotated[list[Literal[0, 1]], Field(min_length=1)] | None = None
    """1 for a layer that has an indexer, 0 for one that takes the choice of the layer before (GLM-5.2), repeated; by
    default every layer has one."""

    @property
    def latent(self) -> "Latent | None":
        """Its sizes."""
        from clustersim.workloads.operators.attentions.core_attention import Latent
        from clustersim.workloads.operators.attentions.indexer import Index

        if self.kv_lora_rank is None:
            return None
        pattern = tuple(self.index_layers or (1,))
        index = (
            Index(self.index_n_heads, self.index_head_dim, self.index_topk, pattern=pattern)
            if self.index_topk
            else None
        )
        sizes = self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim
        return Latent(self.q_lora_rank or 0, self.kv_lora_rank, *sizes, index)

    def check_latent(self, attention: str) -> None:
        """Raise `Fault` for keys that stand without latent attention, and for kernels that it does not have."""
        own = [key for key in LatentKeys.model_fields if key in self.model_fields_set]
        if self.kv_lora_rank is None and own:
            raise Fault(own[0], "belongs to latent attention; give kv_lora_rank too")
        if self.kv_lora_rank is not None and attention != "flash":
            raise Fault("attention", f"must be flash with kv_lora_rank, not {attention}")
        indexed = [key for key in own if key.startswith("index_") and key != "index_topk"]
        if self.index_topk is None and indexed:
            raise Fault(indexed[0], "belongs to an indexer; give index_topk too")
        if self.index_layers is not None and not self.index_layers[0]:
            raise Fault("index_layers", "must begin with 1: no layer before the first one chooses tokens")


OF = re.compile(r"(\d{1,4}) of (\d{1,4})")


@dataclass(frozen=True)
class Window:
    """The *size* of the window of a layer in positions, 0: all. *chunked*: the sequence is cut into parts of that size.

    A position then attends to those before it in its own chunk, else to itself and the *size* - 1 before it.
    """

    size: int
    chunked: bool = False


def _turn(value: Any) -> Any:
    found = OF.fullmatch(value) if isinstance(value, str) else None
    if found is None or not 0 < int(found[1]) <= int(found[2]):
        raise ValueError(f'must say how many layers of how many have the window, such as "5 of 6", not {value!r}')
    return value


class WindowKeys(Section):
    """A window of attention that some layers have."""

    size: Count
    """Positions to which each one attends in a layer with a window. Required."""
    every: Annotated[str, BeforeValidator(_turn)] = "1 of 1"
    """Layers with a window, the first of each turn, as text: "5 of 6". By default all layers."""
    chunked: Flag = False
    """The sequence is cut into chunks of that size, and a position attends within its own (Llama 4)."""


Windows = Count | WindowKeys | Annotated[list[Index], Field(min_length=1)]
"""Of a scenario: one window for all layers, a section, or windows in turn over the layers (0: all positions)."""


def windows_of(given: int | WindowKeys | Sequence[int] | None) -> tuple[Window, ...]:
    """Return the windows in turn over the layers; none if all layers see all positions.

    >>> windows_of(WindowKeys(size=512, every="2 of 3"))
    (Window(size=512, chunked=False), Window(size=512, chunked=False), Window(size=0, chunked=False))
    >>> windows_of([128, 0]) == windows_of(WindowKeys(size=128, every="1 of 2"))
    True
    """
    if given is None:
        return ()
    if isinstance(given, int):
        return (Window(given),)
    if isinstance(given, WindowKeys):
        windowed, turn = map(int, given.every.split(" of "))
        return (Window(given.size, given.chunked),) * windowed + (Window(0),) * (turn - windowed)
    return tuple(map(Window, given))


def pattern(sizes: Iterable[int]) -> int | dict[str, Any] | list[int] | None:
    """Return the shortest value of the key that gives layers windows of *sizes*, one for each layer; 0: all positions.

    >>> pattern([4096] * 32), pattern([0] * 4), pattern([128, 0] * 12), pattern([512, 512, 0, 512])
    (4096, None, {'size': 128, 'every': '1 of 2'}, {'size': 512, 'every': '2 of 3'})
    """
    whole = list(sizes)
    if not any(whole):
        return None
    turn = next(n for n in range(1, len(whole) + 1) if all(one == whole[i % n] for i, one in enumerate(whole)))
    first = whole[:turn]
    if turn == 1:
        return first[0]
    windowed = first.index(0) if 0 in first else turn
    if len({*first[:windowed]}) == 1 and not any(first[windowed:]):
        return {"size": first[0], "every": f"{windowed} of {turn}"}
    return first
