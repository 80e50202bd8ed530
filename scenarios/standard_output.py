"""Standard output and standard error that never end a run: closed, cut off, or unable to show a character."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import ClassVar, TextIO

from simulator.plain_text import printable

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
