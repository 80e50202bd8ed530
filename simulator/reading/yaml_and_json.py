"""Reading of YAML 1.2 at the level of nodes, at which every key and value has its line and column; data written as
YAML; JSON text as plain data.
"""

from __future__ import annotations

import io
import json
import os
import pathlib
from functools import lru_cache
from typing import Any

from clustersim.simulator.reading.document import Document, Path, Position
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import UnreadableFile, read_text
from clustersim.simulator.reading.plain_text import joined, text_fault
from clustersim.simulator.reading.validation import Fault

LARGEST = 4 * 2**20
"""Bytes of a file at most: scenarios and catalogue files are small."""

MOST_VALUES = 200_000
"""Values in one document at most, aliases expanded: a few lines of nested aliases can mean billions."""

DEEPEST = 60
"""Levels of nesting in one document at most."""

KEPT_DOCUMENTS, KEPT_CHARACTERS = 1024, 1 << 16
"""Documents that are kept once read, those of up to so many characters: catalogue files are read again and again, by
every scenario that names them, and there are 340."""

KEPT_VALUES = 1024
"""Values of single texts that are kept: the cells of a table are often equal."""

_TAG = "tag:yaml.org,2002:"


def read(path: str | os.PathLike[str]) -> Document:
    """Return the document in the file at *path*. Raises `ScenarioError`, with the position, if it is not a mapping."""
    path = pathlib.Path(path)
    name = _shown(path)
    return read_document(_text(path, name), name)


def read_document(text: str, name: str) -> Document:
    """Return the document that *text* is, of the file *name*. Raises `ScenarioError`, with the position."""
    found = (_parsed if len(text) <= KEPT_CHARACTERS else _parsed.__wrapped__)(text, name)
    return Document(_copied(found.data), found.positions)


@lru_cache(maxsize=KEPT_DOCUMENTS)
def _parsed(text: str, name: str) -> Document:
    lines = text.splitlines()
    root = _compose(text, name, lines)
    if root is None:
        raise ScenarioError(f"{name}: is empty; a scenario begins with version: 1")
    reader = _Reader(name, lines)
    data = reader.value(root, (), root)
    if not isinstance(data, dict):
        raise Document({}, reader.positions).error((), "must be a mapping (key: value) at the top")
    return Document(data, reader.positions)


