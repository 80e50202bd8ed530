"""Variants: several runs in one file, each with changes of it.

They are named one by one, or are rows of a table: a CSV file whose cells replace ``{column}`` in templates.

>>> row = VariantRow("runs.csv", 2, "4,bf16", {"tp": "4", "precision": "bf16"})
>>> row.named("tp {tp} in {precision}"), row.filled("{tp}"), row.filled({"value": "{tp} ms"})
('tp 4 in bf16', 4, {'value': '4 ms'})
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from pydantic import Field

from clustersim.scenarios.specification.loading import changed, split
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.document import Document, Path, Position
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import TableRow, UnreadableFile, read_rows
from clustersim.simulator.reading.plain_text import name_fault, text_fault, written
from clustersim.simulator.reading.quantities import Section
from clustersim.simulator.reading.validation import near, validated
from clustersim.simulator.reading.yaml_and_json import read_value

NOT_SET = ("variants", "table")
"""Sections that make the runs of a file; a run cannot set them."""

NOT_SET_FAULT = "cannot be set for one run: it says which runs there are"

PLACE = re.compile(r"\{([^{}]+)\}")
"""The place of a cell in a template; the group is the name of its column."""

CELL = re.compile(r'(?:^|,)("(?:[^"]|"")*"|[^,]*)')
"""One cell of a line of CSV, with its quotes."""


class Table(Section):
    """Variants from a table: each row of a CSV file is a run."""

    file: str
    """The CSV file, relative to the scenario; its first row names the columns. Required."""
    name: str = Field(min_length=1)
    """Name of a row's variant; {column} is the cell. Required."""
    where: dict[str, Any] = Field(default_factory=dict)
    """Rows that are kept: a value, or a list of values, by column."""
    words: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """What a cell stands for in set and expect, by column."""
    set: dict[str, Any] = Field(default_factory=dict)
    """What a row sets, by dotted key; {column} is the cell."""
    expect: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """What is expected of a row, by dotted key of the result; {column} is the cell. A value whose cell is empty is not
    expected."""


@dataclass(frozen=True)
class VariantRow:
    """The *cells* of *line* of *file* by column, the *text* of the line, and *words* that replace cells, by column."""

    file: str
    line: int
    text: str
    cells: Mapping[str, str]
    words: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def value(self, column: str) -> Any:
        """Return the value of the cell of *column*: its word if it has one, else the cell read as YAML."""
        cell = self.cells[column]
        words = self.words.get(column, {})
        try:
            return words[cell] if cell in words else read_value(cell)
        except ValueError:
            return cell

    def filled(self, template: Any) -> Any:
        """Return *template* with the row's cells in their places; a text that is one place becomes the cell's value."""
        if isinstance(template, dict):
            return {key: self.filled(value) for key, value in template.items()}
        if isinstance(template, list):
            return [self.filled(value) for value in template]
        if not isinstance(template, str):
            return template
        whole = PLACE.fullmatch(template)
        return self.value(whole[1]) if whole else PLACE.sub(lambda place: self._text(place[1]), template)

    def _text(self, column: str) -> str:
        return str(self.words.get(column, {}).get(self.cells[column], self.cells[column]))

    def named(self, template: str) -> str:
        """Return *template* with the row's cells, as written, in their places."""
        return PLACE.sub(lambda place: self.cells[place[1]], template)

    def position(self, column: str) -> Position:
        """Return the position of the cell of *column* in the file."""
        starts = [cell.start(1) + 1 for cell in CELL.finditer(self.text)]
        index = list(self.cells).index(column)
        start = starts[index] if len(starts) == len(self.cells) else 1
        return Position(self.file, self.line, start, self.line, start, self.text, self.text)


@dataclass(frozen=True)
class VariantChange:
    """A new *value* of the dotted *key*, and the *positions* in the file by path below the key."""

    key: str
    value: Any
    positions: Mapping[Path, Position]


