"""The table of a sweep: its axes and points, a row for each run with every scalar of the result by its dotted name,
and the file (CSV, compressed CSV or Parquet).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import product
from pathlib import Path
from typing import Any

from clustersim.scenarios.specification.loading import split
from clustersim.scenarios.specification.variants import NOT_SET, NOT_SET_FAULT
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import check_writable, suffix_of, written
from clustersim.simulator.reading.yaml_and_json import read_value
from clustersim.simulator.traces.span_table import check_pyarrow

EMPTY = re.compile(r"(^|,)\s*(,|$)")
"""Two commas without a value between them, or one at an end."""

FORM = "--over parallelism.tp=1,2,4"


@dataclass(frozen=True)
class SweepAxis:
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


def of_options(options: Sequence[str]) -> tuple[SweepAxis, ...]:
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
        axes.append(SweepAxis(key.strip(), tuple(values), "--over"))
    return _distinct(axes)


def of_mapping(values: Mapping[str, Sequence[Any]]) -> tuple[SweepAxis, ...]:
    """Return the axes of *values* by dotted key."""
    for key, several in values.items():
        if isinstance(several, str | Mapping) or not isinstance(several, Sequence):
            raise ScenarioError(f'{key}: must have a list of values, as in {{"parallelism.tp": [1, 2, 4]}}')
    return _distinct([SweepAxis(key, tuple(several)) for key, several in values.items()])


def _distinct(axes: Sequence[SweepAxis]) -> tuple[SweepAxis, ...]:
    if not axes:
        raise ScenarioError(f"a sweep needs at least one key with its values, as in {FORM}")
    keys = [axis.key for axis in axes]
    if twice := [key for number, key in enumerate(keys) if key in keys[:number]]:
        raise ScenarioError(f"{axes[0].option} {twice[0]}: is given twice; give all its values at once".strip())
    return tuple(axes)


def points(axes: Sequence[SweepAxis], zipped: bool = False) -> Iterator[dict[str, Any]]:
    """Return the values by key of each run: all combinations, the last axis fastest.

    *zipped*: the first values of all axes, then the second. Raises `ScenarioError` if axes then have different numbers
    of values.

    >>> axes = [SweepAxis("a", (1, 2)), SweepAxis("b", (3, 4))]
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


Scalar = int | float | str | bool | None

RESULT = "result."
"""Begin of the name of a number of the result that is called as a key of the sweep."""


@dataclass(frozen=True)
class SweepRow:
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


def columns(rows: Sequence[SweepRow]) -> list[str]:
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


SUFFIXES = (".csv", ".csv.gz", ".parquet")

Table = Sequence[Mapping[str, Scalar]]


def check(path: Path) -> None:
    """Raise `SimulatorError` if a table cannot be written to *path*: its suffix, its folder, or pyarrow is missing."""
    if suffix_of(path, SUFFIXES) == ".parquet":
        check_pyarrow(path)
    check_writable(path)


def write(columns: Sequence[str], table: Table, path: Path) -> None:
    """Write *table* to *path*, whole or not at all; a cell without a value is empty. Raises `SimulatorError`."""
    suffix = suffix_of(path, SUFFIXES)
    if suffix == ".parquet":
        check_pyarrow(path)
    with written(path) as beside:
        if suffix == ".parquet":
            _parquet(columns, table, beside)
        elif suffix == ".csv.gz":
            # without name and date the same table gives the same bytes
            with beside.open("wb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as file:
                file.write(_csv(columns, table))
        else:
            beside.write_bytes(_csv(columns, table))


def _csv(columns: Sequence[str], table: Table) -> bytes:
    """Return *table* as CSV (RFC 4180); numbers have all their digits, and truth values are True and False."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue().encode()


def _parquet(columns: Sequence[str], table: Table, path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({column: _column(column, table) for column in columns}), str(path))


def _column(column: str, table: Table) -> list[Scalar]:
    """Return the cells of *column*; of several types they are text, because a column of Parquet has one type."""
    cells = [row[column] for row in table]
    kinds = {float if type(cell) is int else type(cell) for cell in cells if cell is not None}
    if len(kinds) > 1:
        return [None if cell is None else str(cell) for cell in cells]
    return [float(cell) if float in {type(one) for one in cells} and type(cell) is int else cell for cell in cells]
