"""Variants: several runs in one file, each with changes of it; they are named one by one, or rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scenarios.specification.loading import split
from scenarios.specification.table import NOT_SET, NOT_SET_FAULT, Change, rows
from simulator.document import Document, Path, Position, replaced
from simulator.document.quantities import written
from simulator.errors import ScenarioError
from simulator.plain_text import name_fault


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
    plain = _plain(document)
    return {name: _changed(document, plain, one) for name, one in changes.items()}


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


def _plain(document: Document) -> Document:
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
) -> list[Change]:
    at: Path = ("variants", name)
    if not isinstance(changes, dict):
        raise document.error(at, f"must be a mapping (key.path: value), not {written(changes)}")
    for key in changes:
        if key.partition(".")[0] in NOT_SET:
            raise document.error((*at, key), NOT_SET_FAULT, at_key=True)
    return [
        Change(key, value, {(): document.position((*at, key)), **positions.get((*at, key), {})})
        for key, value in changes.items()
    ]


def _changed(source: Document, document: Document, changes: list[Change]) -> Document:
    for change in changes:
        try:
            path = split(change.key)
        except ScenarioError as error:
            raise ScenarioError(_message_at(source, change, str(error))) from None
        document = replaced(document, path, change.value, change.positions[()])
        moved = {path + below: position for below, position in change.positions.items()}
        document = Document(document.data, {**document.positions, **moved})
    return document


def _message_at(source: Document, change: Change, message: str) -> str:
    path: Path = (change.key,)
    return Document(source.data, {path: change.positions[()]}).fault(path, message, at_key=True)