def rows(document: Document) -> dict[str, list[VariantChange]]:
    """Return the changes of each row of the table of *document*, by the name of its variant; none without a table.

    Raises `ScenarioError` for a file that is not a table, a missing column, and a name that occurs twice.
    """
    if document.get(("table",)) is None:
        return {}
    table = validated(document, Table, ("table",))
    found: dict[str, tuple[VariantRow, list[VariantChange]]] = {}
    for row in _kept(document, table):
        name = row.named(table.name)
        if name in found:
            lines = f"lines {found[name][0].line} and {row.line}"
            raise document.error(("table", "name"), f'gives {lines} of {row.file} the same name "{name}"')
        found[name] = (row, list(_changes_by_row(document, table, row)))
    return {name: changes for name, (_, changes) in found.items()}


def _changes_by_row(document: Document, table: Table, row: VariantRow) -> Iterator[VariantChange]:
    for section, templates in (("set", table.set), ("expect", table.expect)):
        prefix = "expect." if section == "expect" else ""
        for key, template in templates.items():
            at: Path = ("table", section, key)
            if section == "set" and key.partition(".")[0] in NOT_SET:
                raise document.error(at, NOT_SET_FAULT, at_key=True)
            if section == "expect" and _unknown(row, template):
                continue
            yield VariantChange(f"{prefix}{key}", row.filled(template), dict(_positions(document, at, template, row)))


def _unknown(row: VariantRow, template: Mapping[str, Any]) -> bool:
    """Return whether the cell of the expected value is empty: the source does not tell it for this row."""
    columns = PLACE.findall(str(template.get("value", "")))
    return any(not row.cells[column] and column not in row.words for column in columns)


def _positions(
    document: Document, at: Path, template: Any, row: VariantRow, below: Path = ()
) -> Iterator[tuple[Path, Any]]:
    """Yield the position of each value of a filled *template*: that of its first cell, or that of the template."""
    place = PLACE.search(template) if isinstance(template, str) else None
    yield below, row.position(place[1]) if place else document.position((*at, *below))
    items = (
        template.items() if isinstance(template, dict) else enumerate(template) if isinstance(template, list) else ()
    )
    for key, value in items:
        yield from _positions(document, at, value, row, (*below, key))


def _kept(document: Document, table: Table) -> list[VariantRow]:
    rows = _read(document, table)
    _check_columns(document, table, list(rows[0].cells))
    kept = [row for row in rows if all(_meets(row, column, wanted) for column, wanted in table.where.items())]
    if not kept:
        raise document.error(("table", "where"), f"leaves none of the {len(rows)} rows of {table.file}")
    return kept


def _meets(row: VariantRow, column: str, wanted: Any) -> bool:
    choices = wanted if isinstance(wanted, list) else [wanted]
    return row.cells[column] in choices or read_value(row.cells[column]) in choices


def _check_columns(document: Document, table: Table, columns: list[str]) -> None:
    used = [(("table", "name"), table.name), (("table", "set"), table.set), (("table", "expect"), table.expect)]
    named = [((*at, *path), column) for at, template in used for path, column in _places(template)]
    named += [(("table", key, column), column) for key in ("where", "words") for column in getattr(table, key)]
    for path, column in named:
        if column not in columns:
            message = f'the table has no column "{column}"; there are {", ".join(columns)}'
            raise document.error(path, message, near(column, columns))


def _places(template: Any) -> Iterator[tuple[Path, str]]:
    if isinstance(template, str):
        yield from (((), column) for column in PLACE.findall(template))
    items = (
        template.items() if isinstance(template, dict) else enumerate(template) if isinstance(template, list) else ()
    )
    for key, value in items:
        yield from (((key, *path), column) for path, column in _places(value))


def _read(document: Document, table: Table) -> list[VariantRow]:
    try:
        header, *rows = [*read_rows(table.file)] or [TableRow(1, "", [])]
    except UnreadableFile as error:
        if error.line:
            raise ScenarioError(str(error)) from None
        raise document.error(("table", "file"), str(error)) from None
    if not rows:
        raise document.error(("table", "file"), f"{table.file}: has no row below its header")
    return [_row(table, header.cells, row) for row in rows]


