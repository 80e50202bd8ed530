"""The tower of images in a configuration of Hugging Face's models of several parts, as `model.vision`.

Keys are those of ``vision_config`` (transformers, src/transformers/models/qwen3_vl, qwen3_5, qwen2_5_vl, kimi_k25,
llama4 and gemma3; for Kimi K2.5 also those of the code beside the weights).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clustersim.workloads.architectures.huggingface_families import Unsupported, Values, whole

KEY = "vision_config"


def _sizes(config: Values, defaults: Mapping[str, tuple[str, int]]) -> Values:
    """Sizes by their key here; *defaults* has the key of the configuration and its default."""
    return {name: whole(config, key, default) for name, (key, default) in defaults.items()}


def _qwen3(config: Values, around: Values, features: int) -> Values:
    """Each layer of ``deepstack_visual_indexes`` has a projector more."""
    sizes = _sizes(config, {**QWEN, "ffn_hidden_size": ("intermediate_size", 4304), "patch_size": ("patch_size", 16)})
    rows, merge = whole(config, "num_position_embeddings", 2304), whole(config, "spatial_merge_size", 2)
    chosen = config.get("deepstack_visual_indexes", [8, 16, 24]) or []
    if not isinstance(chosen, list):
        raise Unsupported(KEY, f"deepstack_visual_indexes must be a list of layers, not {str(chosen)[:60]!r}")
    inner = sizes["hidden_size"] * merge**2
    way = {"widths": [inner, features], "merge": merge, "copies": len(chosen)}
    # the table of positions is that of a square image, and is interpolated
    side = round(rows**0.5) * sizes["patch_size"]
    made = {"activation": "gelu_new", "rotary": True, "position_rows": rows, "image_size": side, "projector": way}
    return {**sizes, **made, "frames": whole(config, "temporal_patch_size", 2)}


def _qwen3_5(config: Values, around: Values, features: int) -> Values:
    """The tower of Qwen3-VL, without projectors between its layers unless a file names them."""
    return _qwen3({"deepstack_visual_indexes": [], **config}, around, features)


QWEN = {"num_layers": ("depth", 27), "hidden_size": ("hidden_size", 1152), "num_attention_heads": ("num_heads", 16)}


def _qwen2_5(config: Values, around: Values, features: int) -> Values:
    """Windows of most layers are left out: every patch attends to all of its image."""
    sizes = _sizes(config, {**QWEN, "ffn_hidden_size": ("intermediate_size", 3420), "patch_size": ("patch_size", 14)})
    merge = whole(config, "spatial_merge_size", 2)
    inner = sizes["hidden_size"] * merge**2
    made = {"activation": "swiglu", "normalization": "rmsnorm", "rotary": True, "patch_bias": False}
    way = {"widths": [inner, features], "merge": merge}
    return {**sizes, **made, "frames": whole(config, "temporal_patch_size", 2), "projector": way}


def _kimi(config: Values, around: Values, features: int) -> Values:
    old = {key.removeprefix("vt_").removeprefix("init_"): value for key, value in config.items()}
    sizes = _sizes({**old, "patch_size": config.get("patch_size")}, {**TOWER, "patch_size": ("patch_size", 14)})
    high, wide = whole(old, "pos_emb_height", 64), whole(old, "pos_emb_width", 64)
    sides = config.get("merge_kernel_size") or [2, 2]
    if not isinstance(sides, list) or len({*map(str, sides)}) != 1 or type(sides[0]) is not int:
        raise Unsupported(KEY, f"merge_kernel_size must be two equal numbers, not {str(sides)[:60]!r}")
    inner = sizes["hidden_size"] * sides[0] ** 2
    made = {"activation": "gelu_new", "rotary": True, "position_rows": high * wide, "last_norm": True}
    return {**sizes, **made, "projector": {"widths": [inner, features], "merge": sides[0]}}


TOWER = {
    "num_layers": ("num_hidden_layers", 27),
    "hidden_size": ("hidden_size", 1152),
    "num_attention_heads": ("num_attention_heads", 16),
    "ffn_hidden_size": ("intermediate_size", 4304),
}


def _llama4(config: Values, around: Values, features: int) -> Values:
    """Pixel shuffle joins two by two patches; two products and then a third, without biases."""
    defaults = {**TOWER, "num_layers": ("num_hidden_layers", 34), "hidden_size": ("hidden_size", 768)}
    pixels = {"image_size": ("image_size", 448), "patch_size": ("patch_size", 14)}
    sizes = _sizes(config, {**defaults, "ffn_hidden_size": ("intermediate_size", 5632), **pixels})
    side = sizes["image_size"] // max(1, sizes["patch_size"])
    first, second = (whole(config, key, 4096) for key in ("projector_input_dim", "projector_output_dim"))
    way = {"widths": [first, second, features], "merge": 2, "norm": False, "bias": False}
    made = {"rotary": True, "position_rows": side**2 + 1, "patch_bias": False, "class_token": True}
    return {**sizes, **made, "first_norm": True, "last_norm": True, "projector": way}


def _siglip(config: Values, around: Values, features: int) -> Values:
    """Gemma 3 averages squares of patches, to ``mm_tokens_per_image`` tokens; its norm has no bias."""
    pixels = {"image_size": ("image_size", 224), "patch_size": ("patch_size", 16)}
    defaults = {**TOWER, "num_layers": ("num_hidden_layers", 12), "hidden_size": ("hidden_size", 768)}
    heads = {"num_attention_heads": ("num_attention_heads", 12), "ffn_hidden_size": ("intermediate_size", 3072)}
    sizes = _sizes(config, {**defaults, **heads, **pixels})
    side, tokens = sizes["image_size"] // max(1, sizes["patch_size"]), whole(around, "mm_tokens_per_image", 256)
    root = round(tokens**0.5)
    if root < 1 or root**2 != tokens or side % root:
        raise Unsupported(KEY, f"{side} x {side} patches cannot be averaged to {tokens} tokens")
    way = {"widths": [features], "merge": side // root, "pooled": True, "norm_bias": False, "bias": False}
    return {**sizes, "activation": "gelu_new", "position_rows": side**2, "last_norm": True, "projector": way}


TOWERS: Mapping[str, Callable[[Values, Values, int], Values]] = {
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_vl_vision", "qwen3_vl_moe_vision"), _qwen3),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_5_vision", "qwen3_5_moe_vision"), _qwen3_5),
    **dict.fromkeys(("qwen2_5_vl", "qwen2_5_vl_vision"), _qwen2_5),
    **dict.fromkeys(("kimi_k25", "kimi_k25_vision"), _kimi),
    **dict.fromkeys(("llama4", "llama4_vision_model"), _llama4),
    "gemma3": _siglip,
}
"""Towers by the ``model_type`` of the tower, or of the whole if it has none."""

SIGLIP = "siglip_vision_model"
"""A tower of several models, which have unequal projectors."""


def tower_section(around: Values, features: int) -> Values | None:
    """Return the section of the tower in the configuration *around*, for a text model of *features*; None: none known.

    Raises `Unsupported`.
    """
    config = around.get(KEY)
    if not isinstance(config, dict):
        return None
    name = config.get("model_type")
    made = TOWERS.get(str(around.get("model_type") if name in (None, SIGLIP) else name))
    return made(config, around, features) if made else None
