"""Model configurations of Hugging Face's transformers, ``config.json``, as the `model:` section of a scenario.

Every family has its own keys, and defaults for those that a file leaves out (`Family`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clustersim.simulator.reading.document import Document, Path
from clustersim.simulator.reading.validation import listed, near
from clustersim.workloads.architectures.huggingface_families import (
    EXPERT_FAMILIES,
    LLAMA,
    LLAMA_KEYS,
    SIZES,
    Family,
    Unsupported,
    Values,
    truth,
    whole,
    window,
)
from clustersim.workloads.architectures.huggingface_hybrids import HYBRID_FAMILIES
from clustersim.workloads.architectures.model_keys import ACTIVATIONS


def _llama(config: Values) -> Values:
    attention, mlp = truth(config, "attention_bias"), truth(config, "mlp_bias")
    if attention and mlp:
        return {"add_bias_linear": True}
    if mlp:
        raise Unsupported("mlp_bias", "biases of only the MLP have no key; add_bias_linear is the nearest")
    return {"attention_bias": True} if attention else {}


def _gemma(config: Values) -> Values:
    """Gemma computes GeLU in its tanh form whatever ``hidden_act`` says; torch has a kernel for it."""
    return {"activation": "geglu"}


def _gemma2(config: Values) -> Values:
    return {**_gemma(config), **window(config, turn=2)}


def _gemma3(config: Values) -> Values:
    """The last layer of each ``sliding_window_pattern`` layers sees all positions."""
    turn = whole(config, "sliding_window_pattern", whole(config, "_sliding_window_pattern", 6))
    return {**_gemma(config), **window(config, turn=turn)}


def _olmo3(config: Values) -> Values:
    return window(config, turn=4)


def _falcon(config: Values) -> Values:
    new = truth(config, "new_decoder_architecture")
    if not truth(config, "parallel_attn", True) and not new:
        raise Unsupported(
            "parallel_attn", "Falcon without parallel attention has biases and norms that are not modelled"
        )
    grouped = whole(config, "num_kv_heads") if new else 1 if truth(config, "multi_query", True) else None
    return {
        "block": "parallel_two_norms" if new else "parallel",
        "add_bias_linear": truth(config, "bias"),
        "position_embedding_type": "alibi" if truth(config, "alibi") else "rope",
        "num_key_value_heads": grouped or config["num_attention_heads"],
        "ffn_hidden_size": whole(config, "ffn_hidden_size", 4 * config["hidden_size"]),
    }


def _mpt(config: Values) -> Values:
    attention = config.get("attn_config") or {}
    if not isinstance(attention, Mapping):
        raise Unsupported("attn_config", "must be a mapping")
    biases = not truth(config, "no_bias", True)
    return {
        "ffn_hidden_size": whole(config, "expansion_ratio", 4) * config["d_model"],
        "position_embedding_type": "alibi" if attention.get("alibi", True) else "learned_absolute",
        "add_bias_linear": biases,
        "norm_bias": biases,
        "attention": "unfused" if attention.get("attn_impl") == "torch" else "flash",
    }


def _gpt_neox(config: Values) -> Values:
    return {"block": "parallel_two_norms" if truth(config, "use_parallel_residual", True) else "serial"}


def _opt(config: Values) -> Values:
    if not truth(config, "do_layer_norm_before", True):
        raise Unsupported("do_layer_norm_before", "norms after each residual sum of a causal model are not modelled")
    if config.get("word_embed_proj_dim", config["hidden_size"]) != config["hidden_size"]:
        raise Unsupported("word_embed_proj_dim", "an embedding of another width than hidden_size is not modelled")
    # OPTLearnedPositionalEmbedding has an offset of two rows
    return {"position_rows": config["max_position_embeddings"] + 2}


def _bert(config: Values) -> Values:
    heads = {"BertForPreTraining": "pretraining", "BertForMaskedLM": "masked_lm"}
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise Unsupported("architectures", f"must be a list of names, not {str(architectures)[:60]!r}")
    named = [heads[name] for name in architectures if name in heads]
    return {"head": named[0] if named else "masked_lm"}


GPT2_KEYS = {
    "n_layer": "num_layers",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "ffn_hidden_size",
    "n_positions": "seq_length",
    "vocab_size": "vocab_size",
    "activation_function": "activation",
    "resid_pdrop": "dropout",
}


def _t5(config: Values) -> Values:
    """A decoder has as many layers as the encoder unless it says otherwise; activations that are not gated are ReLU."""
    return {"num_decoder_layers": whole(config, "num_decoder_layers", config["num_layers"])}


NEOX = {"normalization": "layernorm", "position_embedding_type": "rope", "attention": "flash"}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(LLAMA, LLAMA_KEYS, {"tie_word_embeddings": False, "hidden_act": "silu"}, _llama),
    "mistral": Family(LLAMA, LLAMA_KEYS, {"tie_word_embeddings": False, "hidden_act": "silu"}, window),
    "qwen2": Family(
        {**LLAMA, "add_qkv_bias": True},
        LLAMA_KEYS,
        {"tie_word_embeddings": False, "hidden_act": "silu", "use_sliding_window": False},
        window,
    ),
    "qwen3": Family(
        {**LLAMA, "qk_norm": "per_head"},
        LLAMA_KEYS,
        {"tie_word_embeddings": False, "hidden_act": "silu", "use_sliding_window": False, "head_dim": 128},
        window,
    ),
    "gemma": Family(LLAMA, LLAMA_KEYS, {"tie_word_embeddings": True, "head_dim": 256}, _gemma),
    "gemma2": Family(
        {**LLAMA, "norm_placement": "both"},
        LLAMA_KEYS,
        {"tie_word_embeddings": True, "head_dim": 256, "sliding_window": 4096},
        _gemma2,
    ),
    "gemma3_text": Family(
        {**LLAMA, "norm_placement": "both", "qk_norm": "per_head"},
        LLAMA_KEYS,
        # Gemma3TextConfig, which the files of the models with a vision encoder rely on
        {
            "tie_word_embeddings": True,
            "head_dim": 256,
            "sliding_window": 4096,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
        },
        _gemma3,
    ),
    "phi": Family(
        {**NEOX, "block": "parallel", "head_bias": True},
        {**LLAMA_KEYS, "resid_pdrop": "dropout"},
        {"tie_word_embeddings": False, "hidden_act": "gelu_new", "resid_pdrop": 0.0},
    ),
    "phi3": Family(LLAMA, LLAMA_KEYS, {"tie_word_embeddings": False, "hidden_act": "silu"}, window),
    "olmo2": Family(
        {**LLAMA, "norm_placement": "after", "qk_norm": "all_heads"},
        LLAMA_KEYS,
        {"tie_word_embeddings": False, "hidden_act": "silu"},
    ),
    "olmo3": Family(
        {**LLAMA, "norm_placement": "after", "qk_norm": "all_heads"},
        LLAMA_KEYS,
        {"tie_word_embeddings": False, "hidden_act": "silu", "sliding_window": 4096},
        _olmo3,
    ),
    "granite": Family(LLAMA, LLAMA_KEYS, {"tie_word_embeddings": False, "hidden_act": "silu"}, _llama),
    "cohere": Family(
        {**LLAMA, "normalization": "layernorm", "norm_bias": False, "block": "parallel"},
        LLAMA_KEYS,
        {"tie_word_embeddings": True, "hidden_act": "silu"},
    ),
    "starcoder2": Family(
        {**NEOX},
        {**LLAMA_KEYS, "residual_dropout": "dropout", "use_bias": "add_bias_linear"},
        {"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh", "residual_dropout": 0.0, "use_bias": True},
        window,
    ),
    "falcon": Family(
        {"attention": "flash", "activation": "gelu", "dropout": 0},
        {key: name for key, name in SIZES.items() if name != "ffn_hidden_size"},
        {"tie_word_embeddings": True, "max_position_embeddings": 2048},
        _falcon,
    ),
    "mpt": Family(
        {"activation": "gelu", "dropout": 0},
        {
            "n_layers": "num_layers",
            "d_model": "hidden_size",
            "n_heads": "num_attention_heads",
            "max_seq_len": "seq_length",
            "vocab_size": "vocab_size",
        },
        {"tie_word_embeddings": True},
        _mpt,
    ),
    "gpt_neox": Family(
        NEOX,
        {**SIZES, "hidden_act": "activation", "hidden_dropout": "dropout"},
        {"tie_word_embeddings": False, "hidden_act": "gelu", "hidden_dropout": 0.0},
        _gpt_neox,
    ),
    "opt": Family(
        {},
        {
            **{key: name for key, name in SIZES.items() if name != "ffn_hidden_size"},
            "ffn_dim": "ffn_hidden_size",
            "activation_function": "activation",
            "dropout": "dropout",
        },
        {"tie_word_embeddings": True, "activation_function": "relu", "dropout": 0.1},
        _opt,
    ),
    "bloom": Family(
        {"position_embedding_type": "alibi", "embedding_norm": True, "activation": "gelu"},
        {
            "n_layer": "num_layers",
            "num_hidden_layers": "num_layers",
            "hidden_size": "hidden_size",
            "n_embed": "hidden_size",
            "n_head": "num_attention_heads",
            "num_attention_heads": "num_attention_heads",
            "seq_length": "seq_length",
            "vocab_size": "vocab_size",
            "hidden_dropout": "dropout",
        },
        # the configuration of BLOOM has no longest sequence: 2,048 in Scao et al. 2022, arXiv:2211.05100, table 3
        {"tie_word_embeddings": True, "hidden_dropout": 0.0, "seq_length": 2048},
    ),
    "gpt2": Family({}, GPT2_KEYS, {"tie_word_embeddings": True, "activation_function": "gelu_new", "resid_pdrop": 0.1}),
    "t5": Family(
        {"normalization": "rmsnorm", "position_embedding_type": "relative", "add_bias_linear": False},
        {
            "num_layers": "num_layers",
            "d_model": "hidden_size",
            "num_heads": "num_attention_heads",
            "d_kv": "head_dim",
            "d_ff": "ffn_hidden_size",
            "vocab_size": "vocab_size",
            "n_positions": "seq_length",
            "feed_forward_proj": "activation",
            "dropout_rate": "dropout",
            "relative_attention_num_buckets": "relative_attention_num_buckets",
        },
        # T5 1.1 has no n_positions: it was trained on sequences of 512 too (Raffel et al. 2020, section 3.1.2)
        {"tie_word_embeddings": True, "feed_forward_proj": "relu", "dropout_rate": 0.1, "n_positions": 512},
        _t5,
    ),
    "bert": Family(
        {"embedding_norm": True},
        {
            **SIZES,
            "hidden_act": "activation",
            "hidden_dropout_prob": "dropout",
            "type_vocab_size": "type_vocab_size",
        },
        {"tie_word_embeddings": True, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "type_vocab_size": 2},
        _bert,
    ),
    "mimo": Family(
        {**LLAMA, "add_qkv_bias": True},
        LLAMA_KEYS,
        {"tie_word_embeddings": False, "hidden_act": "silu", "use_sliding_window": False},
        window,
    ),
    **EXPERT_FAMILIES,
    **HYBRID_FAMILIES,
}
"""The families by ``model_type``."""

FAMILIES = {**FAMILIES, "qwen3_vl_text": FAMILIES["qwen3"], "qwen3_vl_moe_text": FAMILIES["qwen3_moe"]}

TEXT = "text_config"
"""The configuration of the text model in that of a model with a vision or an audio encoder."""

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Keys of models with experts."""


