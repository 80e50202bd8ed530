"""Arguments of Megatron-LM wherever they stand: flags of a command line, sections of its YAML or of NeMo's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scenarios.importing.facts import Facts
from scenarios.importing.source import Source

SECTIONS = (
    *("arguments", "language_model", "model_parallel", "model", "train", "ddp"),
    *("optimizer", "mixed_precision", "tokenizer", "dataset", "dist", "comm_overlap"),
)
"""Where arguments stand, besides the top of a file."""


class Arguments:
    """The arguments of a *source*, wherever they stand in it."""

    def __init__(self, source: Source) -> None:
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

    def give(self, facts: Facts, name: str, value: Any, key: str, how: str = "") -> None:
        """Give *value* for *name* to *facts*, at the place of the argument *key*."""
        path = self.path(key) or ()
        facts.give(name, value, self.source, *path, how=how or ("" if path else "Megatron-LM's default"))

    def ignore(self, keys: Sequence[str]) -> None:
        """Note that *keys* have no effect."""
        self.source.without_effect |= {(*place, key) for place in self._places for key in keys}

    def error(self, key: str, message: str) -> Exception:
        """Return an error at the argument *key*."""
        return self.source.error(self.path(key) or (), message)
