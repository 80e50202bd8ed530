"""Models of transformers and diffusers on the meta device: how many parameters they have.

``python -m tests.workloads.architectures.reference_models`` counts those of ``reference_models.yaml`` again and prints
what differs. Both libraries are large, so that no extra of the project has them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clustersim.simulator.reading.yaml_and_json import read

FILE = Path(__file__).with_name("reference_models.yaml")

CORRECTIONS = ("e_score_correction_bias", "expert_bias")
"""A buffer of a router in transformers, a tensor in the files of weights and here."""

WITHOUT_HEAD = ("step3p7", "glm4v_text", "glm4v_moe_text", "qwen2_5_vl_text")
"""Text parts of models of several parts, which have no class with a head."""

WITH_IMAGES = ("qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl", "gemma3", "llama4", "kimi_k25")
"""Models with a tower of images."""

CLASSES = {
    **dict.fromkeys(("clip", "siglip", "glm4v_text", "glm4v_moe_text", "qwen2_5_vl_text"), "AutoModel"),
    **dict.fromkeys(("bert", "roberta", "distilbert"), "AutoModelForMaskedLM"),
    **dict.fromkeys(("mt5", "t5"), "AutoModelForSeq2SeqLM"),
    **dict.fromkeys(WITH_IMAGES, "AutoModelForImageTextToText"),
    "vit": "AutoModelForImageClassification",
}
"""Classes of models that have no causal head."""

NAMED = {"whisper": "WhisperForConditionalGeneration", "mistral4": "Mistral4ForCausalLM"}
"""Classes that none of the above finds."""

UNCORRECTED = ("deepseek_v4",)
"""Families whose first layers have no correction, so that it is not counted here."""


def references() -> dict[str, dict[str, Any]]:
    """The stored configurations and counts."""
    return read(FILE).data


def counted(config: Mapping[str, Any]) -> int:
    """Parameters, and corrections of scores, of the model of *config*; of a model without a head with one beside it."""
    torch = importlib.import_module("torch")
    given = {key: value for key, value in config.items() if key != "model_type"}
    kind = str(config["model_type"])
    with torch.device("meta"):
        model = _built(kind, given)
    tensors = {name: one.numel() for name, one in model.named_parameters()}
    if kind not in UNCORRECTED:
        tensors |= {name: one.numel() for name, one in model.named_buffers() if name.endswith(CORRECTIONS)}
    heads = given["vocab_size"] * given["hidden_size"] if kind in WITHOUT_HEAD else 0
    return sum(tensors.values()) + heads


def _built(kind: str, given: Mapping[str, Any]) -> Any:
    if not kind.islower():
        return getattr(importlib.import_module("diffusers"), kind)(**given)
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    if kind == "step3p7":  # a model of several parts, whose text part has no class with a head
        whole = transformers.AutoConfig.for_model(kind, text_config=dict(given))
        return transformers.AutoModel.from_config(whole).language_model
    made = transformers.AutoConfig.for_model(kind, **given)
    if kind in NAMED:
        return getattr(transformers, NAMED[kind])(made)
    return getattr(transformers, CLASSES.get(kind, "AutoModelForCausalLM")).from_config(made)


def main() -> None:
    """Print each count, and the stored one where it is another."""
    for part in references().values():
        for name, one in part.items():
            found = counted(one["config"])
            print(f"{name:24} {found:>20,}" + ("" if found == one["count"] else f"  but stored is {one['count']:,}"))


if __name__ == "__main__":
    main()
