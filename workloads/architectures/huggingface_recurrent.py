"""Further families of Hugging Face's models with state-space layers, convolutions or linear attention.

Values that their code fixes, and defaults of their configuration classes (transformers, src/transformers/models/*).
"""

from __future__ import annotations

from collections.abc import Mapping

from clustersim.workloads.architectures.huggingface_families import (
    LLAMA,
    LLAMA_KEYS,
    LOCAL,
    NAMED,
    SILU,
    SIZES,
    Family,
    Unsupported,
    Values,
    truth,
    whole,
)
from clustersim.workloads.architectures.huggingface_hybrids import (
    DELTA,
    OF_QWEN,
    WITHOUT_POSITIONS,
    below,
    in_turn,
    layer_count,
    sizes,
    without_bias,
    words,
)

OF_BAMBA = {
    "mamba_d_state": "state_size",
    "mamba_n_heads": "num_heads",
    "mamba_d_head": "head_dim",
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_chunk_size": "chunk_size",
}

BAMBA = {
    "mamba_d_state": 256,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
}
"""Defaults of BambaConfig."""

OF_MAMBA = {"state_size": "state_size", "expand": "expand", "conv_kernel": "conv_kernel"}


def _mamba(config: Values) -> Values:
    """Norms of dt, B and C in Falcon's have no parameters, and are left out."""
    without_bias(config, "use_bias")
    rank = config.get("time_step_rank")
    block = {**sizes(config, OF_MAMBA), "use_conv_bias": truth(config, "use_conv_bias")}
    given = {} if rank in (None, "auto") else {"time_step_rank": whole(config, "time_step_rank")}
    return {"layers": ["mamba"], "blocks": {"mamba": {**block, **given}}}


def bamba_block(config: Values) -> Values:
    """The keys of Mamba-2; heads have an equal part of the inner features unless their size is given."""
    without_bias(config, "mamba_proj_bias")
    heads, given = whole(config, "mamba_n_heads"), config.get("mamba_d_head")
    inner = whole(config, "mamba_d_ssm") or whole(config, "mamba_expand") * whole(config, "hidden_size")
    if heads < 1 or inner % heads:
        raise Unsupported("mamba_n_heads", f"{heads} does not divide the {inner} inner features")
    size = inner // heads if given in (None, "auto") else whole(config, "mamba_d_head")
    places = {key: name for key, name in OF_BAMBA.items() if name != "head_dim"}
    return {**sizes(config, places), "head_dim": size, "use_conv_bias": truth(config, "mamba_conv_bias")}


def _bamba(config: Values) -> Values:
    """``attn_layer_indices``, or ``layer_types``, says which layers have attention."""
    without_bias(config, "mlp_bias")
    layers, chosen = layer_count(config), config.get("attn_layer_indices") or []
    if config.get("layer_types") is not None:
        mixers = words(config, "layer_types", KINDS)
    elif not isinstance(chosen, list) or any(type(one) is not int or not 0 <= one < layers for one in chosen):
        raise Unsupported("attn_layer_indices", f"must be a list of layers, 0 to {layers - 1}")
    else:
        mixers = ["attention" if layer in chosen else "mamba2" for layer in range(layers)]
    return _mixed(mixers, {"mamba2": bamba_block(config)}, truth(config, "attention_bias"))


KINDS = {
    "mamba": "mamba2",
    "linear_attention": "mamba2",
    "attention": "attention",
    "full_attention": "attention",
}


def _mixed(mixers: list[str], blocks: Values, bias: bool = False) -> Values:
    used = {name: keys for name, keys in blocks.items() if name in mixers}
    made: Values = {"layers": in_turn([[one, "mlp"] for one in mixers]), "blocks": used or None}
    return {**made, "attention_bias": True} if bias else made


def _granite(config: Values) -> Values:
    """Without experts the feed-forward network is the shared one."""
    kinds = {**config, "layer_types": config.get("layer_types") or config.get("layers_block_type")}
    if kinds["layer_types"] is None:
        kinds["layer_types"] = ["mamba"] * layer_count(config)
    mixers = words(kinds, "layer_types", KINDS)
    blocks = {"mamba2": bamba_block(config)} if "mamba2" in mixers else {}
    shared = whole(config, "shared_intermediate_size")
    positions = "rope" if config.get("position_embedding_type") == "rope" else "none"
    made = {**_mixed(mixers, blocks, truth(config, "attention_bias")), "position_embedding_type": positions}
    if whole(config, "num_local_experts"):
        return {**made, "moe_shared_expert_intermediate_size": shared}
    dense = {"num_experts": None, "ffn_hidden_size": shared or whole(config, "intermediate_size")}
    return {**made, **dense, "moe_router_topk": 2}