def _copied(value: Any) -> Any:
    """Return *value*, plain data, with mappings and lists of its own."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def read_value(text: str) -> Any:
    """Return the value of *text* in YAML, as in ``--set key.path=value``. Raises `ValueError` if it has none."""
    return _copied(_value(text))


@lru_cache(maxsize=KEPT_VALUES)
def _value(text: str) -> Any:
    try:
        root = _compose(text, "", text.splitlines())
        return None if root is None else _Reader("", text.splitlines()).value(root, (), root)
    except ScenarioError as error:
        message = str(error).splitlines()[0]
        raise ValueError(
            message[message.find("not valid YAML") :] if "not valid YAML" in message else message
        ) from None


def _shown(path: pathlib.Path) -> str:
    """Return *path* as given, or relative to the working directory if it is below that."""
    try:
        return str(path.relative_to(pathlib.Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _text(path: pathlib.Path, name: str) -> str:
    try:
        return read_text(path, LARGEST)
    except UnreadableFile as error:
        reason = "no such file" if error.missing else error.reason
        hint = next((hint for begin, hint in _HINTS.items() if reason.startswith(begin)), "")
        raise ScenarioError(f"{name}: {reason}{hint}") from None


_HINTS = {"is a directory": "; give a YAML file", "is larger than": "; a scenario is a small text file"}
"""What would be right, by the beginning of the reason why a file cannot be read."""


def _compose(text: str, name: str, lines: list[str]) -> Any:
    # imported here, so that lists of names and help do not load a YAML parser
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    try:
        return YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        raise _syntax(error, name, lines) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = chr(error.character) if isinstance(error.character, int) else error.character
        raise ScenarioError(f"{name}:{line}: is not a text file: it has the character {character!r}") from None
    except RecursionError:
        raise ScenarioError(f"{name}: is nested deeper than {DEEPEST} levels") from None
    except (YAMLError, ValueError, KeyError) as error:
        raise ScenarioError(f"{name}: not valid YAML: {str(error).splitlines()[0]}") from None


def _syntax(error: Any, name: str, lines: list[str]) -> ScenarioError:
    mark = error.problem_mark or error.context_mark
    line, column = mark.line + 1, mark.column + 1
    problem = str(error.problem)
    if "'\\t'" in problem:
        problem = "a tab cannot indent; use spaces"
    elif "another document" in problem:
        problem = "a second document begins here; a file holds one"
    elif error.context and error.context_mark and error.context_mark.line != mark.line:
        problem += f" ({error.context} that begins in line {error.context_mark.line + 1})"
    source = lines[line - 1] if line <= len(lines) else ""
    shown = f"\n{line:>4} | {source}" if source.strip() else ""
    return ScenarioError(f"{name}:{line}:{column}: not valid YAML: {problem}{shown}")


class _Reader:
    """Converts nodes to plain data and records the position of each path."""

    def __init__(self, file: str, lines: list[str]) -> None:
        self.file, self.lines = file, lines
        self.positions: dict[Path, Position] = {}
        self._open: set[int] = set()

    def value(self, node: Any, path: Path, key: Any) -> Any:
        self.positions[path] = self._position(node, key)
        if len(self.positions) > MOST_VALUES:
            raise ScenarioError(f"{self.file}: has more than {MOST_VALUES} values, aliases followed")
        if id(node) in self._open:
            raise self._error(path, "an alias leads back into itself")
        if len(path) > DEEPEST:
            raise self._error(path[:3], f"is nested deeper than {DEEPEST} levels")
        self._open.add(id(node))
        result = self._content(node, path)
        self._open.discard(id(node))
        return result

    def _content(self, node: Any, path: Path) -> Any:
        if node.id != "scalar" and not str(node.tag).startswith(_TAG):
            raise self._error(path, f'the tag "{node.tag}" is not known here; write the plain value')
        if node.id == "mapping":
            return self._mapping(node, path)
        if node.id == "sequence":
            return [self.value(item, (*path, index), item) for index, item in enumerate(node.value)]
        try:
            return _scalar(str(node.tag), node.value)
        except ValueError as error:
            raise self._error(path, str(error)) from None

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in node.value:
            if key.id != "scalar":
                raise self._error(path, "a key must be a word, not a list or mapping")
            here = (*path, key.value)
            if fault := text_fault(key.value):
                raise self._error(path, f"a key {fault}")
            if key.value in result:
                first = self.positions[here].key_line
                self.positions[here] = self._position(value, key)
                message = f"duplicate key; it stands in line {first} already"
                raise Document({}, self.positions).error(here, message, at_key=True)
            result[key.value] = self.value(value, here, key)
        return result

    def _position(self, node: Any, key: Any) -> Position:
        # an omitted value has no position; its key has
        start, name = (key if node.value == "" and not node.style else node).start_mark, key.start_mark
        return Position(
            self.file,
            start.line + 1,
            start.column + 1,
            name.line + 1,
            name.column + 1,
            self._line(start.line),
            self._line(name.line),
        )

    def _line(self, number: int) -> str:
        return self.lines[number].rstrip() if number < len(self.lines) else ""

    def _error(self, path: Path, message: str) -> ScenarioError:
        return Document({}, self.positions).error(path, message)


def _scalar(tag: str, text: str) -> Any:
    """Return the plain value of a scalar node. Raises `ValueError` for a user's own tag or an infinite number."""
    kind = tag.removeprefix(_TAG)
    plain = text.replace("_", "").lower()
    if kind == "null":
        return None
    if kind == "bool":
        return plain in ("true", "yes", "on", "y")
    if kind == "int":
        base = {"0x": 16, "0o": 8, "0b": 2}.get(plain.lstrip("+-")[:2], 10)
        if len(plain) > 1000:
            raise ValueError("has more than 1000 digits")
        return int(plain, base)
    if kind == "float":
        return float(plain.replace(".inf", "inf").replace(".nan", "nan"))
    if kind in ("str", "timestamp", "value", "merge"):
        plain_text = joined(text)
        if fault := text_fault(plain_text):
            raise ValueError(fault)
        return plain_text
    raise ValueError(f'the tag "{tag}" is not known here; write the plain value')


def yaml_text(data: dict[str, Any]) -> str:
    """Return *data* as YAML, with keys in their order."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.width = 120
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    text = io.StringIO()
    yaml.dump(data, text)
    return text.getvalue()


def parse_json(text: str) -> Any:
    """Return the data of *text*.

    Raises `Fault`, whose path is empty or (line, column), for text that is no JSON, for a key that occurs twice in an
    object, and for numbers of more digits than Python reads. NaN and infinity are numbers.
    """
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except json.JSONDecodeError as error:
        raise Fault((error.lineno, error.colno), "is not valid JSON") from None
    except RecursionError:
        raise Fault((), "is not valid JSON: it is nested too deeply") from None
    except Fault:
        raise
    except ValueError:
        raise Fault((), "is not valid here: it has a number of thousands of digits") from None


def shown_at(name: str, fault: Fault) -> str:
    """Return the place of *fault* of `parse_json` in the file *name*: ``name:line:column``, or *name* alone."""
    return ":".join(map(str, (name, *fault.path)))


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Fault((), f'the key "{twice}" appears twice in one object: {json.dumps(made)[:60]}')
    return made
