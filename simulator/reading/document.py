"""A document: plain data, and the position in a file of each key path.

Documents can be merged: keys of a scenario override those of a preset, and every value keeps its own position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import PlacedError, ScenarioError

Path = tuple[str | int, ...]
"""Keys of mappings and indices of lists, from the root down."""

WIDTH = 120
"""Characters of a source line that an error shows."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a value: *file*, *line* and *column* (from 1), those of its key, and the *source* line.

    A value that was given as an option has the text of the *option*, such as ``--set cluster.nodes=8``, and the path
    that it sets as *key*. *within*: the path in the file of the document that has the value, if that is a part of it.
    """

    file: str = ""
    line: int = 1
    column: int = 1
    key_line: int = 1
    key_column: int = 1
    source: str = ""
    key_source: str = ""
    option: str = ""
    key: Path = ()
    within: Path = ()


@dataclass(frozen=True, slots=True)
class Document:
    """*data*: dicts, lists, str, int, float, bool and None, a mapping at the root; *positions* by path."""

    data: dict[str, Any]
    positions: Mapping[Path, Position] = field(default_factory=dict)

    def position(self, path: Path) -> Position:
        """Return the position of *path*, or of the nearest mapping or list around it that has one."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.positions:
                return self.positions[path[:end]]
        return Position()

    def get(self, path: Path, default: Any = None) -> Any:
        """Return the value at *path*, or *default* if there is none."""
        value: Any = self.data
        for key in path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return default
        return value

    def fault(self, path: Path, message: str, hint: str = "", *, at_key: bool = False) -> str:
        """Return the text of an error about the value, or the key, at *path*."""
        position = self.position(path)
        known, path = path in self.positions, (*position.within, *path)
        name = "" if position.option and path == position.key else dotted(path)
        if position.option:
            text = ": ".join(part for part in (position.option, name, message) if part)
        elif position.file:
            to_key = at_key or not known
            line = position.key_line if to_key else position.line
            column = position.key_column if to_key else position.column
            text = ": ".join(part for part in (f"{position.file}:{line}:{column}", name, message) if part)
            if known and not at_key and position.source.strip():
                text += f"\n{line:>4} | {position.source[:WIDTH]}"
        else:
            text = f"{name}: {message}" if name else message
        return f"{text}\n     help: {hint}" if hint else text

    def error(self, path: Path, message: str, hint: str = "", *, at_key: bool = False) -> ScenarioError:
        """Return an error with the text of `fault`."""
        return PlacedError(self.fault(path, message, hint, at_key=at_key))


def part(document: Document, key: str) -> Document:
    """Return the mapping at *key* as a document of its own; *document* itself if there is no mapping."""
    if not isinstance(document.data.get(key), dict):
        return document
    inner = {path[1:]: position for path, position in document.positions.items() if path[:1] == (key,)}
    return Document(document.data[key], inner)


def dotted(path: Path) -> str:
    """Return a path with dots.

    >>> dotted(("cluster", "degraded", 0, "bandwidth"))
    'cluster.degraded.0.bandwidth'
    """
    return ".".join(map(str, path))


def merged(base: Document, over: Document, at: Path = ()) -> Document:
    """Return *over* with *base* merged into its mapping at *at*; other values of *over* override those of *base*.

    Raises `ScenarioError` if *over* has something other than a mapping at *at*.
    """
    upper = over.get(at, {})
    if not isinstance(upper, dict):
        raise over.error(at, "must be a mapping (key: value)")
    positions = dict(over.positions)
    for path, position in base.positions.items():
        if not _covered(path, upper):
            positions.setdefault(at + path, position)
    lower = base.data
    return Document(_assigned(over.data, at, _below(lower, upper)), positions)


def replaced(document: Document, path: Path, value: Any, position: Position) -> Document:
    """Return *document* with *value* and its *position* at *path*; missing mappings on the path are created.

    Raises `ScenarioError` if the path leads through something that is neither a mapping nor a list of that length.
    """
    for end in range(1, len(path)):
        around = document.get(path[:end])
        if isinstance(around, list) and path[end] in range(len(around)):
            continue
        if around is not None and not isinstance(around, dict):
            shown = f"a list of {len(around)}" if isinstance(around, list) else "no mapping"
            raise Document({}, {path: position}).error(path, f"{dotted(path[:end])} is {shown} and has no {path[end]}")
    positions = {old: where for old, where in document.positions.items() if old[: len(path)] != path}
    made = (path[:end] for end in range(1, len(path)))
    positions |= {inner: position for inner in made if document.get(inner) is None}
    return Document(_assigned(document.data, path, value), positions | dict.fromkeys(_paths(value, path), position))


def _below(base: Any, over: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return {**base, **{key: _below(base[key], value) if key in base else value for key, value in over.items()}}


def _covered(path: Path, over: Any) -> bool:
    """Return whether *over* has a value at *path* or hides it: then the position of the base is not that of the value.

    A value that was given from Python has no position, and an error about it names its key alone.
    """
    for key in path:
        if not isinstance(over, dict):
            return True
        if key not in over:
            return False
        over = over[key]
    return True


def _assigned(data: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(data, list):
        return [_assigned(item, rest, value) if index == head else item for index, item in enumerate(data)]
    data = data or {}
    return {**data, head: _assigned(data.get(head), rest, value)}


def _paths(value: Any, path: Path) -> Iterator[Path]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _paths(item, (*path, key))
