"""Copy rows of ACCURACY.md into the README: `python docs/readme.py`. A test compares both."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- rows of ACCURACY.md: python docs/readme.py copies them anew -->", "<!-- end -->"
ROWS = (
    ("steps", "strangers"),
    ("steps", "known, left out"),
    ("collectives", "both"),
    ("products", "apart: informs constants"),
    ("memory", "both"),
)
"""The rows of the README: kind of figure and group of sources."""


def table(accuracy: str) -> list[str]:
    """Return the lines of the README's table from the text of the page *accuracy*. Raises `ValueError`."""
    lines = accuracy.splitlines()
    found = []
    for kind, group in ROWS:
        row = next((line for line in lines if line.startswith(f"| {kind} | {group} |")), None)
        if row is None:
            raise ValueError(f"ACCURACY.md has no row of {kind}, {group}")
        found.append(row)
    head = next(place for place, line in enumerate(lines) if line == found[0])
    first = max(place for place in range(head) if not lines[place].startswith("|"))
    return [*lines[first + 1 : first + 3], *found]


def with_table(readme: str, accuracy: str) -> str:
    """Return the text *readme* with the rows of *accuracy*."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    return "".join((before, begin, "\n", "\n".join(table(accuracy)), "\n", end, after))


def main() -> int:
    """Write the README anew."""
    path = ROOT / "README.md"
    path.write_text(with_table(path.read_text(), (ROOT / "ACCURACY.md").read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
