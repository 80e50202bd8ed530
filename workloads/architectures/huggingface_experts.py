"""Families of Hugging Face's models with experts whose attention is Llama's or DeepSeek's, and families of 2025 and
2026 that are older ones but for norms, experts or windows.

Values that their code fixes, and defaults of their configuration classes (transformers, src/transformers/models/*); of
bailing_moe, deepseek and dbrx of the code beside the weights.

Families of Hugging Face's models of 2025 and 2026 that are older ones but for norms, experts or windows.

Values that their code fixes, and defaults of their configuration classes (transformers, src/transformers/models/*).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clustersim.workloads.architectures.huggingface_dense import llama
from clustersim.workloads.architectures.huggingface_families import (
    EXPERT_FAMILIES,
    LLAMA,
    LLAMA_KEYS,
    LOCAL,
    NAMED,
    ROUTED,
    SILU,
    Family,
    Unsupported,
    Values,
    truth,
    whole,
    window,
)
from clustersim.workloads.architectures.huggingface_hybrids import in_turn, layer_count, words
from clustersim.workloads.architectures.huggingface_variants import turns

GROUPS = {key: key for key in ("n_group", "topk_group")}

DENSE_OR_SPARSE = {"dense": "", "sparse": "moe"}


def sparse_pattern(config: Values) -> Values:
    """Which layers have experts: by ``mlp_layer_types``, or by the number of dense layers at the begin."""
    if config.get("mlp_layer_types") is None:
        return {"first_k_dense_replace": whole(config, "first_k_dense_replace")}
    kinds = words(config, "mlp_layer_types", DENSE_OR_SPARSE)
    return {"moe_layer_freq": in_turn([int(bool(kind)) for kind in kinds]), "first_k_dense_replace": 0}


def shared(config: Values, key: str) -> Values:
    """Shared experts, *key* says how many, are one of as many times the width of an expert."""
    width = whole(config, key) * whole(config, "moe_intermediate_size")
    return {"moe_shared_expert_intermediate_size": width}


def one_number(config: Values, key: str) -> int:
    """The whole number of *key*, which may stand once for each layer. Raises `Unsupported` for unequal ones."""
    given = config.get(key)
    if isinstance(given, list):
        if len({*map(str, given)}) != 1:
            raise Unsupported(key, "unequal numbers of layers are not modelled; all must be one number")
        given = given[0]
    return whole({**config, key: given}, key)


def _dots(config: Values) -> Values:
    return {**shared(config, "n_shared_experts"), **sparse_pattern(config), "qk_norm": "per_head"}


def _hy(config: Values) -> Values:
    return {**shared(config, "num_shared_experts"), **sparse_pattern(config)}


def _exaone(config: Values) -> Values:
    return {**_hy(config), **window(config, turn=turns(config))}


def _plain(config: Values) -> Values:
    """Attention without latent vectors, experts as DeepSeek's."""
    freq = whole(config, "moe_layer_freq", 1)
    return {**llama(config), **shared(config, "n_shared_experts"), "moe_layer_freq": freq}


def _lite(config: Values) -> Values:
    config.get("num_key_value_heads")  # latent attention has as many as heads, whatever it says
    return {**shared(config, "n_shared_experts"), **sparse_pattern(config)}


def _bailing(config: Values) -> Values:
    """Ling: ``use_qk_norm`` and corrections of scores from version 2."""
    return {
        **shared(config, "num_shared_experts"),
        "add_qkv_bias": truth(config, "use_qkv_bias"),
        "add_bias_linear": truth(config, "use_bias"),
        "qk_norm": "per_head" if truth(config, "use_qk_norm") else "none",
        "moe_router_bias": truth(config, "moe_router_enable_expert_bias"),
    }


def _ernie(config: Values) -> Values:
    """Layer i has experts from one layer to another, if i + 1 is a multiple of the interval. Scores are corrected."""
    layers, step = layer_count(config), whole(config, "moe_layer_interval", 1)
    end = config.get("moe_layer_end_index")
    last = layers - 1 if end in (None, -1) else whole(config, "moe_layer_end_index")
    first = whole(config, "moe_layer_start_index", 1)
    if step < 1:
        raise Unsupported("moe_layer_interval", f"must be a whole number of at least 1, not {step!r}")
    sparse = [int((layer + 1) % step == 0 and first <= layer <= last) for layer in range(layers)]
    return {
        **shared(config, "moe_num_shared_experts"),
        "moe_layer_freq": in_turn(sparse),
        "moe_router_bias": truth(config, "moe_use_aux_free", True),
        "add_bias_linear": truth(config, "use_bias"),
    }


