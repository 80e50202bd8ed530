"""Families of Hugging Face's encoders: followers of BERT and T5, vision transformers, two towers and Whisper.

Values that their code fixes, and defaults of their configuration classes (transformers, src/transformers/models/*).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clustersim.workloads.architectures.huggingface_dense import DENSE_FAMILIES, encoder_head
from clustersim.workloads.architectures.huggingface_families import Family, Unsupported, Values, truth, whole

BERT, T5 = DENSE_FAMILIES["bert"], DENSE_FAMILIES["t5"]

OFFSET = 2
"""Positions of RoBERTa begin behind its padding (modeling_roberta.py, ``create_position_ids_from_input_ids``)."""


def _roberta(config: Values) -> Values:
    rows = whole(config, "max_position_embeddings", 512)
    if rows <= OFFSET:
        raise Unsupported("max_position_embeddings", f"must be above {OFFSET}, rows that are no positions, not {rows}")
    return {**encoder_head(config), "position_rows": rows, "seq_length": rows - OFFSET}


def _sound(config: Values, key: str) -> None:
    if not truth(config, key, True):
        raise Unsupported(key, "products of queries, keys and values without biases are not modelled; must be true")


def _vit(config: Values) -> Values:
    """Classes are counted by their names, as PretrainedConfig does; 2 if it has none."""
    _sound(config, "qkv_bias")
    names = config.get("id2label")
    classes = len(names) if isinstance(names, dict) else whole(config, "num_labels", 2)
    return {"num_classes": classes, "attention": "flash"}


def _part(config: Values, key: str) -> Values:
    given = config.get(key)
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise Unsupported(key, f"must be a mapping, not {str(given)[:60]!r}")
    return given


TOWER = {
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "ffn_hidden_size",
}
OF_IMAGES = {**TOWER, "image_size": "image_size", "patch_size": "patch_size"}
OF_TEXT = {**TOWER, "max_position_embeddings": "seq_length", "vocab_size": "vocab_size"}

CLIP_TEXT = {"num_hidden_layers": 12, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
CLIP_TEXT |= {"max_position_embeddings": 77, "vocab_size": 49408}
SIGLIP_TEXT = {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
IMAGES = {**SIGLIP_TEXT, "image_size": 224}
SIGLIP_TEXT |= {"max_position_embeddings": 64, "vocab_size": 32000}


def _tower(config: Values, key: str, places: Mapping[str, str], defaults: Mapping[str, int]) -> Values:
    given = _part(config, key)
    return {name: whole(given, own, defaults[own]) for own, name in places.items()}


def _towers(config: Values, text: Mapping[str, int], patch: int) -> Values:
    return {
        "text": _tower(config, "text_config", OF_TEXT, text),
        "image": _tower(config, "vision_config", OF_IMAGES, {**IMAGES, "patch_size": patch}),
    }


def _clip(config: Values) -> Values:
    return {**_towers(config, CLIP_TEXT, 32), "projection_size": whole(config, "projection_dim", 512)}


def _siglip(config: Values) -> Values:
    """``projection_size`` of the text, as wide as the tower unless it is given."""
    made = _towers(config, SIGLIP_TEXT, 16)
    width = whole(_part(config, "text_config"), "projection_size", made["text"]["hidden_size"])
    return {**made, "objective": "siglip", "projection_size": width}


def _whisper(config: Values) -> Values:
    """Both stacks must have the same heads and widths."""
    for key in ("attention_heads", "ffn_dim"):
        first, second = (whole(config, f"{part}_{key}") for part in ("encoder", "decoder"))
        if first != second:
            raise Unsupported(f"decoder_{key}", f"{second} beside {first} of the encoder is not modelled")
    return {}


def _named(kind: str, places: Mapping[str, str], defaults: Mapping[str, Any], more: Any) -> Family:
    parts = {"text_config": ("text",), "vision_config": ("image",)} if kind == "towers" else {}
    return Family({}, places, defaults, more, parts, kind=kind)


ENCODER_FAMILIES: Mapping[str, Family] = {
    "roberta": Family(BERT.fixed, BERT.keys, BERT.defaults, _roberta),
    "distilbert": Family(
        BERT.fixed,
        {
            "n_layers": "num_layers",
            "dim": "hidden_size",
            "n_heads": "num_attention_heads",
            "hidden_dim": "ffn_hidden_size",
            "max_position_embeddings": "seq_length",
            "vocab_size": "vocab_size",
            "activation": "activation",
            "dropout": "dropout",
        },
        {"tie_word_embeddings": True, "activation": "gelu", "dropout": 0.1, "max_position_embeddings": 512},
        lambda config: {**encoder_head(config), "type_vocab_size": 0},
    ),
    "mt5": Family(T5.fixed, T5.keys, {**T5.defaults, "feed_forward_proj": "gated-gelu"}, T5.more),
    "vit": _named(
        "vision",
        {**OF_IMAGES, "num_channels": "num_channels", "hidden_dropout_prob": "dropout"},
        {**IMAGES, "patch_size": 16, "num_channels": 3, "hidden_dropout_prob": 0.0},
        _vit,
    ),
    "clip": _named("towers", {}, {}, _clip),
    "siglip": _named("towers", {}, {}, _siglip),
    "whisper": _named(
        "speech",
        {
            "encoder_layers": "num_layers",
            "decoder_layers": "num_decoder_layers",
            "d_model": "hidden_size",
            "encoder_attention_heads": "num_attention_heads",
            "encoder_ffn_dim": "ffn_hidden_size",
            "num_mel_bins": "mel_bins",
            "max_source_positions": "audio_length",
            "max_target_positions": "seq_length",
            "vocab_size": "vocab_size",
        },
        {
            "encoder_layers": 4,
            "decoder_layers": 4,
            "d_model": 384,
            "encoder_attention_heads": 6,
            "decoder_attention_heads": 6,
            "encoder_ffn_dim": 1536,
            "decoder_ffn_dim": 1536,
            "vocab_size": 51865,
        },
        _whisper,
    ),
}
"""The families by ``model_type``."""

ENCODER_FAMILIES = {
    **ENCODER_FAMILIES,
    "xlm-roberta": ENCODER_FAMILIES["roberta"],
    "camembert": ENCODER_FAMILIES["roberta"],
}
