"""Files that are written whole or not at all, text files and tables of comma-separated values that are read up to a
size, and suffixes and stems of file names.
"""

from __future__ import annotations

import csv
import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from secrets import token_hex

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import SimulatorError

LARGEST_TABLE = 64 * 2**20
"""Bytes of a table at most."""


class UnreadableFile(SimulatorError):  # noqa: N818 - it names the fault
    """A file that cannot be read as text; *reason* says why, without the file's name, and *line* where (0: as a whole).

    *missing*: there is no such file.
    """

    def __init__(self, path: str | os.PathLike[str], reason: str, *, line: int = 0, missing: bool = False) -> None:
        self.reason, self.line, self.missing = reason, line, missing
        super().__init__(f"{os.fspath(path)}:{line}: {reason}" if line else f"{os.fspath(path)}: {reason}")


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Yield the path of a new file beside *path*, which takes the place of *path* when the context ends.

    If the context is left by an error or an interrupt, the new file is removed and an old one at *path* stays as it
    was. A device or a pipe, such as ``/dev/stdout``, is written directly. Makes missing folders. Raises
    `SimulatorError` if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            yield path
            return
        # a link keeps its place; the file that it names is replaced
        target = Path(os.path.realpath(path))
        beside = target.with_name(f".clustersim-{token_hex(8)}.part")
        try:
            yield beside
            if target.exists():
                beside.chmod(stat.S_IMODE(target.stat().st_mode))
            beside.replace(target)
        finally:
            with suppress(FileNotFoundError):
                beside.unlink()
    except OSError as error:
        raise SimulatorError(f"cannot write {path}: {error.strerror or error}") from error
    except ValueError as error:
        # a name with a zero byte
        if "null byte" not in str(error):
            raise
        raise SimulatorError(f"cannot write {str(path)!r}: the name has a zero byte") from error


def write_text(path: Path, text: str) -> None:
    """Write *text* in UTF-8 to *path*, whole or not at all. Raises `SimulatorError` if the file cannot be written."""
    with written(path) as beside:
        beside.write_text(text, encoding="utf-8")


def check_writable(path: Path) -> None:
    """Raise `SimulatorError` if a file at *path* could not be written, before long work whose result goes there."""
    folder = next(one for one in (path.absolute().parent, *path.absolute().parents) if os.path.lexists(one))
    fault = errno.EISDIR if path.is_dir() else 0 if folder.is_dir() else errno.ENOTDIR
    if not fault and not os.access(folder, os.W_OK | os.X_OK):
        fault = errno.EACCES
    if fault:
        raise SimulatorError(f"cannot write {path}: {os.strerror(fault)}")


def read_text(path: str | os.PathLike[str], most: int) -> str:
    """Return the text of the file at *path*, UTF-8 with or without a byte order mark, of at most *most* bytes.

    Raises `UnreadableFile`, also for a device and a pipe: those may have no end.
    """
    try:
        # without O_NONBLOCK, to open a pipe is to wait for a writer
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        mode = os.fstat(file).st_mode
        if stat.S_ISDIR(mode) or not stat.S_ISREG(mode):
            os.close(file)
            raise UnreadableFile(path, "is a directory" if stat.S_ISDIR(mode) else "is a device or a pipe; give a file")
        with open(file, "rb") as opened:  # noqa: PTH123
            data = opened.read(most + 1)
    except (OSError, ValueError) as error:
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise UnreadableFile(path, reason, missing=isinstance(error, FileNotFoundError)) from None
    if len(data) > most:
        raise UnreadableFile(path, f"is larger than {_shown(most)}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise UnreadableFile(path, f"is not a text file: byte 0x{byte:02x} at {error.start} is not UTF-8") from None
    if "\0" in text:
        raise UnreadableFile(path, f"is not a text file: it has a zero byte at {text.index(chr(0))}")
    return text


def _shown(nbytes: int) -> str:
    return f"{nbytes // 2**30} GiB" if nbytes % 2**30 == 0 else f"{nbytes // 2**20} MiB"


@dataclass(frozen=True)
class TableRow:
    """The *cells* of a row, the number of the *line* that it ends in, and the *text* of that line."""

    line: int
    text: str
    cells: list[str]


def read_rows(path: str | os.PathLike[str]) -> Iterator[TableRow]:
    """Yield the rows of the table at *path* that are not empty; the header is the first.

    Raises `UnreadableFile` for a file that is no table, and for a column that the header has twice.
    """
    lines = list(StringIO(read_text(path, LARGEST_TABLE), newline=""))
    reader = csv.reader(lines, strict=True)
    try:
        for number, cells in enumerate(filter(None, reader)):
            if number == 0:
                _check_header(path, cells)
            yield TableRow(reader.line_num, lines[reader.line_num - 1].rstrip("\r\n"), cells)
    except csv.Error as error:
        reason = f"is no table of comma-separated values: {error}"
        raise UnreadableFile(path, reason, line=reader.line_num) from None


def _check_header(path: str | os.PathLike[str], columns: Sequence[str]) -> None:
    for column in columns:
        if columns.count(column) > 1:
            raise UnreadableFile(path, f'the header has the column "{column}" twice', line=1)


def suffix_of(path: Path, suffixes: Iterable[str]) -> str:
    """Return the longest of *suffixes* with which the name of *path* ends. Raises `SimulatorError` if there is none.

    >>> suffix_of(Path("a/run.json.gz"), [".gz", ".json.gz"])
    '.json.gz'
    """
    fitting = [suffix for suffix in suffixes if path.name.lower().endswith(suffix)]
    if not fitting:
        raise SimulatorError(f"{path}: the name must end with one of {', '.join(suffixes)}")
    return max(fitting, key=len)


def file_stems(names: Iterable[str]) -> dict[str, str]:
    """Return for each of *names* a part of a file name without spaces and separators; no two are equal.

    >>> file_stems(["with chunks", "with_chunks", "a/b: 8 MB"])
    {'with chunks': 'with_chunks', 'with_chunks': 'with_chunks-2', 'a/b: 8 MB': 'a_b_8_MB'}
    """
    stems: dict[str, str] = {}
    for name in names:
        stem = re.sub(r"[^\w.+=,-]+", "_", name).strip("_.") or "_"
        number = sum(stem == re.sub(r"-\d+$", "", other) or stem == other for other in stems.values()) + 1
        stems[name] = stem if number == 1 else f"{stem}-{number}"
    return stems
