"""The axes of a sweep: keys of a scenario and their values. A point has one value of each axis."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from scenarios.specification.loading import split
from scenarios.specification.table import NOT_SET, NOT_SET_FAULT
from simulator.document import read_value
from simulator.errors import ScenarioError

EMPTY = re.compile(r"(^|,)\s*(,|$)")
"""Two commas without a value between them, or one at an end."""

FORM = "--over parallelism.tp=1,2,4"


@dataclass(frozen=True)
class Axis:
    """The dotted *key* of a scenario and its *values*. *option*: the option that gives it, for messages."""

    key: str
    values: tuple[Any, ...]
    option: str = ""

    def __post_init__(self) -> None:
        """Raise `ScenarioError` for a key that cannot be set, for no value, and for one that is given twice."""
        begin = f"{self.option or ''} {self.key}".strip()
        try:
            split(self.key)
        except ScenarioError as error:
            raise ScenarioError(f"{self.option} {error}".strip()) from None
        if self.key.partition(".")[0] in NOT_SET:
            raise ScenarioError(f"{begin}: {NOT_SET_FAULT}")
        if not self.values:
            raise ScenarioError(f"{begin}: has no values; give some as in {FORM}")
        texts = [as_text(value) for value in self.values]
        if twice := [text for number, text in enumerate(texts) if text in texts[:number]]:
            raise ScenarioError(f"{begin}: the value {twice[0]} is given twice")

    def shown(self, value: Any) -> str:
        """Return how an error message names *value* of this axis."""
        return f"{self.option} {self.key}={as_text(value)}".strip()


def of_options(options: Sequence[str]) -> tuple[Axis, ...]:
    """Return the axes of the texts ``key.path=value,value`` of ``--over``; values are read as those of ``--set`` are.

    >>> [(axis.key, axis.values) for axis in of_options(["parallelism={tp: 2, pp: 2},{tp: 4}", "cluster.nodes=1,2"])]
    [('parallelism', ({'tp': 2, 'pp': 2}, {'tp': 4})), ('cluster.nodes', (1, 2))]
    """
    axes = []
    for option in options:
        key, equals, text = option.partition("=")
        if not equals:
            raise ScenarioError(f"--over {option}: needs values; write it as in {FORM}")
        try:
            # the values between the brackets of a list in YAML may be lists and mappings themselves
            values = read_value(f"[{text}]")
            if text.rstrip().endswith(","):
                raise ValueError
        except ValueError as error:
            reason = "has an empty value" if EMPTY.search(text) else str(error)
            raise ScenarioError(f"--over {option}: {reason}") from None
        axes.append(Axis(key.strip(), tuple(values), "--over"))
    return _distinct(axes)


def of_mapping(values: Mapping[str, Sequence[Any]]) -> tuple[Axis, ...]:
    """Return the axes of *values* by dotted key."""
    for key, several in values.items():
        if isinstance(several, str | Mapping) or not isinstance(several, Sequence):
            raise ScenarioError(f'{key}: must have a list of values, as in {{"parallelism.tp": [1, 2, 4]}}')
    return _distinct([Axis(key, tuple(several)) for key, several in values.items()])


def _distinct(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    if not axes:
        raise ScenarioError(f"a sweep needs at least one key with its values, as in {FORM}")
    keys = [axis.key for axis in axes]
    if twice := [key for number, key in enumerate(keys) if key in keys[:number]]:
        raise ScenarioError(f"{axes[0].option} {twice[0]}: is given twice; give all its values at once".strip())
    return tuple(axes)


def points(axes: Sequence[Axis], zipped: bool = False) -> Iterator[dict[str, Any]]:
    """Return the values by key of each run: all combinations, the last axis fastest.

    *zipped*: the first values of all axes, then the second. Raises `ScenarioError` if axes then have different numbers
    of values.

    >>> axes = [Axis("a", (1, 2)), Axis("b", (3, 4))]
    >>> list(points(axes)), list(points(axes, zipped=True))
    ([{'a': 1, 'b': 3}, {'a': 1, 'b': 4}, {'a': 2, 'b': 3}, {'a': 2, 'b': 4}], [{'a': 1, 'b': 3}, {'a': 2, 'b': 4}])
    """
    if zipped and len({len(axis.values) for axis in axes}) > 1:
        counts = ", ".join(f"{axis.key} has {len(axis.values)}" for axis in axes)
        raise ScenarioError(f"a zip needs equally many values of each key: {counts}")
    several = [axis.values for axis in axes]
    chosen = zip(*several, strict=True) if zipped else product(*several)
    return (dict(zip([axis.key for axis in axes], values, strict=True)) for values in chosen)


def as_text(value: Any) -> str:
    """Return *value* as text for a cell or a message.

    >>> as_text("1 GB/s"), as_text(True), as_text(None), as_text({"tp": 2})
    ('1 GB/s', 'true', 'null', '{"tp": 2}')
    """
    return value if isinstance(value, str) else json.dumps(value)
