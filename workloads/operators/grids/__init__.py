"""Models cut over a grid of ranks: transformers in two, two and a half and three dimensions, images by a domain."""

from __future__ import annotations

from typing import Literal

Way = Literal["domain", "model", "batch"]
"""How a layer of a convolutional model is divided."""
