"""Low-rank adapters: y = x W^T + s (x A^T) B^T, where W is frozen and only A and B are trained.

Hu et al. 2021, "LoRA" (arXiv:2106.09685, section 4.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workloads.adapters.quantisation import Quantisation

EVERY = ("qkv", "projection", "gate", "up", "down")
"""All linear maps of a layer. ``qkv``: the product that makes queries, keys and values."""


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters of *rank* for the *targets*; *drop*: their input is dropped out. *quantisation*: of the frozen weights.

    None: they keep the precision of the model.
    """

    rank: int
    targets: tuple[str, ...]
    drop: bool = False
    quantisation: Quantisation | None = None

    def adapters(self, sizes: Mapping[str, int], *, apart: bool) -> tuple[Adapter, ...]:
        """The adapters of a linear map that makes the outputs *sizes*, by name; *apart*: each has a tensor of its own.

        >>> Lora(8, ("query", "value")).adapters({"query": 64, "key": 16, "value": 16}, apart=True)
        (Adapter(outputs=64, split=0), Adapter(outputs=16, split=2))
        """
        if "qkv" in self.targets and "query" in sizes:
            own = {0: sum(sizes.values())} if not apart else dict(enumerate(sizes.values()))
        else:
            own = {place: size for place, (name, size) in enumerate(sizes.items()) if name in self.targets}
        return tuple(Adapter(size, place) for place, size in own.items())


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter with so many *outputs*; *split*: the number of the weight tensor that it is added to."""

    outputs: int
    split: int = 0