def _hunyuan(config: Values) -> Values:
    """Numbers may stand once for each layer; the shared expert is so many times the width of the others."""
    if truth(config, "use_cla"):
        raise Unsupported("use_cla", "keys and values of other layers are not modelled; it must be false")
    width = one_number(config, "moe_intermediate_size") or whole(config, "intermediate_size")
    return {
        **llama(config),
        "qk_norm": "per_head" if truth(config, "use_qk_norm", True) else "none",
        "moe_router_topk": one_number(config, "moe_topk"),
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": one_number(config, "num_shared_expert") * width,
    }


def _shared_granite(config: Values) -> Values:
    return {"moe_shared_expert_intermediate_size": whole(config, "shared_intermediate_size")}


def _afmoe(config: Values) -> Values:
    """A gate scales what attention gives. Corrections of scores are parameters."""
    turn = whole(config, "global_attn_every_n_layers", 4)
    made = {**shared(config, "num_shared_experts"), "first_k_dense_replace": whole(config, "num_dense_layers", 1)}
    return {**made, "moe_router_bias": True, **window(config, turn=turn)}


def _inner(config: Values, key: str) -> Values:
    given = config.get(key) or {}
    if not isinstance(given, dict):
        raise Unsupported(key, f"must be a mapping, not {str(given)[:60]!r}")
    return given


def _dbrx(config: Values) -> Values:
    attention, network = _inner(config, "attn_config"), _inner(config, "ffn_config")
    width = whole(network, "ffn_hidden_size", 3584)
    return {
        "num_key_value_heads": whole(attention, "kv_n_heads", 1),
        "ffn_hidden_size": width,
        "moe_ffn_hidden_size": width,
        "num_experts": whole(network, "moe_num_experts", 4),
        "moe_router_topk": whole(network, "moe_top_k", 1),
    }


GROUPED: Mapping[str, Any] = {
    **{key: name for key, name in ROUTED.items() if name not in ("q_lora_rank", "kv_lora_rank") and "head" not in key},
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
}
"""DeepSeek's keys without those of latent attention."""

FURTHER_EXPERT_FAMILIES: Mapping[str, Family] = {
    "afmoe": Family(
        {**LLAMA, "norm_placement": "both", "qk_norm": "per_head", "attention_output_gate": True},
        NAMED,
        {**SILU, "head_dim": 128, "sliding_window": 1024, "num_experts_per_tok": 6, "num_shared_experts": 2},
        _afmoe,
    ),
    "bailing_moe": Family(
        LLAMA,
        {**NAMED, **GROUPS, "first_k_dense_replace": "first_k_dense_replace"},
        {**SILU, "num_experts_per_tok": 2},
        _bailing,
    ),
    "dbrx": Family(
        {**LLAMA, "normalization": "layernorm", "norm_bias": False, "activation": "swiglu"},
        {
            "n_layers": "num_layers",
            "d_model": "hidden_size",
            "n_heads": "num_attention_heads",
            "max_seq_len": "seq_length",
            "vocab_size": "vocab_size",
        },
        {"tie_word_embeddings": False},
        _dbrx,
    ),
    "deepseek": Family(
        LLAMA, GROUPED, {**SILU, "num_experts_per_tok": 6, "moe_intermediate_size": 1407, "n_shared_experts": 2}, _plain
    ),
    "dots1": Family(
        {**LLAMA, "moe_router_bias": True}, GROUPED, {**SILU, "num_experts_per_tok": 6, "head_dim": 128}, _dots
    ),
    "ernie4_5_moe": Family(
        LLAMA,
        {
            **LLAMA_KEYS,
            "moe_num_experts": "num_experts",
            "moe_k": "moe_router_topk",
            "moe_intermediate_size": "moe_ffn_hidden_size",
        },
        {
            "tie_word_embeddings": True,
            "hidden_act": "silu",
            "moe_num_experts": 64,
            "moe_k": 6,
            "moe_num_shared_experts": 2,
        },
        _ernie,
    ),
    "exaone_moe": Family(
        {**LLAMA, "qk_norm": "per_head", "moe_router_bias": True},
        {**NAMED, **GROUPS},
        {**SILU, "sliding_window": 4096, "num_experts_per_tok": 8, "num_shared_experts": 1},
        _exaone,
    ),
    "glm4_moe_lite": Family(
        {**LLAMA, "moe_router_bias": True},
        ROUTED,
        {
            **SILU,
            "n_routed_experts": 64,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1536,
            "n_shared_experts": 1,
        },
        _lite,
    ),
    "glm4v_moe_text": Family(
        EXPERT_FAMILIES["glm4_moe"].fixed,
        EXPERT_FAMILIES["glm4_moe"].keys,
        {**SILU, "moe_intermediate_size": 1408, "attention_bias": True, "num_experts_per_tok": 8},
        EXPERT_FAMILIES["glm4_moe"].more,
    ),
    "granitemoeshared": Family(
        LLAMA, LOCAL, {**SILU, "num_local_experts": 8, "num_experts_per_tok": 2}, _shared_granite
    ),
    "hunyuan_v1_moe": Family(LLAMA, {**LLAMA_KEYS, "num_experts": "num_experts"}, SILU, _hunyuan),
    "hy_v3": Family(
        {**LLAMA, "qk_norm": "per_head", "moe_router_bias": True},
        NAMED,
        {**SILU, "head_dim": 128, "num_experts_per_tok": 8, "num_shared_experts": 1},
        _hy,
    ),
    "solar_open": Family(
        {**LLAMA, "moe_router_bias": True},
        {**GROUPED, **GROUPS},
        {**SILU, "head_dim": 128, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 1280},
        lambda config: {**shared(config, "n_shared_experts"), "qk_norm": "none"},
    ),
}
"""The families by ``model_type``."""


