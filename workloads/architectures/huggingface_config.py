"""Model configurations of Hugging Face's transformers, ``config.json``, as the `model:` section of a scenario, with the
tower of images of models of several parts.

Every family has its own keys, and defaults for those that a file leaves out (`Family`).

Keys are those of ``vision_config`` (transformers, src/transformers/models/qwen3_vl, qwen3_5, qwen2_5_vl, kimi_k25,
llama4 and gemma3; for Kimi K2.5 also those of the code beside the weights).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clustersim.simulator.reading.document import Document, Path
from clustersim.simulator.reading.validation import listed, near
from clustersim.workloads.architectures.huggingface_dense import DENSE_FAMILIES
from clustersim.workloads.architectures.huggingface_encoders import ENCODER_FAMILIES
from clustersim.workloads.architectures.huggingface_experts import FURTHER_EXPERT_FAMILIES, RECENT_FAMILIES
from clustersim.workloads.architectures.huggingface_families import (
    EXPERT_FAMILIES,
    Family,
    Unsupported,
    Values,
    rotated,
    truth,
    whole,
)
from clustersim.workloads.architectures.huggingface_hybrids import HYBRID_FAMILIES
from clustersim.workloads.architectures.huggingface_mixed import MIXED_FAMILIES
from clustersim.workloads.architectures.huggingface_recurrent import RECURRENT_FAMILIES
from clustersim.workloads.architectures.huggingface_variants import VARIANT_FAMILIES
from clustersim.workloads.architectures.model_keys import ACTIVATIONS

FAMILIES: Mapping[str, Family] = {
    **DENSE_FAMILIES,
    **VARIANT_FAMILIES,
    **EXPERT_FAMILIES,
    **FURTHER_EXPERT_FAMILIES,
    **HYBRID_FAMILIES,
    **RECURRENT_FAMILIES,
    **MIXED_FAMILIES,
    **ENCODER_FAMILIES,
    **RECENT_FAMILIES,
}
"""The families by ``model_type``."""

FAMILIES = {
    **FAMILIES,
    "qwen2_5_omni_text": FAMILIES["qwen2"],
    "qwen3_vl": FAMILIES["qwen3"],
    "qwen3_vl_text": FAMILIES["qwen3"],
    "qwen3_vl_moe": FAMILIES["qwen3_moe"],
    "qwen3_vl_moe_text": FAMILIES["qwen3_moe"],
    "qwen3_5": FAMILIES["qwen3_5_text"],
    "qwen3_5_moe": FAMILIES["qwen3_5_moe_text"],
    "gemma3": FAMILIES["gemma3_text"],
    "gemma4": FAMILIES["gemma4_text"],
    "mistral3": FAMILIES["mistral"],
    "glm4v": FAMILIES["glm4v_text"],
    "glm4v_moe": FAMILIES["glm4v_moe_text"],
    "llama4": FAMILIES["llama4_text"],
    "phi4mm": FAMILIES["phi3"],
    "bailing_moe_v2": FAMILIES["bailing_moe"],
    "minimax_m3_vl": FAMILIES["minimax_m3"],
    "minimax_m3_vl_text": FAMILIES["minimax_m3"],
    "step3p7_text": FAMILIES["step3p7"],
    "step3p5": FAMILIES["step3p7"],
    "deepseek_ref": FAMILIES["deepseek_v4"],
}

TEXTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Keys of the configuration of the text model in that of a model with a vision or an audio encoder."""

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Keys of models with experts."""


class _Recording(dict[str, Any]):
    """Values of a configuration that note which of them are asked for."""

    def __init__(self, values: Values) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def _values(family: Family, config: Values) -> Values:
    """The values of *config*, with those that the family's class sets where it has none."""
    given = {**family.defaults, **{key: value for key, value in config.items() if value is not None}}
    return {**family.completed(given), **given}


def _rotated(family: Family, values: Values) -> Values:
    """The share of rotary positions, of a family whose heads have them."""
    has = family.fixed.get("position_embedding_type") == "rope" and "kv_lora_rank" not in family.keys
    return rotated(values) if has else {}


