"""Families of Hugging Face's models whose layers have attention, or feed-forward networks, of unequal sizes.

Each size is a block under a name of its own (transformers, src/transformers/models/gemma4, mimo_v2_flash, step3p7,
minimax_m3_vl; for Nemotron's puzzles the code beside the weights, nvidia/Llama-3_3-Nemotron-Super-49B-v1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clustersim.workloads.architectures.huggingface_families import (
    FULL,
    LLAMA,
    LLAMA_KEYS,
    LOCAL,
    NAMED,
    ROUTED,
    SILU,
    SLIDING,
    Family,
    Unsupported,
    Values,
    rotated,
    truth,
    whole,
)
from clustersim.workloads.architectures.huggingface_hybrids import in_turn, layer_count, words

WIDE, NARROW = "full_attention", "sliding_attention"
"""Names of the blocks in the section."""

KINDS = {FULL: WIDE, SLIDING: NARROW}


def _grouped(heads: int, groups: int, size: int, **more: Any) -> Values:
    given = {key: value for key, value in more.items() if value}
    return {"kind": "grouped_attention", "num_heads": heads, "num_key_value_heads": groups, "head_dim": size, **given}


def _flags(config: Values, key: str) -> list[int]:
    """A list of 0 and 1 for each layer."""
    layers, found = layer_count(config), config.get(key)
    if not isinstance(found, list) or len(found) != layers or any(one not in (0, 1) for one in found):
        raise Unsupported(key, f"must be a list of 0 and 1 for each of the {layers} layers")
    return [int(one) for one in found]


def _sparse(config: Values, key: str = "moe_layer_freq") -> Values:
    """Which layers have experts, by a list or by the number of dense layers at the begin."""
    if isinstance(config.get(key), list):
        return {"moe_layer_freq": _flags(config, key), "first_k_dense_replace": 0}
    return {"first_k_dense_replace": whole(config, "first_k_dense_replace")}


def _used(layers: list[Any], blocks: Mapping[str, Values]) -> Values:
    named = {name for layer in layers for name in layer}
    return {"layers": in_turn(layers), "blocks": {name: one for name, one in blocks.items() if name in named} or None}


def _share(config: Values, kind: str) -> float:
    """The rotated share of layers of *kind*, which may have parameters of their own."""
    given = config.get("rope_parameters")
    inner = given.get(kind) if isinstance(given, Mapping) else None
    own = {**config, "rope_parameters": inner} if isinstance(inner, Mapping) else config
    return float(rotated(own).get("partial_rotary_factor", 1.0))


def _gemma4(config: Values) -> Values:
    """Layers that see all positions have wider heads, and with ``attention_k_eq_v`` no product for values."""
    if whole(config, "hidden_size_per_layer_input"):
        raise Unsupported("hidden_size_per_layer_input", "an embedding of each layer is not modelled; it must be 0")
    if whole(config, "num_kv_shared_layers"):
        raise Unsupported("num_kv_shared_layers", "keys and values of other layers are not modelled; it must be 0")
    heads, shares = whole(config, "num_attention_heads"), truth(config, "attention_k_eq_v")
    groups = whole(config, "num_global_key_value_heads") if shares else whole(config, "num_key_value_heads")
    wide = _grouped(heads, groups, whole(config, "global_head_dim", 512), qk_norm=True, shared_key_value=shares)
    wide["partial_rotary_factor"] = _share(config, FULL)
    narrow = _grouped(heads, whole(config, "num_key_value_heads"), whole(config, "head_dim"), qk_norm=True)
    narrow["window"] = whole(config, "sliding_window")
    mixers = words(config, "layer_types", KINDS)
    made = {"activation": "geglu", **_used([[one, "mlp"] for one in mixers], {WIDE: wide, NARROW: narrow})}
    if not truth(config, "enable_moe_block"):
        return {**made, "num_experts": None}
    return made | {
        "moe_router_topk": whole(config, "top_k_experts"),
        "moe_ffn_hidden_size": whole(config, "moe_intermediate_size"),
        "moe_shared_expert_intermediate_size": whole(config, "intermediate_size"),
        "moe_own_norms": True,
    }


def _mimo(config: Values) -> Values:
    """Layers of 1 in ``hybrid_layer_pattern`` have a window, and heads of their own."""

    def block(before: str, **more: Any) -> Values:
        sizes = (whole(config, before + key) for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        return _grouped(
            *sizes,
            value_head_dim=whole(config, before + "v_head_dim"),
            partial_rotary_factor=_share(config, FULL),
            **more,
        )

    full, swa = truth(config, "add_full_attention_sink_bias"), truth(config, "add_swa_attention_sink_bias")
    blocks = {
        WIDE: block("", sinks=full),
        NARROW: block("swa_", sinks=swa, window=whole(config, "sliding_window")),
    }
    mixers = [NARROW if one else WIDE for one in _flags(config, "hybrid_layer_pattern")]
    shared = whole(config, "n_shared_experts") * whole(config, "moe_intermediate_size")
    return {
        **_used([[one, "mlp"] for one in mixers], blocks),
        **_sparse(config),
        "moe_router_bias": config.get("topk_method") == "noaux_tc",
        "moe_shared_expert_intermediate_size": shared,
    }


def _step(config: Values) -> Values:
    """A gate scales each head; layers with a window may have more heads (``attention_other_setting``)."""
    other = config.get("attention_other_setting") or {}
    if not isinstance(other, dict):
        raise Unsupported("attention_other_setting", f"must be a mapping, not {str(other)[:60]!r}")
    groups = whole(config, "num_attention_groups") or whole(config, "num_key_value_heads")
    size, gate = whole(config, "head_dim"), "head" if truth(config, "use_head_wise_attn_gate", True) else "none"
    common = {"qk_norm": True, "output_gate": gate}
    heads = whole(other, "num_attention_heads") or whole(config, "num_attention_heads")
    own = whole(other, "num_attention_groups") or groups
    blocks = {
        WIDE: _grouped(whole(config, "num_attention_heads"), groups, size, **common),
        NARROW: _grouped(heads, own, size, window=whole(config, "sliding_window"), **common),
    }
    return {
        **_used([[one, "mlp"] for one in words(config, "layer_types", KINDS)], blocks),
        **_step_experts(config),
        "num_key_value_heads": groups,
    }


def _step_experts(config: Values) -> Values:
    layers = layer_count(config)
    sparse = config.get("moe_layers_enum")
    if isinstance(sparse, str) and all(one.strip().isdecimal() for one in sparse.split(",")):
        chosen = {int(one) for one in sparse.split(",")}
    elif sparse is None:
        chosen = set(range(whole(config, "first_k_dense_replace", 3), layers))
    else:
        raise Unsupported("moe_layers_enum", f"must be numbers of layers with commas, not {str(sparse)[:60]!r}")
    return {
        "num_experts": whole(config, "moe_num_experts") or whole(config, "num_experts"),
        "moe_router_topk": whole(config, "moe_top_k") or whole(config, "num_experts_per_tok"),
        "moe_shared_expert_intermediate_size": whole(config, "share_expert_dim"),
        "moe_router_bias": truth(config, "use_moe_router_bias", True),
        "moe_layer_freq": [int(layer in chosen) for layer in range(layers)],
    }


def _minimax_m3(config: Values) -> Values:
    """Layers of 1 in ``sparse_attention_freq`` attend to blocks of keys that an indexer chooses."""
    sparse = config.get("sparse_attention_config") or {}
    if not isinstance(sparse, dict):
        raise Unsupported("sparse_attention_config", f"must be a mapping, not {str(sparse)[:60]!r}")
    layers = layer_count(config)
    flags = _flags({**sparse, "num_hidden_layers": layers}, "sparse_attention_freq") if sparse else [0] * layers
    heads, groups = whole(config, "num_attention_heads"), whole(config, "num_key_value_heads")
    size, norms = whole(config, "head_dim"), truth(config, "use_qk_norm", True)
    block = whole(sparse, "sparse_block_size", 128)
    chosen = _grouped(
        heads,
        groups,
        size,
        qk_norm=norms,
        partial_rotary_factor=_share(config, FULL),
        index_block=block,
        index_topk=block * whole(sparse, "sparse_topk_blocks", 16),
        index_n_heads=whole(sparse, "sparse_num_index_heads", 4),
        index_head_dim=whole(sparse, "sparse_index_dim", 128),
    )
    return {
        **_used([[NARROW if flag else "attention", "mlp"] for flag in flags], {NARROW: chosen}),
        **_sparse(config),
        "activation": "swiglu",  # with a limit and a slope of its own
        "qk_norm": "per_head" if norms else "none",
        "moe_router_bias": truth(config, "use_routing_bias", True),
        "moe_shared_expert_intermediate_size": whole(config, "shared_intermediate_size"),
    }


def _kimi_linear(config: Values) -> Values:
    """``linear_attn_config`` numbers the layers of either kind from 1; attention is latent, without positions."""
    for key in ("attn_res_block_size", "mla_use_output_gate"):
        if config.get(key):
            raise Unsupported(key, "residuals over blocks, and a gate of latent attention, are not modelled (Kimi K3)")
    given, layers = config.get("linear_attn_config"), layer_count(config)
    if not isinstance(given, dict):
        raise Unsupported("linear_attn_config", f"must be a mapping, not {str(given)[:60]!r}")
    chosen = {name: given.get(name) for name in ("kda_layers", "full_attn_layers")}
    numbers = [one for every in chosen.values() for one in (every if isinstance(every, list) else [])]
    if any(type(one) is not int for one in numbers) or sorted(numbers) != list(range(1, layers + 1)):
        raise Unsupported("linear_attn_config", f"kda_layers and full_attn_layers must number the {layers} layers")
    places = {"num_heads": "num_heads", "head_dim": "head_dim", "short_conv_kernel_size": "conv_kernel"}
    block = {name: whole(given, key) for key, name in places.items() if key in given}
    linear = {*numbers[: len(chosen["kda_layers"] or [])]}
    mixers = ["kimi_delta_attention" if number + 1 in linear else "attention" for number in range(layers)]
    shared = whole(config, "num_shared_experts") * whole(config, "moe_intermediate_size")
    return {
        **_used([[one, "mlp"] for one in mixers], {"kimi_delta_attention": block}),
        "moe_shared_expert_intermediate_size": shared,
        "moe_router_bias": True,  # the correction of the scores
    }


def _deepseek_v4(config: Values) -> Values:
    """``compress_ratios`` has a number for each layer, and one for the module of multi-token prediction.

    Corrections of scores, which transformers has as buffers and the first layers do not have, are not counted.
    """
    layers, ratios = layer_count(config), config.get("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) < layers or any(type(one) is not int for one in ratios):
        raise Unsupported("compress_ratios", f"must be a list of numbers for each of the {layers} layers")
    names = {0: "windowed", **{ratio: f"compressed_{ratio}" for ratio in ratios if ratio > 0}}
    if min(ratios) < 0:
        raise Unsupported("compress_ratios", f"must be 0 or above, not {min(ratios)}")
    keys = ("head_dim", "q_lora_rank", "o_groups", "o_lora_rank", "qk_rope_head_dim")
    common: Values = {key: whole(config, key) for key in keys}
    common |= {"kind": "compressed_attention", "num_heads": whole(config, "num_attention_heads")}
    common["window"] = whole(config, "sliding_window")
    index = {key: whole(config, key) for key in ("index_topk", "index_n_heads", "index_head_dim")}
    blocks = {
        name: {**common, "compress_ratio": ratio, **(index if ratio == CHOSEN_RATIO else {})}
        for ratio, name in names.items()
    }
    return {
        **_used([[names[ratio], "mlp"] for ratio in ratios[:layers]], blocks),
        "residual_streams": whole(config, "hc_mult", 4),
        "ffn_hidden_size": whole(config, "moe_intermediate_size"),
        "moe_shared_expert_intermediate_size": whole(config, "n_shared_experts")
        * whole(config, "moe_intermediate_size"),
    }


CHOSEN_RATIO = 4
"""Layers of this ratio have an indexer (configuration_deepseek_v4.py, ``compressed_sparse_attention``)."""

MULTIPLE = 256
"""Widths of a puzzle's feed-forward networks are multiples of it (``_ffn_mult_to_intermediate_size`` of its code)."""


