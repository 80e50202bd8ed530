"""Families of Hugging Face's models with layers of other blocks than attention and an MLP.

Which layers have which block stands in ``layers_block_type`` or ``layer_types``, in a pattern of letters (Nemotron-H,
as Megatron-LM's --hybrid-override-pattern), or follows from a period and an offset (Jamba).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clustersim.workloads.architectures.huggingface_families import (
    LLAMA,
    LLAMA_KEYS,
    NAMED,
    SILU,
    SIZES,
    Family,
    Unsupported,
    Values,
    sparse_layers,
    truth,
    whole,
)
from clustersim.workloads.architectures.model_keys import MOST_LAYERS

WITHOUT_POSITIONS = {**LLAMA, "position_embedding_type": "none"}

LETTERS = {"M": "mamba2", "*": "attention", "-": "mlp", "E": "moe"}
"""Blocks by the letters of a pattern."""

KINDS = {
    "mamba": "mamba2",
    "linear_attention": "mamba2",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}
"""Blocks of Nemotron-H by their words, old and new."""


def in_turn(layers: Sequence[Any]) -> list[Any]:
    """Return the shortest list that gives *layers*, taken in turn twice or more; else all.

    >>> in_turn(["a", "b", "a", "b", "a"]), in_turn(["a", "b", "a"])
    (['a', 'b'], ['a', 'b', 'a'])
    """
    every = list(layers)
    turns = (n for n in range(1, len(every) // 2 + 1) if all(one == every[i % n] for i, one in enumerate(every)))
    return every[: next(turns, len(every))]


def layer_count(config: Values) -> int:
    """Return the number of layers. Raises `Unsupported` for one that is absurd."""
    layers = whole(config, "num_hidden_layers")
    if not 0 < layers <= MOST_LAYERS:
        raise Unsupported("num_hidden_layers", f"{layers} is absurd; it must be 1 to {MOST_LAYERS}")
    return layers


def words(config: Values, key: str, known: Mapping[str, str]) -> list[str]:
    """Return the blocks of all layers by the list, or the text, of *key*, whose words or letters are *known*."""
    given, layers = config[key], layer_count(config)
    words = list(given) if isinstance(given, str | list) else []
    if len(words) != layers or not all(isinstance(word, str) and word in known for word in words):
        raise Unsupported(key, f"must have one of {', '.join(known)} for each of the {layers} layers")
    return [known[word] for word in words]


def without_bias(config: Values, *keys: str) -> None:
    """Raise `Unsupported` if one of *keys* is true."""
    for key in keys:
        if truth(config, key):
            raise Unsupported(key, "biases of the products of a mixer are not modelled; it must be false")


def sizes(config: Values, places: Mapping[str, str]) -> Values:
    """Return the sizes of a block by its keys."""
    return {name: whole(config, key) for key, name in places.items()}


def below(block: str, places: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    """Return where the keys of a configuration stand in the section, of those that a *block* has."""
    return {key: ("blocks", block, name) for key, name in places.items()}


MAMBA2 = {key: key for key in ("state_size", "num_heads", "head_dim", "n_groups", "conv_kernel", "chunk_size")}

OF_NEMOTRON = {
    "ssm_state_size": "state_size",
    "mamba_num_heads": "num_heads",
    "mamba_head_dim": "head_dim",
    "n_groups": "n_groups",
    "conv_kernel": "conv_kernel",
    "chunk_size": "chunk_size",
}

MAMBA = {"mamba_d_state": "state_size", "mamba_d_conv": "conv_kernel", "mamba_expand": "expand"}

DELTA = {
    "linear_num_key_heads": "num_key_heads",
    "linear_num_value_heads": "num_value_heads",
    "linear_key_head_dim": "key_head_dim",
    "linear_value_head_dim": "value_head_dim",
    "linear_conv_kernel_dim": "conv_kernel",
}


def _mamba2(config: Values) -> Values:
    without_bias(config, "use_bias")
    block = sizes(config, MAMBA2)
    return {"layers": ["mamba2"], "blocks": {"mamba2": {**block, "use_conv_bias": truth(config, "use_conv_bias")}}}


def _layers_of_nemotron(config: Values) -> Values:
    """As many layers as there are words or letters."""
    found = config.get("layers_block_type") or config.get("hybrid_override_pattern")
    return {"num_hidden_layers": len(found)} if isinstance(found, list | str) else {}


def _nemotron(config: Values) -> Values:
    """Each layer is one block; heads of Mamba-2 are given, whatever ``expand`` says."""
    without_bias(config, "mamba_proj_bias", "use_bias", "mlp_bias")
    config.get("expand")
    if config.get("layers_block_type") is not None:
        blocks = words(config, "layers_block_type", KINDS)
    elif config.get("hybrid_override_pattern") is not None:
        blocks = words(config, "hybrid_override_pattern", LETTERS)
    else:
        raise Unsupported("model_type", "needs layers_block_type or hybrid_override_pattern, the block of each layer")
    block = sizes(config, OF_NEMOTRON)
    mixer = {"mamba2": {**block, "use_conv_bias": truth(config, "use_conv_bias")}} if "mamba2" in blocks else None
    made: Values = {
        "layers": in_turn(["mlp" if one == "moe" else one for one in blocks]),
        "blocks": mixer,
        "attention_bias": truth(config, "attention_bias"),
        "num_experts": None,
    }
    if "moe" not in blocks:
        return made
    return made | {
        "num_experts": whole(config, "n_routed_experts"),
        "moe_router_topk": whole(config, "num_experts_per_tok"),
        "moe_ffn_hidden_size": whole(config, "moe_intermediate_size"),
        "moe_shared_expert_intermediate_size": whole(config, "moe_shared_expert_intermediate_size"),
        "moe_router_bias": True,  # the correction of the scores
        "moe_latent_size": whole(config, "moe_latent_size"),
        "moe_layer_freq": in_turn([int(one == "moe") for one in blocks]),
    }


def _jamba(config: Values) -> Values:
    """Layer i has attention if i modulo the period is the offset, and experts likewise."""
    without_bias(config, "mamba_proj_bias")
    layers = range(layer_count(config))

    def has(what: str) -> list[bool]:
        period, offset = whole(config, f"{what}_layer_period"), whole(config, f"{what}_layer_offset")
        if period < 1 or offset >= period:
            raise Unsupported(f"{what}_layer_period", f"must be above {what}_layer_offset = {offset}, not {period}")
        return [layer % period == offset for layer in layers]

    rank = {} if config.get("mamba_dt_rank") == "auto" else {"time_step_rank": whole(config, "mamba_dt_rank")}
    block = {
        **sizes(config, MAMBA),
        **rank,
        "use_conv_bias": truth(config, "mamba_conv_bias"),
        "inner_norms": True,
    }
    attends, sparse, experts = has("attn"), has("expert"), whole(config, "num_experts")
    mixture = {"moe_router_topk": whole(config, "num_experts_per_tok"), "moe_layer_freq": in_turn([*map(int, sparse)])}
    several = experts > 1 and any(sparse)
    return {
        "layers": in_turn([["attention" if one else "mamba", "mlp"] for one in attends]),
        "blocks": None if all(attends) else {"mamba": block},
        "num_experts": experts if several else None,
        **(mixture if several else {}),
    }


def _delta_layers(config: Values) -> Values:
    """The last layer of each ``full_attention_interval`` has attention, the others a gated delta net."""
    layers, turn = layer_count(config), whole(config, "full_attention_interval")
    if config.get("layer_types") is not None:
        known = {"linear_attention": "gated_delta_net", "full_attention": "attention"}
        mixers = words(config, "layer_types", known)
    elif turn < 1:
        raise Unsupported("full_attention_interval", f"must be a whole number of at least 1, not {turn}")
    else:
        mixers = ["attention" if (layer + 1) % turn == 0 else "gated_delta_net" for layer in range(layers)]
    block = sizes(config, DELTA)
    return {
        "attention_output_gate": truth(config, "attn_output_gate", True),
        "layers": in_turn([[mixer, "mlp"] for mixer in mixers]),
        "blocks": {"gated_delta_net": block} if "gated_delta_net" in mixers else None,
    }


def _qwen3_next(config: Values) -> Values:
    shared = whole(config, "shared_expert_intermediate_size")
    return {
        **sparse_layers(config),
        **_delta_layers(config),
        "moe_shared_expert_intermediate_size": shared,
        "moe_shared_expert_gate": bool(shared),
    }


OF_QWEN = {
    **SILU,
    "head_dim": 256,
    "shared_expert_intermediate_size": 512,
    "full_attention_interval": 4,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}

HYBRID_FAMILIES: Mapping[str, Family] = {
    "mamba2": Family(
        WITHOUT_POSITIONS,
        {
            key: name
            for key, name in SIZES.items()
            if name in ("num_layers", "hidden_size", "num_attention_heads", "vocab_size", "seq_length")
        },
        {
            "tie_word_embeddings": False,
            "num_attention_heads": 1,  # it has none
            # a recurrence has no longest sequence: 2,048 in Dao and Gu 2024, arXiv:2405.21060, section 9.2
            "max_position_embeddings": 2048,
            "state_size": 128,
            "num_heads": 128,
            "head_dim": 64,
            "n_groups": 8,
            "conv_kernel": 4,
            "chunk_size": 256,
            "use_conv_bias": True,
        },
        _mamba2,
        below("mamba2", MAMBA2),
    ),
    "nemotron_h": Family(
        WITHOUT_POSITIONS,
        {
            **{key: name for key, name in LLAMA_KEYS.items() if key != "hidden_act"},
            "attention_head_dim": "head_dim",
            "mlp_hidden_act": "activation",
            "n_routed_experts": "num_experts",
        },
        {
            "tie_word_embeddings": False,
            "mlp_hidden_act": "relu2",
            "ssm_state_size": 128,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "conv_kernel": 4,
            "chunk_size": 128,
            "use_conv_bias": True,
            "num_experts_per_tok": 2,
            "n_routed_experts": 8,
            "moe_intermediate_size": 7688,
            "moe_shared_expert_intermediate_size": 7688,
        },
        _nemotron,
        below("mamba2", OF_NEMOTRON),
        _layers_of_nemotron,
    ),
    "jamba": Family(
        WITHOUT_POSITIONS,
        {
            **{key: name for key, name in LLAMA_KEYS.items() if key != "head_dim"},
            "num_experts": "num_experts",
        },
        {
            **SILU,
            "num_experts": 16,
            "num_experts_per_tok": 2,
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_dt_rank": "auto",
            "mamba_conv_bias": True,
        },
        _jamba,
        below("mamba", MAMBA),
    ),
    "qwen3_5_text": Family(
        {**LLAMA, "qk_norm": "per_head", "attention_output_gate": True},
        LLAMA_KEYS,
        OF_QWEN,
        _delta_layers,
        below("gated_delta_net", DELTA),
    ),
    "qwen3_5_moe_text": Family(
        {**LLAMA, "qk_norm": "per_head", "attention_output_gate": True},
        NAMED,
        {**OF_QWEN, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512},
        _qwen3_next,
        below("gated_delta_net", DELTA),
    ),
    "qwen3_next": Family(
        {**LLAMA, "qk_norm": "per_head", "attention_output_gate": True},
        NAMED,
        {
            **OF_QWEN,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
        },
        _qwen3_next,
        below("gated_delta_net", DELTA),
    ),
}
"""The families by ``model_type``."""