class _Recording(dict[str, Any]):
    """Values of a configuration that note which of them are asked for."""

    def __init__(self, values: Values) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def keys_read(document: Document) -> set[str]:
    """Return the keys of the configuration in *document* that decide its `model:` section.

    The configuration is one that `model_section` accepts; they are those of its `text_part`.
    """
    config = text_part(document).data
    family = FAMILIES[config["model_type"]]
    values = _Recording({**family.defaults, **{key: one for key, one in config.items() if one is not None}})
    family.more(values)
    return {"model_type", "tie_word_embeddings", *EXPERTS, *family.keys, *values.asked}


def text_part(document: Document) -> Document:
    """Return the configuration of the text model in *document*: a model of several parts has it apart."""
    inner = document.data.get(TEXT)
    if not isinstance(inner, dict) or "hidden_size" in document.data:
        return document
    around: dict[str, Any] = {
        key: document.data[key] for key in ("model_type", "tie_word_embeddings") if key in document.data
    }
    positions = {path: position for path, position in document.positions.items() if path[:1] != (TEXT,)}
    own = {path[1:]: position for path, position in document.positions.items() if path[:1] == (TEXT,)}
    return Document({**around, **inner}, {**positions, **own})


def model_section(document: Document) -> Document:
    """Return the configuration in *document* as a `model:` section, with the positions of its values.

    Of a model with several parts it is the text model (`text_part`). Raises `ScenarioError` for a family, or a value,
    that no model of clustersim has.
    """
    document = text_part(document)
    config = document.data
    family = FAMILIES.get(config["model_type"]) if isinstance(config["model_type"], str) else None
    if family is None:
        known = list(FAMILIES)
        name = str(config["model_type"])
        raise document.error(
            ("model_type",), f'unknown family "{name}"; there are: {", ".join(known)}', near(name, known)
        )
    experts = next((key for key in EXPERTS if config.get(key)), None)
    if experts and experts not in family.keys:
        raise document.error((experts,), f"the family {config['model_type']} has no experts in clustersim")
    values = {**family.defaults, **{key: value for key, value in config.items() if value is not None}}
    required = ("num_layers", "hidden_size", "num_attention_heads", "seq_length", "vocab_size")
    for name in required:
        keys = [key for key, own in family.keys.items() if own == name]
        if not any(key in values for key in keys):
            raise document.error((), f"needs {listed(keys)}, as a {config['model_type']} has it")
        for key in keys:
            if key in values and (not isinstance(values[key], int) or isinstance(values[key], bool)):
                raise document.error((key,), f"must be a whole number, not {values[key]!r}")
    try:
        tied = {"tie_embeddings": truth(values, "tie_word_embeddings")}
        more = family.more(values)
    except Unsupported as error:
        raise document.error((error.key,), error.why) from None
    read = {name: values[key] for key, name in family.keys.items() if key in values}
    made = {"kind": "transformer", "name": config["model_type"], **family.fixed, **read, **tied, **more}
    if isinstance(made.get("activation"), str):
        made["activation"] = ACTIVATIONS.get(made["activation"], made["activation"])
    positions: dict[Path, Any] = {(): document.position(())}
    for key, name in {**family.keys, "tie_word_embeddings": "tie_embeddings"}.items():
        if (key,) in document.positions:
            positions[name,] = document.positions[key,]
    positions |= {path: document.positions[key,] for key, path in family.below.items() if (key,) in document.positions}
    return Document(made, positions)
