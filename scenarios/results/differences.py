"""The keys of scenarios whose values differ between results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scenarios.results.result import Result

HIDDEN = {"name", "description", "variants", "table", "expect", "source", "sources"}
"""Keys without influence on the numbers."""


def differences(results: Mapping[str, Result]) -> list[list[str]]:
    """Return a row for each key, presets included, whose values differ between *results*."""
    values = [_flat(result.scenario.document.data) for result in results.values()]
    keys = dict.fromkeys(key for one in values for key in one)
    rows = [[key, *(one.get(key, "-") for one in values)] for key in keys if not HIDDEN & set(key.split("."))]
    return [row for row in rows if len(set(row[1:])) > 1]


def _flat(data: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(data, dict):
        return {
            key: value
            for name, inner in data.items()
            for key, value in _flat(inner, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    if isinstance(data, bool) or data is None:
        return {prefix: "none" if data is None else str(data).lower()}
    return {prefix: ", ".join(map(str, data)) if isinstance(data, list) else str(data)}
