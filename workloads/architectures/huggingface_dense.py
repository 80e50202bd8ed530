"""Families of Hugging Face's models whose layers are all alike, with attention and one feed-forward network.

Values that their code fixes, keys that it reads, and defaults of their configuration classes.
"""

from __future__ import annotations

from collections.abc import Mapping

from clustersim.workloads.architectures.huggingface_families import (
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


def llama(config: Values) -> Values:
    """Biases of attention and of the MLP, as Llama has keys for them."""
    attention, mlp = truth(config, "attention_bias"), truth(config, "mlp_bias")
    if attention and mlp:
        return {"add_bias_linear": True}
    return {"attention_bias": attention, "mlp_bias": mlp} if attention or mlp else {}


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


HEADS = {
    "ForPreTraining": "pretraining",
    "ForMaskedLM": "masked_lm",
    "ForQuestionAnswering": "span",
    "ForSequenceClassification": "classification",
}
"""Heads of BERT and its like, by the end of a name of ``architectures``."""


def encoder_head(config: Values) -> Values:
    """Return the head that ``architectures`` names; by default that of masked tokens."""
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise Unsupported("architectures", f"must be a list of names, not {str(architectures)[:60]!r}")
    named = [head for name in architectures for end, head in HEADS.items() if name.endswith(end)]
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

DENSE_FAMILIES: Mapping[str, Family] = {
    "llama": Family(LLAMA, LLAMA_KEYS, {"tie_word_embeddings": False, "hidden_act": "silu"}, llama),
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
    "granite": Family(LLAMA, LLAMA_KEYS, {"tie_word_embeddings": False, "hidden_act": "silu"}, llama),
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
        encoder_head,
    ),
    "mimo": Family(
        {**LLAMA, "add_qkv_bias": True},
        LLAMA_KEYS,
        {"tie_word_embeddings": False, "hidden_act": "silu", "use_sliding_window": False},
        window,
    ),
}
"""The families by ``model_type``."""
