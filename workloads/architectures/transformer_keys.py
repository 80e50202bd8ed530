"""The section `model:` of a transformer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.reading.quantities import Count, Flag, Index, number
from clustersim.simulator.reading.validation import Fault
from clustersim.workloads.architectures.attention_keys import KINDS as ATTENTION_KINDS
from clustersim.workloads.architectures.attention_keys import (
    AttentionKeys,
    LatentKeys,
    LowRankKeys,
    Windows,
    windows_of,
)
from clustersim.workloads.architectures.block_keys import ATTENTION, ExpertKeys, LayerKeys, LoraKeys
from clustersim.workloads.architectures.model_keys import (
    KINDS,
    KNOWN,
    MOST_FEATURES,
    MOST_LAYERS,
    Named,
    divides,
    most,
)
from clustersim.workloads.architectures.tower_keys import VisionTowerKeys
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import Fused

if TYPE_CHECKING:
    from clustersim.workloads.architectures.shape import Embedding, SelfAttention, Shape

MASKED_HEADS = ("masked_lm", "pretraining")
"""Heads that predict the tokens at masked positions."""


class TransformerSpecification(Named, ExpertKeys, LatentKeys, LayerKeys):
    """A transformer; keys as in Hugging Face and Megatron-LM, defaults as GPT-2 has them."""

    kind: Annotated[Literal["transformer"], KNOWN] = "transformer"
    """transformer: from the sizes of its layers."""
    num_layers: Count
    """Layers. Also num_hidden_layers, n_layer. Required without a preset."""
    hidden_size: Count
    """Features of the hidden state. Also n_embd, d_model. Required without a preset."""
    num_attention_heads: Count
    """Attention heads; without head_dim they must divide hidden_size. Also n_head. Required without a preset."""
    head_dim: Count | None = None
    """Features of an attention head; by default hidden_size / num_attention_heads."""
    num_key_value_heads: Count | None = None
    """Heads of keys and values (grouped queries); by default num_attention_heads."""
    ffn_hidden_size: Count | None = None
    """Features inside the MLP; by default 4 times hidden_size. Also intermediate_size, n_inner."""
    seq_length: Count
    """Tokens of a sample. Also max_position_embeddings, n_positions. Required without a preset."""
    vocab_size: Count
    """Entries of the vocabulary. Required without a preset."""
    tie_embeddings: Flag = True
    """Embedding and logits share one matrix. Also tie_word_embeddings."""
    activation: Literal["gelu", "gelu_new", "relu", "squared_relu", "xielu", "swiglu", "geglu"] = "gelu"
    """Activation of the MLP; swiglu (also silu) and geglu have three matrices. Also hidden_act, activation_function."""
    attention: AttentionKeys = "unfused"
    """unfused stores the scores, flash does not; the import path of operators of your own; or a section with a kind:
    sparse, low_rank, lsh, memory, linear or performer."""
    attention_window: Windows | None = None
    """Positions to which each one attends, for flash; by default all before it. With options: {size: 512, every: "5 of
    6"}, or a list of windows in turn over the layers (0: all positions). Also sliding_window."""
    document_length: Count | Annotated[list[Count], Field(min_length=1)] | None = None
    """Tokens of the documents that are packed into a sample, one length or several in turn, for flash; attention stays
    within each. By default a sample is one document."""
    block: Literal["serial", "parallel", "parallel_two_norms"] = "serial"
    """serial: attention and then MLP; parallel: both of one norm (GPT-J, PaLM); parallel_two_norms: each of its own
    norm of the layer's input (GPT-NeoX)."""
    normalization: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Kind of the norms."""
    norm_bias: Flag = True
    """Layer norms have a bias."""
    norm_weight: Flag = True
    """Norms of the residual stream have weights; those of OLMo have none."""
    norm_placement: Literal["before", "after", "both"] = "before"
    """Norms of a causal model: before each block, after it (of its output, before the residual sum), or both."""
    qk_norm: Literal["none", "per_head", "all_heads"] = "none"
    """RMS norms of queries and keys: none, over the features of each head (Qwen 3), or of all heads (OLMo 2)."""
    position_embedding_type: Literal["learned_absolute", "rope", "alibi", "relative", "none"] = "learned_absolute"
    """Positions: a learned table, rotary (rope), biases of the scores that are fixed (alibi) or learned (relative: T5),
    or none."""
    position_rows: Count | None = None
    """Rows of the learned table of positions; by default seq_length. OPT has two more."""
    relative_attention_num_buckets: Count = 32
    """Rows of the learned table of relative positions; distances share a row."""
    attention_mask: Literal["causal", "full"] | None = None
    """What a position sees: those before it (causal), or all (full); by default as head needs it."""
    num_decoder_layers: Count | None = None
    """Layers of a decoder behind an encoder of num_layers (T5); by default there is one stack of layers."""
    decoder_seq_length: Count | None = None
    """Tokens of a sample in the decoder; by default seq_length."""
    num_nextn_predict_layers: Count | None = None
    """Modules that predict further tokens, each with a layer (DeepSeek-V3). Also mtp_num_layers."""
    add_bias_linear: Flag = True
    """Linear operators have biases."""
    add_qkv_bias: Flag = False
    """The product that makes queries, keys and values has a bias even if other linear operators have none."""
    attention_bias: Flag = False
    """All products of attention have biases even if other linear operators have none."""
    mlp_bias: Flag = False
    """Products of the MLP have biases even if other linear operators have none (GPT-J)."""
    attention_sinks: Flag = False
    """Each head has a learned score that belongs to no position (GPT-OSS)."""
    attention_output_gate: Flag = False
    """A gate, made with the queries, scales each feature that attention gives (Qwen3-Next)."""
    partial_rotary_factor: Annotated[float, BeforeValidator(number(0.0, 1.0))] = 1.0
    """Share of the features of a head that rotary positions turn, 0 to 1; GPT-NeoX has 0.25, GLM-4 0.5."""
    residual_streams: Count = 1
    """Residual streams of hyper-connections, from which each block takes a mixture (DeepSeek-V4: 4)."""
    dropout: Annotated[float, BeforeValidator(number(0.0, 1.0))] = 0.1
    """Probability of dropout, 0 to 1; above 0 its kernels and masks count."""
    embedding_norm: Flag = False
    """A norm follows the embedding, as in BLOOM and BERT."""
    type_vocab_size: Index = 0
    """Entries of the table of token types, as in BERT; 0: none."""
    head: Literal["causal_lm", "masked_lm", "pretraining", "span", "classification"] = "causal_lm"
    """causal_lm (GPT), or one of BERT's: masked_lm, pretraining (that and the next sentence), span (begin and end of an
    answer, as on SQuAD) or classification (of a sample, as on GLUE)."""
    max_predictions_per_seq: Count | None = None
    """Positions of a sample whose tokens head: masked_lm or pretraining predicts, as NVIDIA's and Google's BERT have it
    (20 of 128); by default all, as Hugging Face and Megatron-LM compute them."""
    head_bias: Flag = False
    """The logits of a causal model have a bias."""
    lora: LoraKeys | None = None
    """Fine-tuning by low-rank adapters of a frozen model; by default all parameters are trained."""
    vision: VisionTowerKeys | None = None
    """A tower of images and its projector, whose tokens are among those of a sample; by default the model sees none."""

    @model_validator(mode="before")
    @classmethod
    def _begun(cls, data: Any) -> Any:
        if isinstance(data, dict) and not {"kind", "preset", "num_layers", "hidden_size"} & data.keys():
            raise ValueError(f"needs a preset, a profile, a kind ({', '.join(KINDS)}) or the sizes of a transformer")
        layers = data.get("layers") if isinstance(data, dict) else None
        if isinstance(layers, list) and not any(ATTENTION in one for one in layers if isinstance(one, str | list)):
            return {"num_attention_heads": 1, **data}  # no layer has heads of attention
        return data

    @model_validator(mode="after")
    def _sound(self) -> Self:
        most("num_layers", self.num_layers, MOST_LAYERS)
        most("hidden_size", self.hidden_size, MOST_FEATURES)
        most("ffn_hidden_size", self.ffn_hidden_size or 0, 100 * MOST_FEATURES)
        most("head_dim", self.head_dim or 0, MOST_FEATURES)
        if self.head_dim is None and self.kv_lora_rank is None:
            divides("num_attention_heads", self.num_attention_heads, "hidden_size", self.hidden_size)
        if self.num_key_value_heads is not None:
            divides("num_key_value_heads", self.num_key_value_heads, "num_attention_heads", self.num_attention_heads)
        if self.attention_window is not None and self.attention_name in ("unfused", *ATTENTION_KINDS):
            why = "compute all scores" if self.attention == "unfused" else "have keys of their own"
            raise Fault("attention_window", f"belongs to attention: flash; {self.attention_name} kernels {why}")
        if self.document_length is not None and self.attention != "flash":
            given = self.attention_name
            raise Fault("document_length", f"belongs to attention: flash; with {given} all scores are computed")
        if self.document_length is not None and self.attention_window is not None:
            raise Fault("document_length", "is not taken together with attention_window; give one of them")
        self._sound_head()
        self.check_experts(self.num_layers)
        self.check_latent(self.attention_name)
        if self.num_experts and self.block != "serial":
            raise Fault("block", f"{self.block} is not modelled with experts; take serial")
        for key, value in (("block", self.block != "serial"), ("head", self.head != "causal_lm")):
            if value and self.norm_placement != "before":
                raise Fault("norm_placement", f"belongs to serial causal models, not to {key}: {getattr(self, key)}")
        self._sound_decoder()
        self._sound_attention()
        self._sound_lora()
        beside = {
            f"block: {self.block}": self.block != "serial",
            f"head: {self.head}": self.head != "causal_lm",
            "num_decoder_layers": self.num_decoder_layers is not None,
            "lora": self.lora is not None,
        }
        if self.residual_streams > 1:
            others = {**beside, "num_nextn_predict_layers": self.num_nextn_predict_layers is not None}
            for what in (what for what, value in others.items() if value):
                raise Fault("residual_streams", f"is not modelled with {what}; leave one of them out")
        if self.attention_output_gate and (self.kv_lora_rank or self.num_decoder_layers):
            raise Fault(
                "attention_output_gate", "is not modelled with latent attention, nor with a decoder; leave it out"
            )
        self.check_layers(self.hidden_size, beside)
        self._sound_vision({**beside, "num_nextn_predict_layers": bool(self.num_nextn_predict_layers)})
        return self

    def _sound_head(self) -> None:
        """Check that the head fits the layers and the sequence."""
        predicted = self.max_predictions_per_seq
        if self.block != "serial" and self.head != "causal_lm":
            raise Fault("block", f"{self.block} normalises before the block, but head: {self.head} normalises after it")
        if predicted is not None and self.head not in MASKED_HEADS:
            raise Fault("max_predictions_per_seq", f"belongs to head: masked_lm or pretraining, not to {self.head}")
        if predicted is not None and predicted > self.seq_length:
            raise Fault("max_predictions_per_seq", f"{predicted} are more than the {self.seq_length} of seq_length")

    def _sound_vision(self, beside: dict[str, bool]) -> None:
        """Check that the tower of images fits the model."""
        if self.vision is None:
            return
        for what in (what for what, given in beside.items() if given):
            raise Fault("vision", f"is not modelled with {what}; leave one of them out")
        if self.vision.projector.widths[-1] != self.hidden_size:
            last = self.vision.projector.widths[-1]
            raise Fault(
                ("vision", "projector", "widths"), f"end with {last}, not with hidden_size = {self.hidden_size}"
            )
        if (tokens := self.vision.tower().tokens) > self.seq_length:
            raise Fault(("vision", "images"), f"have {tokens} tokens, more than seq_length = {self.seq_length}")

    @property
    def attention_name(self) -> str:
        """The word of the kind of attention."""
        return self.attention if isinstance(self.attention, str) else self.attention.kind

    def _sound_attention(self) -> None:
        """Check that a kind of attention with a section fits the model."""
        if isinstance(self.attention, str):
            return
        masked = self.attention_mask == "causal" or (self.attention_mask is None and self.head == "causal_lm")
        if masked and not self.attention.made().masks:
            what = f"{self.attention.kind} mixes all positions, so it cannot hide later ones"
            raise Fault("attention", f"{what}; it belongs to attention_mask: full, or head: masked_lm")
        if isinstance(self.attention, LowRankKeys) and self.attention.rank > self.seq_length:
            what = f"{self.attention.rank} rows of keys are more than the {self.seq_length} positions"
            raise Fault(("attention", "rank"), f"{what}, so nothing is saved; take fewer, or unfused")
        if self.num_decoder_layers is not None:
            raise Fault("attention", f"{self.attention.kind} is not known of an encoder and a decoder; take flash")
        if self.position_embedding_type == "relative":
            raise Fault("attention", f"{self.attention.kind} kernels add no learned bias; take unfused")

    def _sound_lora(self) -> None:
        """Check that adapters fit the model."""
        if self.lora is None:
            return
        gated = self.activation in ("swiglu", "geglu")
        self.lora.check(gated=gated, hidden_size=self.hidden_size, tied=self.tie_embeddings)
        if self.num_experts:
            self.lora.check_experts()
        unknown = {
            "kv_lora_rank": self.kv_lora_rank,
            "num_decoder_layers": self.num_decoder_layers,
            "num_nextn_predict_layers": self.num_nextn_predict_layers,
            f"attention: {self.attention_name}": self.attention_name in ("low_rank", "memory"),
            "relative positions": self.position_embedding_type == "relative",
        }
        for what in (what for what, given in unknown.items() if given):
            raise Fault("lora", f"is not modelled with {what}; leave one of them out")

    def _sound_decoder(self) -> None:
        """Check what belongs to an encoder and a decoder, and relative positions."""
        most("num_decoder_layers", self.num_decoder_layers or 0, MOST_LAYERS)
        if self.num_decoder_layers is None and self.decoder_seq_length is not None:
            raise Fault("decoder_seq_length", "belongs to an encoder and a decoder; give num_decoder_layers too")
        if self.num_decoder_layers is not None:
            for key in ("head", "block", "norm_placement", "attention_mask", "attention_window"):
                if getattr(self, key) != type(self).model_fields[key].default:
                    raise Fault(key, f"{getattr(self, key)} is not known of an encoder and a decoder; leave it out")
        if self.num_nextn_predict_layers is not None and self.num_decoder_layers is not None:
            raise Fault("num_nextn_predict_layers", "belongs to one stack of layers, not to an encoder and a decoder")
        if self.num_nextn_predict_layers is not None and self.head != "causal_lm":
            raise Fault("num_nextn_predict_layers", f"belongs to head: causal_lm, not to {self.head}")
        if self.position_embedding_type == "relative" and self.attention == "flash":
            raise Fault("attention", "flash kernels add no learned bias; relative positions need attention: unfused")

    def build(self, precision: str = "fp32", fused: Fused = True, folder: Path | None = None) -> Model:
        """The model with products in *precision*, its elementwise kernels *fused* or not."""
        shape = self._shape(precision, fused, folder)
        if shape.decoder:
            from clustersim.workloads.architectures.encoder_decoder import encoder_decoder

            return encoder_decoder(shape, self.title)
        if shape.num_nextn_predict_layers:
            from clustersim.workloads.architectures.transformer import next_tokens

            return next_tokens(shape, self.title)
        if self.vision:
            from clustersim.workloads.architectures.towers import vision_language

            return vision_language(shape, self.vision.tower(), self.title)
        from clustersim.workloads.architectures.transformer import transformer

        return transformer(shape, self.title)

    def _shape(self, precision: str, fused: Fused, folder: Path | None) -> "Shape":
        from clustersim.workloads.architectures.shape import Decoder, Mlp, Norm, Shape

        width = self.ffn_hidden_size or 4 * self.hidden_size
        tokens = self.decoder_seq_length or self.seq_length
        return Shape(
            self.num_layers,
            self.hidden_size,
            self.seq_length,
            self.vocab_size,
            self._attention,
            Mlp(width, self.activation, bias=self.add_bias_linear or self.mlp_bias),
            Norm(self.normalization, self.norm_bias, self.norm_placement, self.norm_weight),
            self._embedding,
            self.experts(width, self.num_layers, folder),
            self.made_layers,
            block=self.block,
            head=self.head,
            head_bias=self.head_bias,
            max_predictions=self.max_predictions_per_seq or 0,
            num_nextn_predict_layers=self.num_nextn_predict_layers or 0,
            residual_streams=self.residual_streams,
            decoder=Decoder(self.num_decoder_layers, tokens) if self.num_decoder_layers else None,
            dropout=bool(self.dropout),
            precision=precision,
            software=Software(fused=fused),
            lora=self.lora.lora() if self.lora else None,
        )

    @property
    def _attention(self) -> "SelfAttention":
        from clustersim.workloads.architectures.shape import SelfAttention

        return SelfAttention(
            self.num_attention_heads,
            self.num_key_value_heads or self.num_attention_heads,
            head_dim=self.head_dim or 0,
            kind=self.attention if isinstance(self.attention, str) else self.attention.made(),
            latent=self.latent,
            mask=self.attention_mask or "",
            windows=windows_of(self.attention_window),
            document_length=_in_turn(self.document_length),
            qk_norm=self.qk_norm,
            bias=self.add_bias_linear or self.attention_bias,
            qkv_bias=self.add_qkv_bias,
            sinks=self.attention_sinks,
            output_gate=self.attention_output_gate,
            rotary_share=self.partial_rotary_factor,
        )

    @property
    def _embedding(self) -> "Embedding":
        from clustersim.workloads.architectures.shape import Embedding

        return Embedding(
            tied=self.tie_embeddings and self.head in (*MASKED_HEADS, "causal_lm"),
            norm=self.embedding_norm,
            positions=self.position_embedding_type,
            position_rows=self.position_rows or 0,
            relative_buckets=self.relative_attention_num_buckets,
            type_rows=self.type_vocab_size,
        )


def _in_turn(lengths: int | list[int] | None) -> tuple[int, ...]:
    return () if lengths is None else (lengths,) if isinstance(lengths, int) else tuple(lengths)
