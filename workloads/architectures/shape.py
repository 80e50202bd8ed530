"""The shape of a transformer: the sizes and choices from which all its layers follow, a group for each part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from math import ceil

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.architectures.attention_keys import Window
from clustersim.workloads.blocks._block import Block, HiddenStates
from clustersim.workloads.operators.attentions.context_parallel import ALONE, ContextCut
from clustersim.workloads.operators.attentions.core_attention import AttentionKind, Latent
from clustersim.workloads.operators.elementwise import EVERYTHING, Saved
from clustersim.workloads.operators.experts import Experts
from clustersim.workloads.operators.frozen_weights import Quantisation
from clustersim.workloads.operators.lora import Lora
from clustersim.workloads.operators.low_precision import LowPrecision
from clustersim.workloads.operators.operator import Rule, fuses
from clustersim.workloads.operators.sharded import WHOLE, Cut


@dataclass(frozen=True)
class SelfAttention:
    """Attention of *num_heads* queries and *num_key_value_heads* keys and values, whose output has a product.

    *head_dim*: features of a head; 0: an equal part of the hidden size. *kind*: ``unfused``, ``flash``, the import path
    of a function from a `Shape` to operators, or a kind with parameters (`workloads.operators.attentions`). *latent*:
    sizes of latent attention; heads then have as many keys and values as queries. *mask*: ``causal`` or ``full``; "":
    by the head of the model. *windows*: in turn over the layers; none: each position attends to all that the mask
    leaves. *document_length*: of documents of a sequence, in turn. *qk_norm*: RMS norms of queries and keys, ``none``,
    ``per_head`` (Qwen 3) or ``all_heads`` (over the features of all heads: OLMo 2). *bias*: of all products;
    *qkv_bias*: of the first product even if the other has none. *sinks*: each head has a learned score that no position
    has (GPT-OSS). *output_gate*: the product of queries makes as many gates, which scale what attention gives
    (Qwen3-Next). *rotary_share*: of the features of a head that rotary positions turn.
    """

    num_heads: int
    num_key_value_heads: int
    head_dim: int = 0
    kind: str | AttentionKind = "unfused"
    latent: Latent | None = None
    mask: str = ""
    windows: tuple[Window, ...] = ()
    document_length: tuple[int, ...] = ()
    qk_norm: str = "none"
    bias: bool = True
    qkv_bias: bool = False
    sinks: bool = False
    output_gate: bool = False
    rotary_share: float = 1.0

    def counts(self, features: int) -> Mapping[str, int]:
        """By name, what the ranks of tensor parallelism must divide, of hidden states with *features*."""
        return {"heads": self.num_heads}

    def of_layer(self, number: int) -> SelfAttention:
        """That of layer *number*, with its own window only, and an indexer of its own or not."""
        own = self
        if len(self.windows) > 1:
            own = replace(own, windows=(self.windows[number % len(self.windows)],))
        if self.latent and self.latent.index:
            own = replace(own, latent=self.latent.of_layer(number))
        return own


@dataclass(frozen=True)
class Mlp:
    """A feed-forward network: a product to *ffn_hidden_size* features, an activation, and a product back.

    *activation*: ``gelu``, ``relu`` and ``squared_relu`` are one kernel, and ``xielu``, which has two parameters
    (Apertus); ``gelu_new`` is the tanh form of gelu, written out unless the software fuses it; ``swiglu`` and ``geglu``
    multiply it by a second product. *bias*: of the products. Experts have the same activation and biases.
    """

    ffn_hidden_size: int
    activation: str = "gelu"
    bias: bool = True

    @property
    def gated(self) -> bool:
        """True if the activation multiplies two products."""
        return self.activation in ("swiglu", "geglu")

    def counts(self, features: int) -> Mapping[str, int]:
        """By name, what the ranks of tensor parallelism must divide, of hidden states with *features*."""
        return {"ffn_hidden_size": self.ffn_hidden_size}


@dataclass(frozen=True)
class Norm:
    """*kind*: ``layernorm``, with a *bias*, or ``rmsnorm``.

    *placement*: ``before`` each block of a causal model, ``after`` it (of its output, before the residual sum: OLMo 2),
    or ``both`` (Gemma 2). A model that is not causal normalises after each residual sum (BERT). *weight*: False: it has
    no parameters (OLMo).
    """

    kind: str = "layernorm"
    bias: bool = True
    placement: str = "before"
    weight: bool = True


@dataclass(frozen=True)
class Embedding:
    """Vectors of tokens and positions. *tied*: the logits share the matrix. *norm*: one follows.

    *positions*: ``learned_absolute``, ``rope``, ``alibi``, ``relative`` or ``none``. *position_rows*: of the learned
    table, 0: one for each position. *relative_buckets*: rows of the learned table of relative positions. *type_rows*:
    rows of the table of token types (BERT).
    """

    tied: bool = True
    norm: bool = False
    positions: str = "learned_absolute"
    position_rows: int = 0
    relative_buckets: int = 32
    type_rows: int = 0


@dataclass(frozen=True)
class Decoder:
    """A decoder of *num_layers* layers behind the encoder (T5); its samples have *seq_length* tokens."""

    num_layers: int
    seq_length: int


LayerBlock = SelfAttention | Mlp | Block
"""What stands in a layer between a norm and a residual sum."""


@dataclass(frozen=True)
class Shape:
    """A transformer on one rank; names are those of Hugging Face and Megatron-LM.

    *attention*, *mlp*, *norm* and *embedding* are its parts; *experts*: of layers with a mixture in place of the MLP.
    *layers*: the blocks of layers in turn, ``attention``, ``mlp`` or a `Block`; none: each has attention and an MLP.
    *block*: ``serial``, attention and then MLP; ``parallel``, both of one norm of the layer's input (PaLM); or
    ``parallel_two_norms``, each of its own norm (GPT-NeoX).
    *head*: ``causal_lm``, or one of BERT's: ``masked_lm``, ``pretraining`` (that and the next-sentence task), ``span``
    or ``classification``. A model with a causal head normalises before each block (GPT-2, Llama), another one after it
    (BERT). *max_predictions*: positions of a sample whose tokens a masked head predicts; 0: all.
    *residual_streams*: of hyper-connections.
    *num_nextn_predict_layers*: modules that predict further tokens. *decoder*: the sizes above are then the encoder's,
    and both have the same parts.
    *software*: how kernels are fused, and the loss and the products computed. *low*: how the linear maps of the layers
    run in 8 or 4 bits; None: they do not. *lora*: adapters of a frozen model; None: all parameters are trained.
    *saved*: what activation functions of feed-forward networks keep. *again*: which operators recomputation runs again;
    None: core attention, where it does.
    *cut*: how tensor parallelism cuts each layer. *context*: how context parallelism cuts the sequence; *seq_length* is
    then that of one rank. *degrees*: of further axes that share the model, for the user's own operators.
    """

    num_layers: int
    hidden_size: int
    seq_length: int
    vocab_size: int
    attention: SelfAttention
    mlp: Mlp
    norm: Norm = Norm()
    embedding: Embedding = Embedding()
    experts: Experts | None = None
    layers: tuple[tuple[str | Block, ...], ...] = ()
    block: str = "serial"
    head: str = "causal_lm"
    head_bias: bool = False
    max_predictions: int = 0
    num_nextn_predict_layers: int = 0
    residual_streams: int = 1
    decoder: Decoder | None = None
    dropout: bool = True
    precision: str = "fp32"
    software: Software = field(default_factory=Software)
    low: LowPrecision | None = None
    lora: Lora | None = None
    saved: Saved = EVERYTHING
    again: Rule | None = None
    cut: Cut = WHOLE
    context: ContextCut = ALONE
    degrees: Mapping[str, int] = field(default_factory=dict)

    @property
    def whole_length(self) -> int:
        """Positions of a sequence, on all ranks that share it."""
        return self.seq_length * self.context.ranks

    def of_layer(self, number: int) -> Shape:
        """The shape of layer *number*, with its own window only."""
        own = self.attention.of_layer(number)
        return self if own is self.attention else replace(self, attention=own)

    def blocks_of(self, number: int) -> tuple[LayerBlock, ...]:
        """The blocks of layer *number*; its MLP may be a mixture of experts."""
        known: dict[str, LayerBlock] = {"attention": self.attention, "mlp": self.mlp}
        names = self.layers[number % len(self.layers)] if self.layers else (*known,)
        return tuple(known[one] if isinstance(one, str) else one for one in names)

    @property
    def blocks(self) -> list[LayerBlock]:
        """The different blocks of all layers."""
        found: list[LayerBlock] = []
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
            self.software.fused,
            self.low,
            self.kept_share,
        )

    def fuses(self, operator: str) -> bool:
        """True if *operator* is one kernel, or part of one."""
        return fuses(self.software.fused, operator)

    @property
    def causal(self) -> bool:
        """True for the family of GPT and Llama: norms before each block, and a head that predicts the next token."""
        return self.head == "causal_lm"

    @property
    def masked(self) -> bool:
        """True if a position sees only those before it."""
        return self.attention.mask == "causal" if self.attention.mask else self.causal

    @property
    def relative_positions(self) -> bool:
        """True if a learned bias of each pair of positions is added to the scores."""
        return self.embedding.positions == "relative"

    @property
    def loss(self) -> str:
        """How the loss is computed."""
        return self.software.cross_entropy or ("fused" if self.fuses("cross_entropy") else "eager")

    @property
    def residual_precision(self) -> str:
        """The precision of the residual stream, which layers pass on."""
        wide = self.software.fp32_residual and not self.lora and BYTES[self.precision] < BYTES["fp32"]
        return "fp32" if wide or self.prepared else self.precision

    @property
    def fp32_adapters(self) -> bool:
        """True if adapters are held in fp32 beside a model of 16 bits."""
        if not self.lora or BYTES[self.precision] == BYTES["fp32"]:
            return False
        how = self.software.adapters
        return how == "fp32" or (how == "fp32_beside_4_bits" and self.lora.quantisation is not None)

    @property
    def prepared(self) -> bool:
        """True if all that bitsandbytes does not hold in 4 bits is in fp32.

        PEFT, utils/other.py, ``prepare_model_for_kbit_training``, which leaves GPTQ's models as they are.
        """
        packed = self.lora is not None and isinstance(self.lora.quantisation, Quantisation)
        return packed and self.fp32_adapters and self.software.kbit_training

    @property
    def activation_precision(self) -> str:
        """The precision of what lies between the products of a block: that of a wide stream if products return it."""
        return self.residual_precision if self.prepared else self.precision

    @property
    def head_size(self) -> int:
        """Features of one attention head."""
        return self.attention.head_dim or self.hidden_size // self.attention.num_heads

    @property
    def heads(self) -> int:
        """Query heads of one rank."""
        return self.attention.num_heads // self.cut.ranks

    @property
    def key_value_heads(self) -> int:
        """Key and value heads of one rank. If there are fewer than ranks, several ranks hold the same one."""
        return max(1, self.attention.num_key_value_heads // self.cut.ranks)

    @property
    def own_rows(self) -> int:
        """Positions of a sample in one shard of the sequence, if sequence parallelism cuts it."""
        return self.seq_length // self.cut.sequence_shards

    @property
    def predicted_positions(self) -> int:
        """Positions of a sample on this rank whose tokens the head predicts, as many in each shard of the sequence."""
        if not self.max_predictions:
            return self.seq_length
        shards = self.cut.sequence_shards
        return min(self.seq_length, shards * ceil(self.max_predictions / self.context.ranks / shards))

    @property
    def kept_share(self) -> int:
        """A product keeps one part in so many of an input that is gathered from the shards of the sequence."""
        return 1 if self.software.keep_gathered or self.cut.grid else self.cut.sequence_shards

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding on one rank, padded to equal shares."""
        return ceil(self.vocab_size / self.cut.ranks)

    @property
    def hidden_bytes(self) -> float:
        """Bytes that one layer passes to the next for each sample; those of a shard if hidden states are cut."""
        shares = self.cut.sequence_shards * (self.cut.grid.sample_shares if self.cut.grid else 1)
        return self.residual_streams * self.seq_length * self.hidden_size * BYTES[self.residual_precision] / shares

    @property
    def sequence_bytes(self) -> float:
        """Bytes of the hidden state of a whole sequence."""
        return self.hidden_bytes / self.residual_streams * self.cut.sequence_shards


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """The divisors of *number* nearest to *wanted*, one below (or equal) and one above.

    >>> nearest_divisors(96, 10)
    [8, 12]
    """
    divisors = [d for d in range(1, min(number, 65536) + 1) if number % d == 0]
    below, above = [d for d in divisors if d <= wanted], [d for d in divisors if d > wanted]
    return [*below[-1:], *above[:1]]