def _width(multiplier: float, features: int) -> int:
    """The width of a feed-forward network: 2/3 of 4 x *multiplier* / 4 x 3/2 x *features*, to the next multiple.

    >>> _width(5.25, 8192), _width(2.625, 8192)
    (28672, 14336)
    """
    inner = int(2 * multiplier * features / 3)
    return -(-inner // MULTIPLE) * MULTIPLE


def _puzzle(config: Values) -> Values:
    """``block_configs`` has the heads and the width of each layer, of which either may be left out."""
    layers, given = layer_count(config), config.get("block_configs")
    if not isinstance(given, list) or len(given) != layers or not all(isinstance(one, dict) for one in given):
        raise Unsupported("block_configs", f"must be a list of mappings for each of the {layers} layers")
    heads, features = whole(config, "num_attention_heads"), whole(config, "hidden_size")
    size = whole(config, "head_dim") or features // max(1, heads)
    blocks: dict[str, Values] = {}
    made: list[list[str]] = []
    for one in given:
        attention, network = one.get("attention") or {}, one.get("ffn") or {}
        layer: list[str] = []
        if attention.get("replace_with_linear") or network.get("replace_with_linear"):
            raise Unsupported("block_configs", "a linear map in place of attention or of a network is not modelled")
        if not attention.get("no_op"):
            groups = heads // max(1, whole(attention, "n_heads_in_group", 1))
            layer.append(f"attention_{groups}")
            blocks[layer[-1]] = _grouped(heads, groups, size)
        if not network.get("no_op"):
            width = _width(float(network.get("ffn_mult") or 0), features)
            layer.append(f"mlp_{width}")
            blocks[layer[-1]] = {"kind": "feed_forward", "width": width}
        made.append(layer)
    if not all(made):
        raise Unsupported("block_configs", f"layer {made.index([])} has neither attention nor a feed-forward network")
    return _used(made, blocks)


MIXED_FAMILIES: Mapping[str, Family] = {
    "gemma4_text": Family(
        {**LLAMA, "norm_placement": "both"},
        {**LLAMA_KEYS, "hidden_activation": "activation", "num_experts": "num_experts"},
        {"tie_word_embeddings": True, "head_dim": 256, "sliding_window": 512},
        _gemma4,
    ),
    "mimo_v2_flash": Family(
        LLAMA,
        {
            **{key: name for key, name in NAMED.items() if key != "num_experts"},
            "n_routed_experts": "num_experts",
            "n_group": "n_group",
            "topk_group": "topk_group",
        },
        {**SILU, "num_experts_per_tok": 8},
        _mimo,
    ),
    "step3p7": Family(
        LLAMA,
        {**NAMED, "moe_num_experts": "num_experts"},
        {**SILU, "head_dim": 128, "num_key_value_heads": 8, "num_experts_per_tok": 8, "num_attention_heads": 64},
        _step,
    ),
    "minimax_m3": Family(
        LLAMA,
        {
            **{key: name for key, name in LOCAL.items() if key not in ("intermediate_size", "hidden_act")},
            "dense_intermediate_size": "ffn_hidden_size",
            "intermediate_size": "moe_ffn_hidden_size",
        },
        {**SILU, "head_dim": 128, "num_local_experts": 128, "num_experts_per_tok": 4},
        _minimax_m3,
    ),
    "kimi_linear": Family(
        {**LLAMA, "position_embedding_type": "none"},
        {
            **{key: name for key, name in ROUTED.items() if not key.startswith(("n_", "num_experts", "max_"))},
            "model_max_length": "seq_length",
            "max_position_embeddings": "seq_length",
            "num_experts": "num_experts",
            "num_experts_per_token": "moe_router_topk",
        },
        {**SILU, "num_shared_experts": 1},
        _kimi_linear,
    ),
    "deepseek_v4": Family(
        LLAMA,
        {
            **{
                key: name
                for key, name in LLAMA_KEYS.items()
                if key not in ("intermediate_size", "num_key_value_heads", "head_dim")
            },
            "n_routed_experts": "num_experts",
            "num_experts_per_tok": "moe_router_topk",
            "moe_intermediate_size": "moe_ffn_hidden_size",
        },
        {**SILU, "n_shared_experts": 1, "sliding_window": 128},
        _deepseek_v4,
    ),
    "nemotron-nas": Family(
        LLAMA,
        {key: name for key, name in LLAMA_KEYS.items() if key not in ("intermediate_size", "num_key_value_heads")},
        SILU,
        _puzzle,
    ),
}
"""The families by ``model_type``."""