def _tower(around: Values, read: Values, document: Document) -> Values:
    """The tower of images of the whole configuration *around*, if there is one that is known."""
    try:
        tower = tower_section(around, read.get("hidden_size", 0)) if "num_layers" in read else None
    except Unsupported as error:
        raise document.error((error.key,), error.why) from None
    return {"vision": tower} if tower else {}


def keys_read(document: Document) -> set[str]:
    """Return the keys of the configuration in *document* that decide its `model:` section.

    The configuration is one that `model_section` accepts; they are those of its `text_part`.
    """
    config = text_part(document).data
    family = FAMILIES[config["model_type"]]
    values = _Recording(_values(family, config))
    _rotated(family, values)
    family.more(values)
    return {"model_type", "tie_word_embeddings", *EXPERTS, *family.keys, *values.asked}


def text_key(document: Document) -> str:
    """Return the key of the configuration of the text model in *document*; "" if it has none apart."""
    family = FAMILIES.get(str(document.data.get("model_type")))
    if "hidden_size" in document.data or (family and family.kind != "transformer"):
        return ""
    return next((key for key in TEXTS if isinstance(document.data.get(key), dict)), "")


def text_path(document: Document) -> Path:
    """Return the path of the configuration of the text model, which may lie below that of a part of the model."""
    key = text_key(document)
    return (key, *text_path(_below(document, key))) if key else ()


def text_part(document: Document) -> Document:
    """Return the configuration of the text model in *document*: a model of several parts has it apart."""
    key = text_key(document)
    return text_part(_below(document, key)) if key else document


def _below(document: Document, key: str) -> Document:
    around: dict[str, Any] = {
        name: document.data[name] for name in ("model_type", "tie_word_embeddings") if name in document.data
    }
    positions = {path: position for path, position in document.positions.items() if path[:1] != (key,)}
    own = {path[1:]: position for path, position in document.positions.items() if path[:1] == (key,)}
    return Document({**around, **document.data[key]}, {**positions, **own})


def model_section(document: Document) -> Document:
    """Return the configuration in *document* as a `model:` section, with the positions of its values.

    Of a model with several parts it is the text model (`text_part`), with its tower of images if that is known. Raises
    `ScenarioError` for a family, or a value,
    that no model of clustersim has.
    """
    around, document = document.data, text_part(document)
    config = document.data
    family = FAMILIES.get(config["model_type"]) if isinstance(config["model_type"], str) else None
    if family is None:
        known = list(FAMILIES)
        name = str(config["model_type"])
        raise document.error(
            ("model_type",), f'unknown family "{name}"; there are: {", ".join(known)}', near(name, known)
        )
    experts = next((key for key in EXPERTS if config.get(key)), None)
    if experts and not any(key in family.keys for key in EXPERTS):
        raise document.error((experts,), f"the family {config['model_type']} has no experts in clustersim")
    try:
        values = _values(family, config)
    except Unsupported as error:
        raise document.error((error.key,), error.why) from None
    for name in family.required:
        keys = [key for key, own in family.keys.items() if own == name]
        if not any(key in values for key in keys):
            raise document.error((), f"needs {listed(keys)}, as a {config['model_type']} has it")
        for key in keys:
            if key in values and (not isinstance(values[key], int) or isinstance(values[key], bool)):
                raise document.error((key,), f"must be a whole number, not {values[key]!r}")
    try:
        tied = {"tie_embeddings": truth(values, "tie_word_embeddings")} if family.kind == "transformer" else {}
        more = {**_rotated(family, values), **family.more(values)}
    except Unsupported as error:
        raise document.error((error.key,), error.why) from None
    read = {name: values[key] for key, name in family.keys.items() if key in values}
    more |= _tower(around, read, document)
    made = {"kind": family.kind, "name": config["model_type"], **family.fixed, **read, **tied, **more}
    if isinstance(made.get("activation"), str):
        made["activation"] = ACTIVATIONS.get(made["activation"], made["activation"])
    positions: dict[Path, Any] = {(): document.position(())}
    for key, name in {**family.keys, "tie_word_embeddings": "tie_embeddings"}.items():
        if (key,) in document.positions:
            positions[name,] = document.positions[key,]
    positions |= {path: document.positions[key,] for key, path in family.below.items() if (key,) in document.positions}
    return Document(made, positions)


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
