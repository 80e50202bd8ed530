"""Families of Hugging Face's models that are Llama's, GPT-2's or GPT-J's but for biases, norms, heads or activation.

Values that their code fixes, and defaults of their configuration classes (transformers, src/transformers/models/*); of
exaone, internlm2, minicpm, qwen, baichuan and chatglm of the code beside the weights.
"""

from __future__ import annotations

from collections.abc import Mapping

from clustersim.workloads.architectures.huggingface_dense import GPT2_KEYS, NEOX, llama
from clustersim.workloads.architectures.huggingface_families import (
    LATENT,
    LLAMA,
    LLAMA_KEYS,
    SILU,
    Family,
    Unsupported,
    Values,
    truth,
    whole,
    window,
)

WITH_BIAS = {**LLAMA, "normalization": "layernorm", "norm_bias": True}

FLAT = {key: name for key, name in LLAMA_KEYS.items() if key not in ("num_key_value_heads", "head_dim")}
"""Keys of models whose heads have as many keys as queries."""


def turns(config: Values) -> int:
    """The layers of a turn, the last of which sees all positions: a number, or a text such as LLLG."""
    given = config.get("sliding_window_pattern")
    if isinstance(given, str):
        local, last = given[:-1], given[-1:]
        if last != "G" or local.strip("L"):
            raise Unsupported("sliding_window_pattern", f"must be a number, or L's and then a G, not {given[:60]!r}")
        return len(given)
    return whole(config, "sliding_window_pattern", 4)


def _turned(config: Values) -> Values:
    return window(config, turn=turns(config))


def _cwm(config: Values) -> Values:
    """The first layer of four sees all positions."""
    if config.get("layer_types") is not None:
        return window(config)
    kinds = ["sliding_attention" if layer % 4 else "full_attention" for layer in range(config["num_hidden_layers"])]
    return window({**config, "layer_types": kinds})


def _biased_queries(config: Values) -> Values:
    """``attention_bias`` is that of queries, keys and values only."""
    if truth(config, "attention_out_bias") or truth(config, "mlp_bias"):
        raise Unsupported("attention_out_bias", "or mlp_bias beside that of queries is not modelled; must be false")
    return {"add_qkv_bias": truth(config, "attention_bias", True)}


def _internlm(config: Values) -> Values:
    """``qkv_bias`` and ``bias`` in the code beside the weights, ``attention_bias`` and ``mlp_bias`` in transformers."""
    if "attention_bias" in config or "mlp_bias" in config:
        return llama(config)
    return {"add_qkv_bias": truth(config, "qkv_bias"), "add_bias_linear": truth(config, "bias")}


def _hunyuan(config: Values) -> Values:
    return {**llama(config), "qk_norm": "per_head" if truth(config, "use_qk_norm", True) else "none"}


def _stablelm(config: Values) -> Values:
    if truth(config, "qk_layernorm"):
        raise Unsupported("qk_layernorm", "layer norms with weights for each head are not modelled; it must be false")
    return {
        "add_qkv_bias": truth(config, "use_qkv_bias"),
        "block": "parallel" if truth(config, "use_parallel_residual") else "serial",
    }


def _latent(config: Values) -> Values:
    """Latent attention with one feed-forward network a layer."""
    config.get("num_key_value_heads"), config.get("head_dim")  # of all heads, and of the rotated features
    return llama(config)


def _bigcode(config: Values) -> Values:
    return {"num_key_value_heads": 1 if truth(config, "multi_query", True) else config["n_head"]}


