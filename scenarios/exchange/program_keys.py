"""Arguments of training programs: the scenario key that says the same, or none if an argument has no effect; and names
of checkpoints, with the presets that they are.

Each program has a table of these, which its import and its export share. What several arguments say together, such as
the layers of pipeline stages, is read and written by functions beside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.lookup import names
from clustersim.simulator.reading.yaml_and_json import read


class Settings(Protocol):
    """What a file gives for the arguments of a program; None if it does not give an argument."""

    def whole(self, key: str, least: int = 1) -> int | None:
        """The whole number of *key*. Raises `ScenarioError` for any other value."""

    def number(self, key: str) -> float | None:
        """The number of *key*. Raises `ScenarioError` for any other value."""

    def word(self, key: str) -> str | None:
        """The word of *key*. Raises `ScenarioError` for a list or a mapping."""

    def flag(self, key: str) -> bool | None:
        """Whether *key* is given and not false."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number, *least* or above. *flag*: its name there. *key*: its dotted key here."""

    flag: str
    key: str
    least: int = 1

    def read(self, settings: Settings) -> int | None:
        """The value of the key; None if it is not given."""
        return settings.whole(self.flag, self.least)

    def text(self, value: Any) -> str | None:
        """What stands there for *value*; None if nothing does."""
        return None if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Number:
    """A number, 0 or above; otherwise as `Whole`."""

    flag: str
    key: str

    def read(self, settings: Settings) -> float | None:
        """The value of the key; None if it is not given."""
        return settings.number(self.flag)

    def text(self, value: Any) -> str | None:
        """What stands there for *value*; None if nothing does."""
        return f"{value:g}" if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag without a value. If it is given, the key has the value *means*. *written*: false if it is read only."""

    flag: str
    key: str
    means: Any = True
    written: bool = True

    def read(self, settings: Settings) -> Any:
        """The value of the key; None if it is not given."""
        return self.means if settings.flag(self.flag) else None

    def text(self, value: Any) -> str | None:
        """An empty text if the flag stands there for *value*; None if not."""
        return "" if self.written and value == self.means and type(value) is type(self.means) else None


@dataclass(frozen=True, slots=True)
class Word:
    """One of *words*, by which the value of the key goes; the first word with a value is written."""

    flag: str
    key: str
    words: Mapping[str, Any]

    def read(self, settings: Settings) -> Any:
        """The value of the key; None if it is not given, or if the word is unknown."""
        return self.words.get(settings.word(self.flag) or "")

    def text(self, value: Any) -> str | None:
        """What stands there for *value*; None if nothing does."""
        return next((word for word, known in self.words.items() if known == value), None)


Key = Whole | Number | Flag | Word


def argument(key: Key, value: Any) -> list[str]:
    """The words of a command line that say *value*; none if nothing does.

    >>> argument(Whole("num_layers", "model.num_layers"), 24), argument(Flag("add_qkv_bias", "model.add_qkv_bias"), 0)
    (['--num-layers 24'], [])
    """
    text = key.text(value)
    return [] if text is None else [f"--{key.flag.replace('_', '-')} {text}".rstrip()]


def setting(key: Key, value: Any) -> dict[str, Any]:
    """The setting of a section that says *value*, by its name within the section; none if nothing does.

    >>> setting(Whole("training.seq_len", "model.seq_length"), 2048), setting(Flag("x.y", "z"), False)
    ({'seq_len': 2048}, {})
    """
    text = key.text(value)
    name = key.flag.rpartition(".")[2]
    return {} if text is None else {name: text if isinstance(key, Word) else True if isinstance(key, Flag) else value}


@cache
def _lists() -> dict[str, Any]:
    return read(Path(__file__).with_name("without_effect.yaml")).data


def without_effect(program: str) -> Sequence[str]:
    """Return the keys of *program*, a key of the file."""
    keys: Sequence[str] = _lists()[program]
    return keys


MODELS = "clustersim.workloads.models"

TUNED = ("_hf", "_instruct", "_chat", "_base", "_it", "_uncased", "_cased", "_pt")
"""Ends of names that do not change a model's sizes; ``bert_base_uncased`` is found before ``_base`` is cut."""


def preset_of(name: str) -> str | None:
    """The preset that the checkpoint *name* is, None if there is none of that name.

    >>> preset_of("meta-llama/Llama-2-7b-hf"), preset_of("openai-community/gpt2-xl"), preset_of("bert-base-uncased")
    ('llama2_7b', 'gpt2_xl', 'bert_base')
    >>> preset_of("meta-llama/Meta-Llama-3-8B-Instruct"), preset_of("mistralai/Mistral-7B-v0.1"), preset_of("my/model")
    ('llama3_8b', 'mistral_7b', None)
    """
    plain = re.sub(r"[-.]", "_", name.rpartition("/")[2].lower())
    plain = re.sub(r"_v\d+(_\d+)*$", "", plain).removeprefix("meta_")
    known = {one.replace("_", ""): one for one in names(MODELS)}
    while True:
        if (found := known.get(plain.replace("_", ""))) is not None:
            return found
        end = next((one for one in TUNED if plain.endswith(one)), None)
        if end is None:
            return None
        plain = plain.removesuffix(end)
