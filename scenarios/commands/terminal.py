"""Text for a terminal: long lines are broken between words at its width; files and pipes get them whole."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from typing import TextIO

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