def _clova(config: Values) -> Values:
    after = truth(config, "use_post_norm", True)
    return {**llama(config), "norm_placement": "both" if after else "before"}


def _sarvam(config: Values) -> Values:
    """Keys of the code beside the weights stand for those of transformers."""
    count = "num_shared_experts" if "num_shared_experts" in config else "n_shared_experts"
    bias = "use_qkv_bias" if "use_qkv_bias" in config else "attention_bias"
    return {
        **shared({"n_shared_experts": 1, **config}, count),
        "add_qkv_bias": truth(config, bias),
        "qk_norm": "per_head" if truth(config, "use_qk_norm", True) else "none",
    }


def _latent_sarvam(config: Values) -> Values:
    config.get("num_key_value_heads")  # latent attention has as many as heads, whatever it says
    count = "num_shared_experts" if "num_shared_experts" in config else "n_shared_experts"
    return shared(config, count)


def _mistral4(config: Values) -> Values:
    config.get("num_key_value_heads")
    return shared(config, "n_shared_experts")


def _mellum(config: Values) -> Values:
    return {**sparse_pattern(config), **window(config)}


SARVAM = {"num_experts": "num_experts", "n_routed_experts": "num_experts"}

RECENT_FAMILIES: Mapping[str, Family] = {
    "iquestcoder": Family(LLAMA, LLAMA_KEYS, {**SILU, "head_dim": 128}, llama),
    "nanochat": Family({**LLAMA, "norm_weight": False}, LLAMA_KEYS, {**SILU, "hidden_act": "relu2"}, llama),
    "hyperclovax": Family(LLAMA, LLAMA_KEYS, SILU, _clova),
    "qwen3_omni_moe_text": EXPERT_FAMILIES["qwen3_moe"],
    "sarvam_moe": Family(
        {**LLAMA, "moe_router_bias": True},
        {**GROUPED, **GROUPS, **SARVAM},
        {**SILU, "moe_intermediate_size": 1024, "num_experts_per_tok": 6, "head_dim": 64, "first_k_dense_replace": 1},
        _sarvam,
    ),
    "sarvam_mla": Family(
        {**LLAMA, "moe_router_bias": True},
        {**ROUTED, **SARVAM},
        {
            **SILU,
            "moe_intermediate_size": 2048,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
        _latent_sarvam,
    ),
    "mistral4": Family(
        LLAMA,
        ROUTED,
        {
            **SILU,
            "n_routed_experts": 128,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 2048,
            "n_shared_experts": 1,
            "first_k_dense_replace": 0,
            "q_lora_rank": 1024,
            "kv_lora_rank": 256,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
        _mistral4,
    ),
    "mellum": Family(
        {**LLAMA, "qk_norm": "per_head"},
        {**NAMED, "num_local_experts": "num_experts"},
        {
            **SILU,
            "head_dim": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 896,
            "sliding_window": 1024,
        },
        _mellum,
    ),
    "flex_olmo": Family(
        {**LLAMA, "qk_norm": "all_heads", "norm_placement": "after"},
        NAMED,
        {**SILU, "num_experts": 7, "num_experts_per_tok": 5},
    ),
}
"""The families by ``model_type``."""
