"""Branches of a shell script: conditions whose variables are known are evaluated, of others all branches are read."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

CONTROL = ("if", "elif", "then", "else", "fi", "[", "[[")
"""Words with which a command begins that belongs to a branch."""

WORDS: Mapping[str, Callable[[str, str], bool]] = {"=": operator.eq, "==": operator.eq, "!=": operator.ne}
NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
EMPTY: Mapping[str, bool] = {"-z": True, "-n": False}


def truth(words: Sequence[str]) -> bool | None:
    """Return the truth of a condition such as ``[ 8 -gt 1 ]``; None if it is not known.

    >>> truth(["[", "a", "=", "b", "]"]), truth(["[[", "8", "-gt", "1", "]]"]), truth(["[", "$A", "=", "b", "]"])
    (False, True, None)
    """
    if (
        words[:1] not in (["["], ["[["])
        or words[-1] not in ("]", "]]")
        or any("$" in one or "`" in one for one in words)
    ):
        return None
    match words[1:-1]:
        case ["!", *inner] if inner:
            found = truth(["[", *inner, "]"])
            return None if found is None else not found
        case [left, sign, right] if sign in WORDS and not {"*", "?"} & set(right):
            return WORDS[sign](left, right)
        case [left, sign, right] if sign in NUMBERS and left.isdecimal() and right.isdecimal():
            return NUMBERS[sign](int(left[:18]), int(right[:18]))
        case [sign, text] if sign in EMPTY:
            return (not text) == EMPTY[sign]
    return None


class Branches:
    """The branches around a command: of each, whether its condition holds, and whether it or one before it ran."""

    def __init__(self) -> None:
        self._open: list[tuple[bool | None, bool | None]] = []
        self._condition = False

    @property
    def skipped(self) -> bool:
        """True if a command here does not run."""
        return any(holds is False for holds, _ in self._open)

    def read(self, words: Sequence[str]) -> bool:
        """Take the *words* of a command into account; return whether it is a condition, or the end of a branch."""
        first, rest = words[0], words[1:]
        if first in ("if", "elif"):
            self._begin(first, truth(rest))
            return rest[:1] in (["["], ["[["])
        if self._condition and first in ("[", "[["):
            # a condition of several parts
            self._open[-1] = (None, None)
            return True
        self._condition = False
        if first == "else" and self._open:
            _, before = self._open[-1]
            self._open[-1] = (None if before is None else not before, True)
        elif first == "fi" and self._open:
            self._open.pop()
        return first == "fi"

    def _begin(self, first: str, holds: bool | None) -> None:
        """Begin a branch, if *holds*; a branch before it with the same end may have run."""
        before = self._open.pop()[1] if first == "elif" and self._open else False
        self._condition = True
        if before:
            holds = False
        elif before is None and holds:
            holds = None
        ran = True if before or holds else None if None in (before, holds) else False
        self._open.append((holds, ran))