def _row(table: Table, columns: list[str], row: TableRow) -> VariantRow:
    if len(row.cells) != len(columns):
        raise ScenarioError(f"{table.file}:{row.line}: has {len(row.cells)} cells for {len(columns)} columns")
    if fault := text_fault(row.text):
        raise ScenarioError(f"{table.file}:{row.line}: {fault}")
    return VariantRow(table.file, row.line, row.text, dict(zip(columns, row.cells, strict=True)), table.words)


def documents(document: Document) -> dict[str, Document]:
    """Return the documents of the variants of *document* by name; each is *document* with that variant's changes.

    Expectations of all variants together, ``variants.NAME...``, are left out.
    """
    given = document.get(("variants",)) or {}
    if not isinstance(given, dict):
        raise document.error(("variants",), "must be a mapping (name: changes)")
    positions = _by_change(document)
    changes = {str(name): _changes(document, str(name), one, positions) for name, one in given.items()}
    for name, row in rows(document).items():
        if name in changes:
            raise document.error(("variants", name), "is the name of a row of the table too", at_key=True)
        changes[name] = row
    _check_names(document, changes)
    alone = plain(document)
    return {name: _changed(document, alone, one) for name, one in changes.items()}


def _check_names(document: Document, names: Iterable[str]) -> None:
    given = document.get(("variants",)) or {}
    for name in names:
        if fault := name_fault(name):
            at, where = (("variants", name), "") if name in given else (("table", "name"), "each row's name ")
            raise document.error(at, f"{where}{fault}", at_key=name in given)


def with_first_row(document: Document) -> Document:
    """Return *document* with the first row of its table, for keys that only rows give; unchanged without a table."""
    for row in rows(document).values():
        return _changed(document, document, row)
    return document


def plain(document: Document) -> Document:
    """Return *document* without its variants, its table, and what is expected of them."""
    data = {key: value for key, value in document.data.items() if key not in ("variants", "table")}
    if isinstance(data.get("expect"), dict):
        data["expect"] = {key: one for key, one in data["expect"].items() if not key.startswith("variants.")}
    kept = {
        path: position for path, position in document.positions.items() if path[:1] not in (("variants",), ("table",))
    }
    return Document(data, kept)


def _by_change(document: Document) -> dict[Path, dict[Path, Position]]:
    """Return the positions below each ``variants.NAME.KEY``, by the path below it."""
    found: dict[Path, dict[Path, Position]] = {}
    for path, position in document.positions.items():
        if path[:1] == ("variants",) and len(path) > 2:
            found.setdefault(path[:3], {})[path[3:]] = position
    return found


def _changes(
    document: Document, name: str, changes: Any, positions: Mapping[Path, Mapping[Path, Position]]
) -> list[VariantChange]:
    at: Path = ("variants", name)
    if not isinstance(changes, dict):
        raise document.error(at, f"must be a mapping (key.path: value), not {written(changes)}")
    for key in changes:
        if key.partition(".")[0] in NOT_SET:
            raise document.error((*at, key), NOT_SET_FAULT, at_key=True)
    return [
        VariantChange(key, value, {(): document.position((*at, key)), **positions.get((*at, key), {})})
        for key, value in changes.items()
    ]


def _changed(source: Document, document: Document, changes: list[VariantChange]) -> Document:
    for change in changes:
        try:
            path = split(change.key)
        except ScenarioError as error:
            raise ScenarioError(_message_at(source, change, str(error))) from None
        document = changed(document, path, change.value, change.positions[()])
        moved = {path + below: position for below, position in change.positions.items()}
        document = Document(document.data, {**document.positions, **moved})
    return document


def _message_at(source: Document, change: VariantChange, message: str) -> str:
    path: Path = (change.key,)
    return Document(source.data, {path: change.positions[()]}).fault(path, message, at_key=True)
