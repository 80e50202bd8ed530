"""A result holds finite numbers."""

from __future__ import annotations

from math import isfinite
from typing import Any

from simulator.errors import ScenarioError


def check_finite(summary: Any, key: str = "") -> None:
    """Raise `ScenarioError` for a number of *summary* that is infinite or none, with its dotted *key*."""
    if isinstance(summary, float) and not isfinite(summary):
        raise ScenarioError(
            f"the result has no finite {key}: {summary}; a quantity of the scenario is far too small or too large"
        )
    items = summary.items() if isinstance(summary, dict) else enumerate(summary) if isinstance(summary, list) else ()
    for name, inner in items:
        check_finite(inner, f"{key}.{name}" if key else str(name))
