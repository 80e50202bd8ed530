"""What a family of Hugging Face's models has: values that its code fixes, keys that it reads; families with experts.

Every family has defaults of its own, which its configuration class sets if a file leaves a key out
(huggingface/transformers, src/transformers/models/*/configuration_*.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.architectures.attention_keys import pattern
from clustersim.workloads.architectures.model_keys import MOST_LAYERS

Values = dict[str, Any]

LARGEST = 10**12
"""No size of a model is above: the largest has some 10^13 parameters in all."""


@dataclass(frozen=True)
class Family:
    """A family of models: what its code fixes, and what it reads from a configuration.

    *fixed*: values of the `model:` section. *keys*: key of the section by key of the configuration. *defaults*: values
    of a configuration that leaves them out. *more*: further values from the whole configuration; it may raise
    `Unsupported`. *below*: the path in the section of what *more* reads from a key, for messages. *completed*: sizes
    that a configuration says by other keys. *kind*: of the model.
    """

    fixed: Mapping[str, Any]
    keys: Mapping[str, str]
    defaults: Mapping[str, Any]
    more: Callable[[Values], Values] = lambda config: {}
    below: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    completed: Callable[[Values], Values] = lambda config: {}
    kind: str = "transformer"

    @property
    def required(self) -> tuple[str, ...]:
        """Keys of the section without which there is no model."""
        sizes = ("num_layers", "hidden_size", "num_attention_heads", "seq_length", "vocab_size")
        return sizes if self.kind == "transformer" else ()


class Unsupported(Exception):  # noqa: N818 - model_section catches it
    """A *key* with a value that is wrong, or that no model of clustersim has, and why."""

    def __init__(self, key: str, why: str) -> None:
        self.key, self.why = key, why
        super().__init__(why)


SIZES = {
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "ffn_hidden_size",
    "max_position_embeddings": "seq_length",
    "vocab_size": "vocab_size",
}
"""Sizes as most families call them."""

LLAMA_KEYS = {**SIZES, "num_key_value_heads": "num_key_value_heads", "head_dim": "head_dim", "hidden_act": "activation"}

LLAMA = {
    "normalization": "rmsnorm",
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "dropout": 0,
    "attention": "flash",
}
"""What Llama and the families that follow it have in common; torch's own attention is fused (SDPA)."""


SLIDING, FULL = "sliding_attention", "full_attention"
"""Kinds of layers in ``layer_types``."""


def whole(config: Values, key: str, default: int = 0) -> int:
    """The whole number of *key*, 0 or above; *default* if it is left out. Raises `Unsupported` for any other value."""
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST:
        raise Unsupported(key, f"must be a whole number, 0 or above, not {str(value)[:60]!r}")
    return value


def truth(config: Values, key: str, default: bool = False) -> bool:
    """The truth of *key*; *default* if it is left out. Raises `Unsupported` for any other value."""
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise Unsupported(key, f"must be true or false, not {str(value)[:60]!r}")
    return value


