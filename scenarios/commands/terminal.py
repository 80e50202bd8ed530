"""Output for a terminal: lines broken at its width, and streams that never end a run."""

from __future__ import annotations

import codecs
import io
import os
import re
import shutil
import sys
import textwrap
from typing import ClassVar, TextIO

from clustersim.simulator.reading.plain_text import printable

LEAST = 40
"""Columns below which lines are left to the terminal."""


def say(text: object, to: TextIO | None = None) -> None:
    """Print *text* on *to* (default: stdout), broken at the width of the terminal if that is one."""
    stream = to or sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else 0
    print(broken(str(text), width), file=stream)


def broken(text: str, width: int) -> str:
    """Return *text* with its lines broken at *width* columns; 0: as it is.

    A broken line goes on below its own begin, or below the second of two columns. Lines of several columns and lines
    of a file after their number stay whole.

    >>> print(broken("hello  Four GPUs train a toy model of four layers with DDP", 42))
    hello  Four GPUs train a toy model of four
           layers with DDP
    """
    if width < LEAST:
        return text
    return "\n".join(_broken(line, width) for line in text.split("\n"))


def _broken(line: str, width: int) -> str:
    columns = re.split(r"(?<=\S) {2,}(?=\S)", line)
    if len(line) <= width or len(columns) > 2 or re.match(r" *\d+ \| ", line):
        return line
    begin = len(line) - len(columns[-1]) if len(columns) == 2 else len(line) - len(line.lstrip()) + 2
    if begin > width // 2:
        return line
    return textwrap.fill(
        line,
        width,
        subsequent_indent=" " * begin,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


PLAIN = {"█": "#", "·": ".", "…": "...", "µ": "u", "×": "x", "–": "-", "—": "-", "°": " deg", "→": "->", "≤": "<="}
"""What stands for a character of reports where the output's encoding lacks it."""

ERRORS = "clustersim"


class _Tolerant(io.FileIO):
    """A file whose reader may go away, or whose disk may be full: later output is dropped, and *faults* says why.

    What the command writes to other files is not lost.
    """

    faults: ClassVar[list[str]] = []

    def write(self, data: object) -> int:
        try:
            return super().write(data) or 0  # type: ignore[arg-type]
        except BrokenPipeError:
            return len(data)  # type: ignore[arg-type]
        except OSError as error:
            self.faults.append(f"cannot write standard output: {error.strerror}")
            return len(data)  # type: ignore[arg-type]


class _Plain(io.TextIOWrapper):
    """Text without control characters: names and descriptions of others do not steer the terminal."""

    def write(self, text: str) -> int:
        super().write(printable(text))
        return len(text)


def prepare() -> None:
    """Make standard output and standard error of this process tolerant."""
    codecs.register_error(ERRORS, _plain)
    sys.stdout, sys.stderr = _prepared(sys.stdout, 1), _prepared(sys.stderr, 2)


def fault() -> str:
    """Return why a part of the output was dropped; empty if all was written, or if the reader went away."""
    sys.stdout.flush()
    return next(iter(_Tolerant.faults), "")


def _prepared(stream: TextIO | None, number: int) -> TextIO:
    if stream is None:
        # closed by the shell: >&-
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - open until the process ends
    tolerant = io.BufferedWriter(_Tolerant(number, "w", closefd=False))
    # progress bars on standard error are control characters
    form = _Plain if number == 1 else io.TextIOWrapper
    return form(tolerant, stream.encoding, ERRORS, line_buffering=number == 2 or stream.isatty())


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Return the characters in place of those that *error* is about, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(PLAIN.get(one, ascii(one)[1:-1]) for one in found), error.end
