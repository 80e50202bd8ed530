"""Plain text for terminals and files: text without control characters and halves of surrogate pairs; tables, bars and
rows of boxes.

>>> print(table([["ring", "1.5"], ["hierarchical", "12"]], ["algorithm", "ms"], "lr"))
algorithm      ms
ring          1.5
hierarchical   12
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters except tab and the ends of lines, and halves of surrogate pairs."""

LONGEST_NAME = 180
"""Bytes of a name: with prefix and suffix, ``timeline_NAME.png``, it is below the 255 of usual file systems."""


def written(value: Any) -> str:
    """Return *value* as the user wrote it, for an error message.

    >>> written("eight"), written(None), written(True), written([1])
    ('"eight"', 'nothing', 'true', 'a list')
    """
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"' if len(value) < 60 else f'"{value[:57]}..."'
    if isinstance(value, int | float):
        return short(value)
    return "a mapping" if isinstance(value, dict) else "a list"


def short(value: float) -> str:
    """Return a number of a message in few digits.

    >>> short(0.25), short(10**20)
    ('0.25', 'about 1e20')
    """
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if abs(value) < 10**15 else f"about 1e{len(str(abs(value))) - 1}"


def joined(text: str) -> str:
    """Return *text* with pairs of surrogates, as JSON writes characters beyond 16 bits, as one character each."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") if CONTROL.search(text) else text


def text_fault(text: str) -> str:
    """Return what is wrong with *text*; empty if nothing is.

    >>> text_fault("two\\nlines"), text_fault("\\x1b[31mred")
    ('', "has the control character '\\\\x1b'")
    """
    found = CONTROL.search(text)
    if found is None:
        return ""
    what = "half of a surrogate pair," if "\ud800" <= found[0] <= "\udfff" else "the control character"
    return f"has {what} {found[0]!r}"


def name_fault(name: str) -> str:
    """Return why *name* cannot be the name of a folder or a part of a file's name; empty if it can.

    >>> name_fault("zero 1"), name_fault("a/b")
    ('', 'must be the name of a folder below runs/, without "/" or "\\\\", not "a/b"')
    """
    if CONTROL.search(name) or {"\n", "\r", "\t"} & set(name):
        return f"must be the name of a folder below runs/, without control characters, not {name!a}"
    if {"/", "\\"} & set(name) or name in (".", "..") or not name.strip():
        return f'must be the name of a folder below runs/, without "/" or "\\", not "{name}"'
    if len(name.encode()) > LONGEST_NAME:
        return f'must be at most {LONGEST_NAME} bytes long, not {len(name.encode())}: "{name[:20]}..."'
    return ""


def printable(text: str) -> str:
    """Return *text* with control characters as escapes, for a terminal.

    >>> printable("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = (), align: str = "") -> str:
    """Return lines of *rows* in columns; *align*: ``l`` or ``r`` by column, its last letter for further columns."""
    lines = [list(header)] * bool(header) + [list(row) for row in rows]
    count = max(map(len, lines), default=0)
    sides = (align or "l").ljust(count, (align or "l")[-1])
    cells = [line + [""] * (count - len(line)) for line in lines]
    widths = [max(len(line[column]) for line in cells) for column in range(count)]
    return "\n".join("  ".join(map(_aligned, line, widths, sides)).rstrip() for line in cells)


def _aligned(cell: str, width: int, side: str) -> str:
    return cell.rjust(width) if side == "r" else cell.ljust(width)


def shares(values: Sequence[float], cells: int) -> list[int]:
    """Return whole numbers in proportion to *values*, by largest remainder; they sum to *cells*.

    >>> shares([1, 1, 1], 10)
    [4, 3, 3]
    """
    total = sum(values)
    if not total:
        return [0] * len(values)
    exact = [value / total * cells for value in values]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(values)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: cells - sum(counts)]:
        counts[i] += 1
    return counts


def waterfall(values: Sequence[float], width: int = 40, mark: str = "█") -> list[str]:
    """Return a line for each value; its bar begins where the bar before it ends.

    >>> waterfall([3, 1], 8, "#")
    ['######', '      ##']
    """
    counts = shares(values, width)
    return [" " * sum(counts[:i]) + mark * count for i, count in enumerate(counts)]


def boxes(stretches: Iterable[tuple[str, float, float]], window: tuple[float, float], width: int) -> str:
    """Return labelled intervals (label, begin, end) as boxes in *width* characters; ``·`` where there is none.

    A character shows its middle moment; a shorter interval may be missing.

    >>> boxes([("F0", 0.0, 1.0), ("B0", 2.0, 4.0)], (0.0, 4.0), 12)
    'F0 ···B0----'
    """
    begin, end = window
    cell = (end - begin) / width
    line = ["·"] * width
    for label, start, stop in stretches:
        first, last = round((start - begin) / cell), round((stop - begin) / cell)
        first, last = max(first, 0), min(last, width)
        if last > first:
            line[first:last] = _box(label, last - first)
    return "".join(line)


def _box(label: str, cells: int) -> str:
    if len(label) == cells:
        return label
    if cells < len(label):
        return label[:cells]
    return label + "-" * (cells - len(label) - 1) + (" " if cells - len(label) == 1 else "-")


def indented(block: str, by: str = "  ") -> str:
    """Return *block* with every line indented."""
    return "\n".join(f"{by}{line}" if line else line for line in block.splitlines())


def figure(number: float) -> str:
    """Return *number* with four significant digits, without an exponent if it is large.

    >>> figure(460757.2), figure(236.98), figure(0.04181)
    ('460,757', '237', '0.04181')
    """
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"
