"""What a family of Hugging Face's models has: values that its code fixes, and keys that it reads.

Every family has defaults of its own, which its configuration class sets if a file leaves a key out
(huggingface/transformers, src/transformers/models/*/configuration_*.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workloads.architectures.keys import MOST_LAYERS
from workloads.windows import pattern

Values = dict[str, Any]

LARGEST = 10**12
"""No size of a model is above: the largest has some 10^13 parameters in all."""


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
