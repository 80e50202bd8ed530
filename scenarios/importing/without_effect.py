"""Keys of training programs that change neither the time nor the memory of a step: ``without_effect.yaml``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from simulator.document import read


@cache
def _lists() -> dict[str, Any]:
    return read(Path(__file__).with_suffix(".yaml")).data


def without_effect(program: str) -> Sequence[str]:
    """Return the keys of *program*, a key of the file."""
    keys: Sequence[str] = _lists()[program]
    return keys
