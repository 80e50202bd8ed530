"""Families of Hugging Face's models of 2025 and 2026 that are older ones but for norms, experts or windows.

Values that their code fixes, and defaults of their configuration classes (transformers, src/transformers/models/*).
"""

from __future__ import annotations

from collections.abc import Mapping

from clustersim.workloads.architectures.huggingface_dense import llama
from clustersim.workloads.architectures.huggingface_experts import GROUPED, GROUPS, shared, sparse_pattern
from clustersim.workloads.architectures.huggingface_families import (
    EXPERT_FAMILIES,
    LLAMA,
    LLAMA_KEYS,
    NAMED,
    ROUTED,
    SILU,
    Family,
    Values,
    truth,
    window,
)


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
