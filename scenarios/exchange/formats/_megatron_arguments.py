"""Arguments of Megatron-LM wherever they stand: flags of a command line, sections of its YAML or of NeMo's."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.program_keys import Key
from clustersim.scenarios.exchange.source_file import SourceFile

SECTIONS = (
    *("arguments", "language_model", "model_parallel", "model", "train", "ddp"),
    *("optimizer", "mixed_precision", "tokenizer", "dataset", "dist", "comm_overlap"),
)
"""Where arguments stand, besides the top of a file."""


class Arguments:
    """The arguments of a *source*, wherever they stand in it."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self._places: list[tuple[str, ...]] = [()] if not source.script else []
        self._places += [(name,) for name in SECTIONS if isinstance(source.data.get(name), dict)]

    def path(self, key: str) -> tuple[str, ...] | None:
        """Return the path of the argument *key*; None if it is not given."""
        return next(
            ((*place, key) for place in self._places if self.source.document.get((*place, key)) is not None), None
        )

    def whole(self, key: str, least: int = 1) -> int | None:
        """Return the whole number of *key*; None if it is not given."""
        path = self.path(key)
        return None if path is None else self.source.whole(*path, least=least)

    def number(self, key: str) -> float | None:
        """Return the number of *key*; None if it is not given."""
        path = self.path(key)
        return None if path is None else self.source.number(*path)

    def flag(self, key: str) -> bool:
        """Return whether *key* is given and not false."""
        path = self.path(key)
        return path is not None and bool(self.source.flag(*path))

    def word(self, key: str) -> str | None:
        """Return the word of *key*; None if it is not given."""
        path = self.path(key)
        return None if path is None else self.source.word(*path)

    def several(self, key: str) -> list[str]:
        """Return the words of *key*, one or several; none if it is not given."""
        path = self.path(key)
        value = None if path is None else self.source.take(*path)
        listed = value if isinstance(value, list) else [] if value is None else str(value).split()
        return [str(one) for one in listed]

    def pattern(self, key: str) -> int | list[int] | None:
        """Return a number, or the list of 0 and 1 that a text such as ``([0]*3+[1]*58)`` means; None if not given."""
        path = self.path(key)
        value = None if path is None else self.source.take(*path)
        if value is None or isinstance(value, int | list):
            return value
        made = pattern(str(value))
        if made is None:
            raise self.error(key, f"must be a number or a pattern such as ([0]*3+[1]*58), not {str(value)[:60]}")
        return made

    def give(self, facts: Facts, name: str, value: Any, key: str, how: str = "", *, over: bool = False) -> None:
        """Give *value* for *name* to *facts*, at the place of the argument *key*."""
        path = self.path(key) or ()
        facts.give(name, value, self.source, *path, how=how or ("" if path else "Megatron-LM's default"), over=over)

    def take(self, facts: Facts, key: Key) -> None:
        """Give *facts* what the argument *key* says, if it is given."""
        self.give(facts, key.key, key.read(self), key.flag)

    def ignore(self, keys: Sequence[str]) -> None:
        """Note that *keys* have no effect."""
        self.source.without_effect |= {(*place, key) for place in self._places for key in keys}

    def error(self, key: str, message: str) -> Exception:
        """Return an error at the argument *key*."""
        return self.source.error(self.path(key) or (), message)


def pattern(text: str) -> int | list[int] | None:
    """Return the number, or the list, that *text* means; None if it means neither.

    >>> pattern("2"), pattern("([0]*2+[1]*3)*2"), pattern("[0, 1]"), pattern("x")
    (2, [0, 0, 1, 1, 1, 0, 0, 1, 1, 1], [0, 1], None)
    """
    try:
        return _pattern(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _pattern(node: ast.expr) -> int | list[int]:
    match node:
        case ast.Constant(value=int() as value):
            return int(value)
        case ast.List(elts=items):
            listed = [_pattern(item) for item in items]
            if all(isinstance(one, int) for one in listed):
                return [one for one in listed if isinstance(one, int)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _pattern(left), _pattern(right)
            if isinstance(first, list) and isinstance(second, list):
                return first + second
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, times = _pattern(left), _pattern(right)
            if isinstance(first, list) and isinstance(times, int) and 0 <= len(first) * times <= MOST_LAYERS:
                return first * times
    raise ValueError


MOST_LAYERS = 10_000
"""Layers of a pattern at most."""
