"""A row of a sweep: the values that were set, and every scalar of the result by its dotted name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scenarios.sweep.axes import as_text

Scalar = int | float | str | bool | None

RESULT = "result."
"""Begin of the name of a number of the result that is called as a key of the sweep."""


@dataclass(frozen=True)
class Row:
    """One run: the *values* by key, the name of its *variant* if there are several, and its *numbers* by dotted name.

    *error*: why there are no numbers; None if there are.
    """

    values: Mapping[str, Any]
    variant: str = ""
    numbers: Mapping[str, Scalar] = field(default_factory=dict)
    error: str | None = None

    @property
    def fits(self) -> bool:
        """True if every GPU has the memory that it needs, as far as that is known."""
        return self.numbers.get("memory.fits") is not False

    def as_json(self) -> dict[str, Any]:
        """Return the row as `sweep --json` prints it."""
        variant = {"variant": self.variant} if self.variant else {}
        return {"set": dict(self.values), **variant, "error": self.error, **self.numbers}

    def cells(self) -> dict[str, Scalar]:
        """Return the cells of a table by column; a list or mapping that was set is text."""
        values = {key: value if _is_scalar(value) else as_text(value) for key, value in self.values.items()}
        variant = {"variant": self.variant} if self.variant else {}
        numbers = {f"{RESULT}{name}" if name in values else name: one for name, one in self.numbers.items()}
        return {**values, **variant, "error": self.error, **numbers}


def columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns of a table of *rows*, in order of their first occurrence."""
    return list(dict.fromkeys(column for row in rows for column in row.cells()))


def scalars(summary: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return every scalar of the *summary* of a result by its dotted name; entries of lists are numbered.

    >>> scalars({"name": "x", "mfu": 0.5, "memory": {"fits": True, "stage_peak_bytes": [5]}, "mfu_6nd": None})
    {'mfu': 0.5, 'memory.fits': True, 'memory.stage_peak_bytes.0': 5, 'mfu_6nd': None}
    """
    return dict(_scalars({key: value for key, value in summary.items() if key != "name"}, ""))


def _scalars(value: Any, prefix: str) -> Iterator[tuple[str, Scalar]]:
    if not isinstance(value, dict | list):
        yield prefix, value
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield from _scalars(inner, f"{prefix}.{key}" if prefix else f"{key}")


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, int | float | str | bool)
