"""Keys of a file's section that are the fields of a dataclass, so that each is written once: where its value is used.

The type of such a field is the form that files have it in, such as `Time`; a text below it describes it to editors.
`Key` gives it another name in files. ``class StackKeys(Section, of=Software)`` declares the keys, `made` returns the
dataclass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from inspect import get_annotations
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic import Field as KeyInfo

Made = TypeVar("Made")


class Key:
    """Annotation of a dataclass's field: the *name* of its key in files, where that is another."""

    def __init__(self, name: str) -> None:
        self.name = name


@cache
def keys_of(made: type) -> Mapping[str, str]:
    """Return the fields of the dataclass *made* by their keys in files."""
    hints = _hints(made)
    return {_key(field.name, hints[field.name]): field.name for field in fields(made) if field.init}


def declare(section: type[BaseModel], made: type, without: Collection[str]) -> None:
    """Declare a key of *section* for each field of the dataclass *made* but those *without*.

    A key that the class body declares stays as it is there.
    """
    own = get_annotations(section)
    there = {field.name: field for field in fields(made)}
    keys = {key: name for key, name in keys_of(made).items() if key not in own and key not in without}
    section.__annotations__ = {**{key: _hints(made)[name] for key, name in keys.items()}, **own}
    for key, name in keys.items():
        default = _default(there[name])
        if default is not MISSING:
            setattr(section, key, default)


def made(section: BaseModel, kind: type[Made], **others: Any) -> Made:
    """Return the dataclass *kind* with the values of *section*; *others*: fields that have another form there."""
    source: type = kind
    shared = _shared(type(section), source)
    return kind(**{name: getattr(section, key) for key, name in shared if name not in others}, **others)


@cache
def _shared(section: type[BaseModel], kind: type) -> tuple[tuple[str, str], ...]:
    """Return (key, field) of what *section* and the dataclass *kind* both have."""
    return tuple((key, name) for key, name in keys_of(kind).items() if key in section.model_fields)


@cache
def _hints(made: type) -> dict[str, Any]:
    return get_type_hints(made, include_extras=True)


def _key(name: str, hint: Any) -> str:
    told = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((one.name for one in told if isinstance(one, Key)), name)


def _default(field: Field[Any]) -> Any:
    """Return the default of *field* as a section has it; `MISSING` if it has none."""
    if field.default_factory is not MISSING:
        return KeyInfo(default_factory=field.default_factory)
    return field.default
