"""What a family of Hugging Face's models has: values that its code fixes, and keys that it reads.

Every family has defaults of its own, which its configuration class sets if a file leaves a key out
(huggingface/transformers, src/transformers/models/*/configuration_*.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Values = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """A family of models: what its code fixes, and what it reads from a configuration.

    *fixed*: values of the `model:` section. *keys*: key of the section by key of the configuration. *defaults*: values
    of a configuration that leaves them out. *more*: further values from the whole configuration; it may raise
    `Unsupported`.
    """

    fixed: Mapping[str, Any]
    keys: Mapping[str, str]
    defaults: Mapping[str, Any]
    more: Callable[[Values], Values] = lambda config: {}


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


def window(config: Values) -> Values:
    """A window of attention, if it is in use and shorter than the sequence."""
    window = config.get("sliding_window")
    if not isinstance(window, int | None):
        raise Unsupported("sliding_window", f"must be a whole number, not {window!r}")
    used = window and config.get("use_sliding_window", True) and window < config["max_position_embeddings"]
    return {"attention_window": window} if used else {}