def rotated(config: Values) -> Values:
    """The share of a head's features that is rotated, if a configuration says it: a share, or so many features."""
    given = config.get("rope_parameters")
    inner = given.get("partial_rotary_factor") if isinstance(given, Mapping) else None
    key = next((key for key in ("partial_rotary_factor", "rotary_pct") if config.get(key) is not None), "")
    share = config[key] if key else inner
    if share is None and config.get("rotary_dim"):
        key, heads = "rotary_dim", whole(config, "num_attention_heads") or whole(config, "n_head", 1)
        features = whole(config, "hidden_size") or whole(config, "n_embd")
        share = whole(config, key) / (whole(config, "head_dim") or max(1, features // max(1, heads)))
    if share is None:
        return {}
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise Unsupported(key or "rope_parameters", f"rotates {str(share)[:60]!r} of a head; it must be 0 to 1 of it")
    return {"partial_rotary_factor": share}


def window(config: Values, turn: int = 1) -> Values:
    """A window of attention, if it is in use and shorter than the sequence.

    ``layer_types`` says which layers have it; without it all, or all but the last of each *turn* of layers.
    """
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    if not isinstance(window, int | None):
        raise Unsupported("sliding_window", f"must be a whole number, not {window!r}")
    if not (window and config.get("use_sliding_window", True) and window < config["max_position_embeddings"]):
        return {}
    layers = config["num_hidden_layers"]
    if layers > MOST_LAYERS:
        raise Unsupported("num_hidden_layers", f"{layers} is absurd; the most that is taken is {MOST_LAYERS}")
    if kinds is None:
        return {"attention_window": pattern(0 if turn > 1 and (n + 1) % turn == 0 else window for n in range(layers))}
    if not isinstance(kinds, list) or len(kinds) != layers or {*map(str, kinds)} - {SLIDING, FULL}:
        raise Unsupported("layer_types", f"must be a list of {SLIDING} and {FULL} for each of the {layers} layers")
    found = pattern(window if kind == SLIDING else 0 for kind in kinds)
    return {} if found is None else {"attention_window": found}


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

INDEXED = {**ROUTED, **{key: key for key in ("index_topk", "index_n_heads", "index_head_dim")}}
"""Keys of those whose attention is sparse, with an indexer."""


def sparse_layers(config: Values) -> Values:
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
    return {
        **sparse_layers(config),
        "moe_shared_expert_intermediate_size": shared,
        "moe_shared_expert_gate": bool(shared),
    }


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


def _indexed(config: Values) -> Values:
    """A layer whose ``indexer_types`` is shared takes the tokens that the layer before chose (GLM-5.2)."""
    kinds, layers = config.get("indexer_types"), config["num_hidden_layers"]
    if kinds is None:
        return _deepseek_v3(config)
    if not isinstance(kinds, list) or len(kinds) != layers or {*map(str, kinds)} - {"full", "shared"}:
        raise Unsupported("indexer_types", f"must be a list of full and shared for each of the {layers} layers")
    return {**_deepseek_v3(config), "index_layers": [int(kind == "full") for kind in kinds]}


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


def _llama4(config: Values) -> Values:
    """Layer i has experts if i + 1 is a multiple of the step; three of four layers attend within chunks.

    A token passes one shared expert of the width of the others. Norms of queries and keys have no parameters.
    """
    layers, step = config["num_hidden_layers"], whole(config, "interleave_moe_layer_step", 1)
    if layers > MOST_LAYERS:
        raise Unsupported("num_hidden_layers", f"{layers} is absurd; the most that is taken is {MOST_LAYERS}")
    if step < 1:
        raise Unsupported("interleave_moe_layer_step", f"must be a whole number of at least 1, not {step!r}")
    chunk = whole(config, "attention_chunk_size", 8192)
    pattern = [0] * (step - 1) + [1]
    chunks = {"attention_window": {"size": chunk, "every": "3 of 4", "chunked": True}}
    return {
        "moe_shared_expert_intermediate_size": whole(config, "intermediate_size", 8192),
        **({} if step == 1 else {"moe_layer_freq": pattern}),
        **(chunks if 0 < chunk < config["max_position_embeddings"] else {}),
    }


def _minimax(config: Values) -> Values:
    """Norms of queries and keys are over the features of all heads ("per_layer")."""
    kinds = {"per_layer": "all_heads", "per_head": "per_head"}
    kind = config.get("qk_norm_type", "per_layer")
    if kind not in kinds:
        raise Unsupported("qk_norm_type", f"must be per_layer or per_head, not {str(kind)[:60]!r}")
    return {
        "qk_norm": kinds[kind] if truth(config, "use_qk_norm", True) else "none",
        "moe_router_bias": truth(config, "use_routing_bias", True),
        "moe_shared_expert_intermediate_size": whole(config, "shared_intermediate_size"),
    }


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
        sparse_layers,
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
    "deepseek_v32": Family(
        LLAMA,
        INDEXED,
        {
            **SILU,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "n_shared_experts": 1,
            "index_topk": 2048,
            "index_n_heads": 64,
            "index_head_dim": 128,
        },
        _indexed,
    ),
    "glm_moe_dsa": Family(
        LLAMA,
        INDEXED,
        {
            **SILU,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "n_shared_experts": 1,
            "index_topk": 2048,
            "index_n_heads": 32,
            "index_head_dim": 128,
        },
        _indexed,
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
    "llama4_text": Family(
        LLAMA,
        {
            **{key: name for key, name in LOCAL.items() if key != "intermediate_size"},
            "intermediate_size_mlp": "ffn_hidden_size",
            "intermediate_size": "moe_ffn_hidden_size",
        },
        {**SILU, "num_local_experts": 16, "num_experts_per_tok": 1, "intermediate_size": 8192},
        _llama4,
    ),
    "minimax_m2": Family(LLAMA, LOCAL, {**SILU, "num_experts_per_tok": 8, "num_local_experts": 256}, _minimax),
    "olmoe": Family({**LLAMA, "qk_norm": "all_heads"}, NAMED, {**SILU, "num_experts": 64, "num_experts_per_tok": 8}),
    "granitemoe": Family(LLAMA, LOCAL, {**SILU, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "phimoe": Family(
        {**LLAMA, "normalization": "layernorm"},
        LOCAL,
        {**SILU, "num_local_experts": 16, "num_experts_per_tok": 2, "attention_bias": False, "lm_head_bias": False},
        _phi,
    ),
}
"""The families by ``model_type``."""