def _falcon_h1(config: Values) -> Values:
    """Every layer has attention beside Mamba-2."""
    without_bias(config, "mlp_bias", "attention_bias", "projectors_bias")
    heads = whole(config, "num_attention_heads")
    attention = {
        "num_heads": heads,
        "num_key_value_heads": whole(config, "num_key_value_heads") or heads,
        "head_dim": whole(config, "head_dim") or whole(config, "hidden_size") // max(1, heads),
    }
    mamba = {**bamba_block(config), "gated_norm": truth(config, "mamba_rms_norm")}
    name = "attention_beside_mamba2"
    return {"layers": [[name, "mlp"]], "blocks": {name: {"attention": attention, "mamba2": mamba}}}


def _mixers_of_lfm(config: Values) -> Values:
    known = {"conv": "short_convolution", "full_attention": "attention"}
    layers, chosen = layer_count(config), config.get("full_attn_idxs")
    if config.get("layer_types") is not None:
        mixers = words(config, "layer_types", known)
    elif isinstance(chosen, list):
        mixers = ["attention" if layer in chosen else "short_convolution" for layer in range(layers)]
    else:
        mixers = ["attention"] * layers
    block = {"kernel": whole(config, "conv_L_cache", 3), "bias": truth(config, "conv_bias")}
    return _mixed(mixers, {"short_convolution": block})


def _lfm2(config: Values) -> Values:
    """The width of the feed-forward network is adjusted as Llama's, to 2/3 and to the next multiple."""
    inner = whole(config, "block_ff_dim") or whole(config, "intermediate_size")
    if truth(config, "block_auto_adjust_ff_dim", True):
        share, multiple = config.get("block_ffn_dim_multiplier", 1.0), whole(config, "block_multiple_of", 256)
        if not isinstance(share, int | float) or not multiple:
            raise Unsupported("block_ffn_dim_multiplier", "must be a number, and block_multiple_of above 0")
        inner = -(-int(share * int(2 * inner / 3)) // multiple) * multiple
    return {**_mixers_of_lfm(config), "ffn_hidden_size": inner}


def _lfm2_moe(config: Values) -> Values:
    return {
        **_mixers_of_lfm(config),
        "first_k_dense_replace": whole(config, "num_dense_layers", 2),
        "moe_router_bias": truth(config, "use_expert_bias", True),
    }


def _olmo_hybrid(config: Values) -> Values:
    """Layers with attention have norms behind their blocks, the others before; their number is the same."""
    mixers = words(config, "layer_types", {"linear_attention": "gated_delta_net", "full_attention": "attention"})
    return _mixed(mixers, {"gated_delta_net": sizes(config, DELTA)}, truth(config, "attention_bias"))


OF_MAMBAS = {
    "tie_word_embeddings": True,
    "num_attention_heads": 1,  # it has none
    # a recurrence has no longest sequence: 2,048 in Gu and Dao 2023, arXiv:2312.00752, section 4.2
    "max_position_embeddings": 2048,
    "state_size": 16,
    "expand": 2,
    "conv_kernel": 4,
    "use_conv_bias": True,
}

RECURRENT_KEYS = {key: name for key, name in SIZES.items() if name != "ffn_hidden_size"}

RECURRENT_FAMILIES: Mapping[str, Family] = {
    "mamba": Family(WITHOUT_POSITIONS, RECURRENT_KEYS, OF_MAMBAS, _mamba, below("mamba", OF_MAMBA)),
    "bamba": Family(
        LLAMA,
        LLAMA_KEYS,
        {**SILU, **BAMBA, "partial_rotary_factor": 0.5},
        _bamba,
        below("mamba2", OF_BAMBA),
    ),
    "granitemoehybrid": Family(
        LLAMA,
        LOCAL,
        {**SILU, **BAMBA, "num_experts_per_tok": 2, "shared_intermediate_size": 1024},
        _granite,
        below("mamba2", OF_BAMBA),
    ),
    "falcon_h1": Family(LLAMA, LLAMA_KEYS, {**SILU, **BAMBA, "mamba_d_ssm": 1024}, _falcon_h1),
    "lfm2": Family(
        {**LLAMA, "qk_norm": "per_head"},
        {key: name for key, name in LLAMA_KEYS.items() if key not in ("intermediate_size", "hidden_act")},
        {"tie_word_embeddings": True},
        lambda config: {"activation": "swiglu", **_lfm2(config)},
    ),
    "lfm2_moe": Family(
        {**LLAMA, "qk_norm": "per_head", "activation": "swiglu"},
        {key: name for key, name in NAMED.items() if key != "hidden_act"},
        {"tie_word_embeddings": True, "num_experts": 32, "num_experts_per_tok": 4},
        _lfm2_moe,
    ),
    "olmo_hybrid": Family(
        {**LLAMA, "qk_norm": "all_heads"},
        LLAMA_KEYS,
        {key: value for key, value in OF_QWEN.items() if key not in ("head_dim", "partial_rotary_factor")},
        _olmo_hybrid,
        below("gated_delta_net", DELTA),
    ),
}
"""The families by ``model_type``."""

RECURRENT_FAMILIES = {**RECURRENT_FAMILIES, "falcon_mamba": RECURRENT_FAMILIES["mamba"]}
