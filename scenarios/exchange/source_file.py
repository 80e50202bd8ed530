"""A file that is imported: its text and, for JSON, YAML, TOML and launch scripts, its values with their positions.

A reader takes the values that it understands. What no reader took is listed at the end, so nothing is lost silently.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path as File
from typing import Any

from clustersim.scenarios.exchange.launch_script import script
from clustersim.scenarios.exchange.program_keys import without_effect
from clustersim.scenarios.exchange.python_script import python_script
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.document import Document, Path, Position, dotted
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import UnreadableFile, read_text
from clustersim.simulator.reading.plain_text import printable, text_fault, written
from clustersim.simulator.reading.yaml_and_json import read_document

LARGEST = 4 * 2**20
"""Bytes of a file at most: configurations are small text files."""

MOST_DIGITS = 18
"""Digits of a whole number at most."""

STANDARD_INPUT = "-"

_SECTION = re.compile(r"\s*\[+\s*([\w.\"'-]+)\s*\]+")
_KEY = re.compile(r"\s*([\w.\"'-]+)\s*=\s*")
_SCRIPT = re.compile(
    r"^\s*(#!.*sh\b|#SBATCH|(\w+=\S+\s+)*(torchrun|deepspeed|srun|accelerate\s+launch|python3?|--\w))", re.M
)
_TOML = re.compile(r"^\s*\[[\w.]+\]\s*(#.*)?$", re.M)


@dataclass
class SourceFile:
    """The *text* of the file *name*, and its values as a *document*, without a mapping if it is of another form.

    *script*: True for a command line or a script, *python*: of Python. *folder*: that of the file. *taken*: paths
    that a reader understood; *without_effect*: paths of which a reader knows that they change neither time nor memory.
    """

    name: str
    text: str
    document: Document
    script: bool = False
    python: bool = False
    folder: File = field(default_factory=File)
    taken: set[Path] = field(default_factory=set)
    without_effect: set[Path] = field(default_factory=set)

    @property
    def data(self) -> dict[str, Any]:
        """The values."""
        return self.document.data

    def has(self, *path: str | int) -> bool:
        """Return whether there is a value at *path*."""
        return self.document.get(path, _ABSENT) is not _ABSENT

    def error(self, path: Path, message: str, hint: str = "") -> ScenarioError:
        """Return an error about the value at *path*, with file, line and key."""
        return self.document.error(path, message, hint)

    def take(self, *path: str) -> Any:
        """Return the value at *path*, None if there is none, and mark it as understood."""
        value = self.document.get(path)
        if self.has(*path):
            self.taken.add(path)
        return value

    def whole(self, *path: str, least: int = 1) -> int | None:
        """Return the whole number at *path*, None if there is none. Raises `ScenarioError` for any other value."""
        value = self.take(*path)
        if value is None:
            return None
        number = _whole(value)
        if number is None or number < least:
            raise self.error(path, f"must be a whole number, {least} or above, not {written(value)}")
        return number

    def number(self, *path: str) -> float | None:
        """Return the number, 0 or above, at *path*, None if there is none. Raises `ScenarioError` for another value."""
        value = self.take(*path)
        if value is None:
            return None
        try:
            number = float(value) if not isinstance(value, bool) else -1.0
        except (TypeError, ValueError, OverflowError):
            number = -1.0
        if not 0 <= number < 1e300:
            raise self.error(path, f"must be a number, 0 or above, not {written(value)}")
        return number

    def flag(self, *path: str) -> bool | None:
        """Return the truth at *path*, None if there is none; a flag of a command line without a value is true."""
        value = self.take(*path)
        if value is None or isinstance(value, bool):
            return value
        word = str(value).lower() if isinstance(value, str | int) else ""
        if word not in _TRUE and word not in _FALSE:
            raise self.error(path, f"must be true or false, not {written(value)}")
        return word in _TRUE

    def word(self, *path: str) -> str | None:
        """Return the text at *path*, None if there is none. Raises `ScenarioError` for a list or a mapping."""
        value = self.take(*path)
        if value is None:
            return None
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise self.error(path, f"must be a word, not {written(value)}")
        return str(value)

    def ignore(self, program: str, *at: str) -> None:
        """Note that the keys of *program* (`without_effect`) in the section at *at* have no effect."""
        self.without_effect |= {(*at, key) for key in without_effect(program)}

    def section(self, *path: str) -> dict[str, Any]:
        """Return the mapping at *path*, empty if there is none. Raises `ScenarioError` for anything else."""
        value = self.document.get(path)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(path, f"must be a mapping (key: value), not {written(value)}")
        return value

    def left(self) -> Iterator[Path]:
        """Yield the paths of the values that no reader took; an empty value is none."""
        known = self.taken | self.without_effect
        for path in _leaves(self.data):
            if self.document.get(path) is not None and not any(path[:end] in known for end in range(1, len(path) + 1)):
                yield path

    def described(self, path: Path) -> str:
        """Return the key at *path* as it stands in the file."""
        if self.script and len(path) == 2 and path[0] in ("arguments", "launch"):
            return self.document.position(path).key_source or dotted(path)
        return dotted(path)

    def cited(self, path: Path, how: str = "") -> str:
        """Return the place of the value at *path*, and *how* another value follows from it, for a comment."""
        file = File(self.name).name
        if not path or not self.has(*path):
            how = how or ("by default" if path else "")
            return f"{file}, {how}" if how else file
        text = f"{file}:{self.document.position(path).line} {self.described(path)}"
        return f"{text}, {how}" if how else text


class _Absent:
    """The value of a path that does not exist."""


_ABSENT = _Absent()
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def _whole(value: Any) -> int | None:
    """Return the whole number that *value* is or says; None if it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < 10**MOST_DIGITS else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 10.0**MOST_DIGITS else None
    plain = value.strip().replace("_", "") if isinstance(value, str) else ""
    if plain.lstrip("+-").isascii() and plain.lstrip("+-").isdigit() and len(plain) <= MOST_DIGITS:
        return int(plain)
    return None


