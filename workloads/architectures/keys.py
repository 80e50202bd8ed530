"""Keys that every kind of model has, and checks of sizes."""

from __future__ import annotations

from typing import Any

from pydantic import BeforeValidator

from simulator.document import Fault, Section

KINDS = ("transformer", "vision", "convolutional", "profile", "unit")
"""The kinds of model."""

MOST_LAYERS = 10_000
"""More is a slipped digit: DeepNet, very deep, has 1,000 (Wang et al. 2022, arXiv:2203.00555)."""

MOST_FEATURES = 1_000_000
"""More features of a hidden layer are a slipped digit: PaLM has 18,432 (Chowdhery et al. 2022, arXiv:2204.02311)."""


def _known(kind: Any) -> Any:
    if kind not in KINDS:
        raise ValueError(f'must be {", ".join(KINDS[:-1])} or {KINDS[-1]}, not "{kind}"')
    return kind


KNOWN = BeforeValidator(_known)
"""Validator of a kind."""


class Named(Section):
    """Keys of every kind of model; *source*: where the figures of a preset come from."""

    preset: str = ""
    """A file of workloads/models, or the path of a .yaml file or of Hugging Face's config.json; keys beside it override
    it."""
    name: str = ""
    """Name of the model in reports."""
    description: str = ""
    """What the model is."""
    source: str = ""
    """Where its figures are from."""

    @property
    def title(self) -> str:
        """The name in reports: as given, that of the preset, or the kind."""
        kind: str = getattr(self, "kind", "")
        return self.name or self.preset or getattr(self, "model", None) or kind


def most(key: str, value: int, limit: int) -> None:
    """Raise `Fault` if *value* is above *limit*."""
    if value > limit:
        raise Fault(key, f"{value} is absurd; the most that is taken is {limit}")


def divides(key: str, value: int, whole: str, total: int) -> None:
    """Raise `Fault` unless *value* divides *total*, the value of the key *whole*."""
    from workloads.shape import nearest_divisors

    if total % value:
        good = " or ".join(map(str, nearest_divisors(total, value)))
        raise Fault(key, f"{value} does not divide {whole} = {total}; try {good}")
