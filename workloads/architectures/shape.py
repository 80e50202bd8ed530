"""The shape of a transformer: the sizes and choices from which all its layers follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from clustersim.simulator.hardware.kernel import BYTES
from clustersim.workloads.architectures.attention_keys import Window
from clustersim.workloads.blocks._block import Block, HiddenStates
from clustersim.workloads.operators.attentions.context_parallel import ALONE, Context
from clustersim.workloads.operators.attentions.core_attention import AttentionKind, Latent
from clustersim.workloads.operators.experts.experts import Experts
from clustersim.workloads.operators.lora import Lora
from clustersim.workloads.operators.low_precision import LowPrecision
from clustersim.workloads.operators.operator_names import Fused, Rule, fuses
from clustersim.workloads.operators.saved_activations import EVERYTHING, Saved
from clustersim.workloads.operators.sharded import WHOLE, Cut

ATTENTION_AND_MLP = ("attention", "mlp")
"""The blocks of a layer of a transformer."""


@dataclass(frozen=True)
class Shape:
    """The sizes and choices of a transformer; names are those of Hugging Face and Megatron-LM.

    *head*: ``causal_lm``, ``masked_lm`` (BERT's, over every position) or ``pretraining`` (that and the next-sentence
    task). A model with a causal head normalises before each block (GPT-2, Llama), another one after it (BERT).
    *attention*: ``unfused``, ``flash``, the import path of a function from a shape to operators, or a kind with
    parameters (`workloads.operators.attentions`). *softmax_group*: the fused softmax takes heads x samples in
    multiples of it. *windows*: of attention, in turn over the layers; none: each position attends to all that the
    mask leaves. *block*: ``serial``, attention and then MLP; ``parallel``, both of one norm of the layer's input
    (PaLM); or ``parallel_two_norms``, each of its own norm (GPT-NeoX). *cut*: how tensor parallelism cuts each
    layer; all counts are then of one rank. *context*: how context parallelism cuts the sequence; *seq_length* is
    then that of one rank, too. *degrees*: of further axes that share the model, for the user's own operators.
    *activation*: ``gelu``, ``relu`` and ``squared_relu`` are one kernel; ``gelu_new`` is the tanh form of gelu, written
    out unless it is *fused*; ``swiglu`` and ``geglu`` multiply it by a second product. *cross_entropy*: how the loss is
    computed; "": in one kernel if it is *fused*, else in eager torch. *wide_softmax*, *gather_logits*, *keep_gathered*,
    *separate_gate* (for a serial *block*), *fp32_residual*: as `Software` has them. *head_dim*: features of an
    attention head, 0: an equal part of the hidden size. *norm_placement*: norms ``before`` each block of a causal
    model, ``after`` it (of its output, before the residual sum: OLMo 2), or ``both`` (Gemma 2). *qk_norm*: RMS norms of
    queries and keys, ``none``, ``per_head`` (Qwen 3) or ``all_heads`` (over the features of all heads: OLMo 2).
    *position_rows*: rows of the learned table of positions, 0: one for each position. *attention_mask*: ``causal`` or
    ``full``; "": by *head*. *num_decoder_layers*: layers of a decoder that follows the encoder, whose other sizes are
    equal (T5); its samples have *decoder_seq_length* tokens. *relative_attention_num_buckets*: rows of the learned
    table of relative positions. *num_nextn_predict_layers*: modules that predict further tokens. *low*: how the linear
    maps of the layers run in 8 or 4 bits; None: they do not. *document_length*: of documents of a sequence.
    *attention_bias*: all products of attention have biases even if other linear operators have none. *attention_sinks*:
    each head has a learned score that no position has (GPT-OSS). *attention_output_gate*: the product
    of queries makes as many gates, which scale what attention gives (Qwen3-Next). *experts*: of layers with a mixture.
    *latent*: sizes of latent attention; heads then have as many keys and values as queries.
    *layers*: the blocks of layers in turn, ``attention``, ``mlp`` or a `Block`; none: each has attention and an MLP.
    *lora*: adapters of a frozen model; None: all parameters are trained. *saved*: what activation functions of
    feed-forward networks keep. *again*: which operators recomputation runs again; None: core attention, where it does.
    """

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    ffn_hidden_size: int
    seq_length: int
    vocab_size: int
    tie_embeddings: bool = True
    activation: str = "gelu"
    attention: str | AttentionKind = "unfused"
    normalization: str = "layernorm"
    position_embedding_type: str = "learned_absolute"
    add_bias_linear: bool = True
    dropout: bool = True
    embedding_norm: bool = False
    type_vocab_size: int = 0
    head: str = "causal_lm"
    block: str = "serial"
    windows: tuple[Window, ...] = ()
    precision: str = "fp32"
    fused: Fused = True
    softmax_group: int = 1
    wide_softmax: bool = False
    cross_entropy: str = ""
    gather_logits: bool = False
    keep_gathered: bool = False
    separate_gate: bool = False
    fp32_residual: bool = False
    cut: Cut = WHOLE
    degrees: Mapping[str, int] = field(default_factory=dict)
    head_dim: int = 0
    add_qkv_bias: bool = False
    norm_bias: bool = True
    norm_placement: str = "before"
    qk_norm: str = "none"
    head_bias: bool = False
    position_rows: int = 0
    attention_mask: str = ""
    num_decoder_layers: int = 0
    decoder_seq_length: int = 0
    relative_attention_num_buckets: int = 32
    num_nextn_predict_layers: int = 0
    low: LowPrecision | None = None
    context: Context = ALONE
    document_length: tuple[int, ...] = ()
    attention_bias: bool = False
    attention_sinks: bool = False
    attention_output_gate: bool = False
    experts: Experts | None = None
    latent: Latent | None = None
    lora: Lora | None = None
    saved: Saved = EVERYTHING
    again: Rule | None = None
    layers: tuple[tuple[str | Block, ...], ...] = ()

    @property
    def whole_length(self) -> int:
        """Positions of a sequence, on all ranks that share it."""
        return self.seq_length * self.context.ranks

    def of_layer(self, number: int) -> Shape:
        """The shape of layer *number*, with its own window only."""
        return replace(self, windows=(self.windows[number % len(self.windows)],)) if len(self.windows) > 1 else self

    def blocks_of(self, number: int) -> tuple[str | Block, ...]:
        """The blocks of layer *number*."""
        return self.layers[number % len(self.layers)] if self.layers else ATTENTION_AND_MLP

    @property
    def blocks(self) -> list[str | Block]:
        """The different blocks of all layers."""
        found: list[str | Block] = []
        for number in range(len(self.layers) or 1):
            found += (block for block in self.blocks_of(number) if block not in found)
        return found

    @property
    def hidden_states(self) -> HiddenStates:
        """What blocks take and give."""
        return HiddenStates(
            self.seq_length,
            self.hidden_size,
            self.precision,
            self.cut,
            self.context,
            self.fused,
            self.low,
            self.kept_share,
        )

    @property
    def causal(self) -> bool:
        """True for the family of GPT and Llama: norms before each block, and a head that predicts the next token."""
        return self.head == "causal_lm"

    @property
    def masked(self) -> bool:
        """True if a position sees only those before it."""
        return self.attention_mask == "causal" if self.attention_mask else self.causal

    @property
    def relative_positions(self) -> bool:
        """True if a learned bias of each pair of positions is added to the scores."""
        return self.position_embedding_type == "relative"

    @property
    def loss(self) -> str:
        """How the loss is computed."""
        return self.cross_entropy or ("fused" if fuses(self.fused, "cross_entropy") else "eager")

    @property
    def residual_precision(self) -> str:
        """The precision of the residual stream, which layers pass on."""
        return (
            "fp32" if self.fp32_residual and not self.lora and BYTES[self.precision] < BYTES["fp32"] else self.precision
        )

    @property
    def head_size(self) -> int:
        """Features of one attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def gated(self) -> bool:
        """True if the activation multiplies two products."""
        return self.activation in ("swiglu", "geglu")

    @property
    def heads(self) -> int:
        """Query heads of one rank."""
        return self.num_attention_heads // self.cut.ranks

    @property
    def key_value_heads(self) -> int:
        """Key and value heads of one rank. If there are fewer than ranks, several ranks hold the same one."""
        return max(1, self.num_key_value_heads // self.cut.ranks)

    @property
    def kept_share(self) -> int:
        """A product keeps one part in so many of an input that is gathered from the shards of the sequence."""
        return 1 if self.keep_gathered or self.cut.grid else self.cut.sequence_shards

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding on one rank, padded to equal shares."""
        return ceil(self.vocab_size / self.cut.ranks)

    @property
    def hidden_bytes(self) -> float:
        """Bytes that one layer passes to the next for each sample; those of a shard if hidden states are cut."""
        shares = self.cut.sequence_shards * (self.cut.grid.sample_shares if self.cut.grid else 1)
        return self.seq_length * self.hidden_size * BYTES[self.residual_precision] / shares


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """The divisors of *number* nearest to *wanted*, one below (or equal) and one above.

    >>> nearest_divisors(96, 10)
    [8, 12]
    """
    divisors = [d for d in range(1, min(number, 65536) + 1) if number % d == 0]
    below, above = [d for d in divisors if d <= wanted], [d for d in divisors if d > wanted]
    return [*below[-1:], *above[:1]]