def _qwen(config: Values) -> Values:
    """``intermediate_size`` counts both products of the gated activation."""
    inner = whole(config, "intermediate_size")
    if inner % 2:
        raise Unsupported("intermediate_size", f"must be even, as it counts two products, not {inner}")
    return {"ffn_hidden_size": inner // 2, "add_qkv_bias": True, "activation": "swiglu"}


def _baichuan(config: Values) -> Values:
    """The one with 13 billion parameters has no rotary positions, and no ``max_position_embeddings``."""
    return {} if "max_position_embeddings" in config else {"position_embedding_type": "alibi"}


def _chatglm(config: Values) -> Values:
    if not truth(config, "rmsnorm", True):
        raise Unsupported("rmsnorm", "layer norms of ChatGLM are not modelled; it must be true")
    grouped = truth(config, "multi_query_attention")
    return {
        "num_key_value_heads": whole(config, "multi_query_group_num", 1) if grouped else config["num_attention_heads"],
        "activation": "swiglu",
    }


LATENT_KEYS = {**FLAT, **{key: key for key in LATENT}}

PARALLEL = {**NEOX, "block": "parallel", "add_bias_linear": False, "mlp_bias": True, "head_bias": True}
"""GPT-J: products of attention have no biases."""

VARIANT_FAMILIES: Mapping[str, Family] = {
    "apertus": Family({**LLAMA, "qk_norm": "per_head"}, LLAMA_KEYS, {**SILU, "hidden_act": "xielu"}, llama),
    "arcee": Family(LLAMA, LLAMA_KEYS, {**SILU, "hidden_act": "relu2"}, llama),
    "cohere2": Family(
        {**LLAMA, "normalization": "layernorm", "norm_bias": False, "block": "parallel"},
        LLAMA_KEYS,
        {"tie_word_embeddings": True, "hidden_act": "silu", "sliding_window": 4096},
        _turned,
    ),
    "cwm": Family(LLAMA, LLAMA_KEYS, {**SILU, "head_dim": 128, "sliding_window": 8192}, _cwm),
    "ernie4_5": Family(
        LLAMA,
        {**LLAMA_KEYS, "use_bias": "add_bias_linear"},
        {"tie_word_embeddings": True, "hidden_act": "silu", "head_dim": 128},
    ),
    "exaone": Family(
        LLAMA,
        {
            **{key: name for key, name in LLAMA_KEYS.items() if key not in ("num_hidden_layers", "hidden_act")},
            "num_layers": "num_layers",
            "activation_function": "activation",
        },
        {"tie_word_embeddings": False, "activation_function": "silu"},
    ),
    "exaone4": Family(
        {**LLAMA, "norm_placement": "after", "qk_norm": "per_head"},
        LLAMA_KEYS,
        {**SILU, "sliding_window": 4096},
        _turned,
    ),
    "glm": Family(LLAMA, LLAMA_KEYS, {**SILU, "head_dim": 128, "partial_rotary_factor": 0.5}, _biased_queries),
    "glm4": Family(
        {**LLAMA, "norm_placement": "both"},
        LLAMA_KEYS,
        {**SILU, "head_dim": 128, "partial_rotary_factor": 0.5},
        _biased_queries,
    ),
    "glm4v_text": Family(
        {**LLAMA, "norm_placement": "both"}, LLAMA_KEYS, {**SILU, "partial_rotary_factor": 0.5}, _biased_queries
    ),
    "chatglm": Family(
        {**LLAMA, "partial_rotary_factor": 0.5},
        {
            "num_layers": "num_layers",
            "hidden_size": "hidden_size",
            "num_attention_heads": "num_attention_heads",
            "kv_channels": "head_dim",
            "ffn_hidden_size": "ffn_hidden_size",
            "seq_length": "seq_length",
            "padded_vocab_size": "vocab_size",
            "add_qkv_bias": "add_qkv_bias",
            "add_bias_linear": "add_bias_linear",
        },
        {"tie_word_embeddings": False},
        _chatglm,
    ),
    "helium": Family(LLAMA, LLAMA_KEYS, {**SILU, "head_dim": 128}, llama),
    "hunyuan_v1_dense": Family(LLAMA, LLAMA_KEYS, SILU, _hunyuan),
    "internlm2": Family(LLAMA, LLAMA_KEYS, SILU, _internlm),
    "internlm3": Family(LLAMA, LLAMA_KEYS, SILU, _internlm),
    "jais2": Family(
        WITH_BIAS, LLAMA_KEYS, {**SILU, "hidden_act": "relu2", "attention_bias": True, "mlp_bias": True}, llama
    ),
    "minicpm": Family(LLAMA, LLAMA_KEYS, {"tie_word_embeddings": True, "hidden_act": "silu"}, llama),
    "minicpm3": Family(LLAMA, LATENT_KEYS, {"tie_word_embeddings": True, "hidden_act": "silu"}, _latent),
    "ministral": Family(LLAMA, LLAMA_KEYS, SILU, window),
    "ministral3": Family(LLAMA, LLAMA_KEYS, {**SILU, "head_dim": 128}, window),
    "nemotron": Family(WITH_BIAS, LLAMA_KEYS, {**SILU, "hidden_act": "relu2", "partial_rotary_factor": 0.5}, llama),
    "olmo": Family(
        {**LLAMA, "normalization": "layernorm", "norm_bias": False, "norm_weight": False}, LLAMA_KEYS, SILU, llama
    ),
    "qwen2_vl_text": Family({**LLAMA, "add_qkv_bias": True}, LLAMA_KEYS, {**SILU, "use_sliding_window": False}, window),
    "qwen": Family(
        LLAMA,
        {
            **{key: FLAT[key] for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")},
            "kv_channels": "head_dim",
            "seq_length": "seq_length",
        },
        {"tie_word_embeddings": False},
        _qwen,
    ),
    "baichuan": Family(LLAMA, {**FLAT, "model_max_length": "seq_length"}, SILU, _baichuan),
    "seed_oss": Family(LLAMA, LLAMA_KEYS, {**SILU, "head_dim": 128}, _biased_queries),
    "smollm3": Family(
        LLAMA,
        LLAMA_KEYS,
        {"tie_word_embeddings": True, "hidden_act": "silu", "use_sliding_window": False},
        lambda config: {**llama(config), **window(config)},
    ),
    "stablelm": Family(WITH_BIAS, LLAMA_KEYS, {**SILU, "partial_rotary_factor": 0.25}, _stablelm),
    "vaultgemma": Family(
        LLAMA,
        LLAMA_KEYS,
        {"tie_word_embeddings": True, "head_dim": 256, "sliding_window": 4096},
        lambda config: {"activation": "geglu", **window(config, turn=2)},
    ),
    "youtu": Family(LLAMA, LATENT_KEYS, {"tie_word_embeddings": True, "hidden_act": "silu"}, _latent),
    "gptj": Family(PARALLEL, GPT2_KEYS, {"tie_word_embeddings": False, "activation_function": "gelu_new"}),
    "codegen": Family(PARALLEL, GPT2_KEYS, {"tie_word_embeddings": False, "activation_function": "gelu_new"}),
    "gpt_bigcode": Family(
        {"attention": "flash"},
        GPT2_KEYS,
        {"tie_word_embeddings": True, "activation_function": "gelu_pytorch_tanh", "resid_pdrop": 0.1},
        _bigcode,
    ),
}
"""The families by ``model_type``."""

VARIANT_FAMILIES = {
    **VARIANT_FAMILIES,
    "qwen2_vl": VARIANT_FAMILIES["qwen2_vl_text"],
    "qwen2_5_vl": VARIANT_FAMILIES["qwen2_vl_text"],
    "qwen2_5_vl_text": VARIANT_FAMILIES["qwen2_vl_text"],
}