def _leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif path:
        yield path


def opened(name: str) -> SourceFile:
    """Return the source in the file *name*, or on standard input if it is ``-``.

    Raises `ScenarioError`, with the position, for a file that is not text, or no sound JSON, YAML or TOML.
    """
    if name == STANDARD_INPUT:
        return parsed("standard input", _checked("standard input", sys.stdin.read(LARGEST + 1)), "")
    path = File(name)
    try:
        text = read_text(path, LARGEST)
    except UnreadableFile as error:
        raise ScenarioError(printable(str(error))) from None
    source = parsed(name, _checked(name, text), path.suffix.lower())
    source.folder = path.parent
    return source


def _checked(name: str, text: str) -> str:
    if len(text) > LARGEST:
        raise ScenarioError(f"{name}: is larger than {LARGEST // 2**20} MiB")
    if fault := text_fault(text):
        raise ScenarioError(f"{printable(name)}: is not a text file: it {fault}")
    if not text.strip():
        raise ScenarioError(f"{printable(name)}: is empty")
    return text


def parsed(name: str, text: str, suffix: str) -> SourceFile:
    """Return the source with that *text*; its form is told by the *suffix* of its file, or else by its begin."""
    begin = text.lstrip()
    if begin.startswith("<") or suffix in (".xml", ".csv"):
        return SourceFile(name, text, Document({}, {(): Position(name)}))
    if suffix in (".json", ".yaml", ".yml") or begin.startswith("{"):
        return SourceFile(name, text, read_document(text, name))
    if suffix == ".py":
        return SourceFile(name, text, python_script(text, name), script=True, python=True)
    if suffix == ".toml" or (_TOML.search(text) and not _SCRIPT.search(text)):
        return SourceFile(name, text, _toml(name, text))
    if suffix in (".sh", ".slurm", ".sbatch", ".bash") or _SCRIPT.search(text):
        return SourceFile(name, text, script(text, name), script=True)
    return _unnamed(name, text)


def _unnamed(name: str, text: str) -> SourceFile:
    """The source of a text that nothing marks: JSON or YAML, or else a table such as that of nvidia-smi."""
    try:
        return SourceFile(name, text, read_document(text, name))
    except ScenarioError:
        return SourceFile(name, text, Document({}, {(): Position(name)}))


def _toml(name: str, text: str) -> Document:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{name}: not valid TOML: {error}") from None
    except (RecursionError, ValueError) as error:
        reason = "is nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise ScenarioError(f"{name}: not valid TOML: {reason}") from None
    positions: dict[Path, Position] = {(): Position(name)}
    around: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        if match := _SECTION.fullmatch(line.partition("#")[0].rstrip()):
            around = tuple(part.strip("\"'") for part in match[1].split("."))
            positions.setdefault(around, Position(name, number, 1, number, 1, line, line))
        elif match := _KEY.match(line):
            path = (*around, *(part.strip("\"'") for part in match[1].split(".")))
            key = len(line) - len(line.lstrip()) + 1
            positions.setdefault(path, Position(name, number, match.end() + 1, number, key, line, line))
    return Document(_plain(data), positions)


def _plain(value: Any) -> Any:
    """Return *value* with dates as text."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool) else str(value)
