"""The families of Hugging Face's models with a mixture of experts."""

from __future__ import annotations

from collections.abc import Mapping

from workloads.architectures.keys import MOST_LAYERS
from workloads.huggingface.family import LLAMA, LLAMA_KEYS, Family, Unsupported, Values, truth, whole, window

SILU = {"tie_word_embeddings": False, "hidden_act": "silu"}

LOCAL = {**LLAMA_KEYS, "num_local_experts": "num_experts", "num_experts_per_tok": "moe_router_topk"}
"""Keys of Mixtral and of those that follow it."""

NAMED = {
    **LLAMA_KEYS,
    "num_experts": "num_experts",
    "num_experts_per_tok": "moe_router_topk",
    "moe_intermediate_size": "moe_ffn_hidden_size",
}
"""Keys of the Qwen family."""

LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

ROUTED = {
    **{key: name for key, name in LLAMA_KEYS.items() if key not in ("num_key_value_heads", "head_dim")},
    **{key: key for key in (*LATENT, "n_group", "topk_group", "first_k_dense_replace")},
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "moe_router_topk",
    "moe_intermediate_size": "moe_ffn_hidden_size",
}
"""Keys of the DeepSeek family; heads have as many keys as queries."""


def _qwen(config: Values) -> Values:
    """Layer i has experts if i + 1 is a multiple of ``decoder_sparse_step`` and it is not among ``mlp_only_layers``."""
    layers, step = config["num_hidden_layers"], whole(config, "decoder_sparse_step", 1)
    if layers > MOST_LAYERS:
        raise Unsupported("num_hidden_layers", f"{layers} is absurd; the most that is taken is {MOST_LAYERS}")
    if step < 1:
        raise Unsupported("decoder_sparse_step", f"must be a whole number of at least 1, not {step!r}")
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(layer) is not int for layer in dense):
        raise Unsupported("mlp_only_layers", f"must be a list of layers, not {str(dense)[:60]!r}")
    pattern = [int((layer + 1) % step == 0 and layer not in dense) for layer in range(layers)]
    return {**window(config), **({} if all(pattern) else {"moe_layer_freq": pattern})}


def _qwen2(config: Values) -> Values:
    shared = whole(config, "shared_expert_intermediate_size", 5632)
    return {**_qwen(config), "moe_shared_expert_intermediate_size": shared, "moe_shared_expert_gate": bool(shared)}


def _deepseek(config: Values) -> Values:
    """The shared experts are one of as many times the width. A router that scores by sigmoid corrects scores."""
    config.get("num_key_value_heads")  # latent attention has as many as heads, whatever it says
    shared = whole(config, "n_shared_experts") * whole(config, "moe_intermediate_size")
    greedy = config.get("topk_method") == "greedy"
    groups = {"n_group": 1, "topk_group": 1} if greedy else {}
    freq = config.get("moe_layer_freq", 1)
    return {"moe_shared_expert_intermediate_size": shared, "moe_layer_freq": freq, **groups}


def _deepseek_v3(config: Values) -> Values:
    return {**_deepseek(config), "moe_router_bias": config.get("topk_method", "noaux_tc") == "noaux_tc"}


def _glm(config: Values) -> Values:
    shared = whole(config, "n_shared_experts") * whole(config, "moe_intermediate_size")
    return {
        "moe_shared_expert_intermediate_size": shared,
        "add_qkv_bias": truth(config, "attention_bias"),
        "qk_norm": "per_head" if truth(config, "use_qk_norm") else "none",
    }


def _phi(config: Values) -> Values:
    return {"attention_bias": truth(config, "attention_bias"), "head_bias": truth(config, "lm_head_bias")}


def _gpt_oss(config: Values) -> Values:
    return {"add_bias_linear": truth(config, "attention_bias"), **window(config, turn=2)}


EXPERT_FAMILIES: Mapping[str, Family] = {
    "mixtral": Family(LLAMA, LOCAL, {**SILU, "num_experts_per_tok": 2, "num_local_experts": 8}, window),
    "qwen2_moe": Family(
        {**LLAMA, "add_qkv_bias": True},
        NAMED,
        {
            **SILU,
            "use_sliding_window": False,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
        },
        _qwen2,
    ),
    "qwen3_moe": Family(
        {**LLAMA, "qk_norm": "per_head"},
        NAMED,
        {
            **SILU,
            "use_sliding_window": False,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
        _qwen,
    ),
    "deepseek_v2": Family(
        LLAMA, ROUTED, {**SILU, "moe_intermediate_size": 1407, "first_k_dense_replace": 0}, _deepseek
    ),
    "deepseek_v3": Family(
        LLAMA,
        ROUTED,
        {
            **SILU,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "n_shared_experts": 1,
        },
        _deepseek_v3,
    ),
    "kimi_k2": Family(LLAMA, ROUTED, {**SILU, "moe_intermediate_size": 2048}, _deepseek_v3),
    "glm4_moe": Family(
        {**LLAMA, "moe_router_bias": True},
        {
            **NAMED,
            "n_routed_experts": "num_experts",
            "first_k_dense_replace": "first_k_dense_replace",
            "n_group": "n_group",
            "topk_group": "topk_group",
        },
        {**SILU, "moe_intermediate_size": 1408},
        _glm,
    ),
    "gpt_oss": Family(
        {**LLAMA, "add_bias_linear": True, "attention_sinks": True, "moe_router_bias": True},
        LOCAL,
        {**SILU, "num_local_experts": 128, "num_experts_per_tok": 4, "head_dim": 64, "attention_bias": True},
        _gpt_oss,
    ),
    "olmoe": Family({**LLAMA, "qk_norm": "all_heads"}, NAMED, {**SILU, "num_experts": 64, "num_experts_per_tok": 8}),
    "granitemoe": Family(LLAMA, LOCAL, {**SILU, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "phimoe": Family(
        {**LLAMA, "normalization": "layernorm"},
        LOCAL,
        {**SILU, "num_local_experts": 16, "num_experts_per_tok": 2, "attention_bias": False, "lm_head_bias": False},
        _phi,
    ),
}
"""The families by ``model_type``. Windows of every other layer (GPT-OSS) are left out."""
