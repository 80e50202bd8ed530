"""`dataclass` as the standard library has it, made in a third of its time.

The standard library compiles each method of a dataclass from a text of its own, six of a frozen one (dataclasses.py of
Python 3.11, `_create_fn`): a quarter of the start-up of a run, which imports some 150 dataclasses. Here one text has
those that must be fast, and all dataclasses share the others.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from functools import partial
from reprlib import recursive_repr
from threading import RLock
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass", "unfrozen"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, slots=False, kw_only=False):  # noqa: A002
        """Return *cls* with the methods of a dataclass; the options are those of `dataclasses.dataclass`."""
        if cls is None:
            return partial(dataclass, frozen=frozen, eq=eq, repr=repr, slots=slots, kw_only=kw_only)
        own = set(vars(cls))
        if "__eq__" in own and vars(cls)["__hash__"] is None:
            own.remove("__hash__")
        with _thawed(cls, frozen=frozen):
            made = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)
        params = made.__dataclass_params__
        params.init, params.repr, params.eq, params.frozen = True, repr, eq, frozen
        methods = _compiled(made, frozen=frozen, eq=eq, slots=slots)
        if repr:
            methods["__repr__"] = _repr
        if frozen:
            methods |= {"__setattr__": _setattr, "__delattr__": _delattr}
        if frozen and slots:
            methods |= {"__getstate__": _getstate, "__setstate__": _setstate}
        for name in methods.keys() - own:
            setattr(made, name, methods[name])
        return made


_ONE_AT_A_TIME = RLock()
"""Modules that several threads import may have classes of the same base."""


@contextmanager
def _thawed(cls: type, *, frozen: bool) -> Iterator[None]:
    """Within it the bases of *cls* are not frozen for the standard library, which would compile two methods for it."""
    bases = [vars(base)["__dataclass_params__"] for base in cls.__mro__[1:] if "__dataclass_params__" in vars(base)]
    with _ONE_AT_A_TIME:
        if any(params.frozen != frozen for params in bases):
            raise TypeError(f"{cls.__name__} and the dataclasses below it must all be frozen, or none")
        for params in bases:
            params.frozen = False
        try:
            yield
        finally:
            for params in bases:
                params.frozen = frozen


class _Factory:
    """In a signature, the default of a parameter whose value a function makes."""

    def __repr__(self) -> str:
        return "<factory>"


FACTORY = _Factory()


def _compiled(cls: type[Any], *, frozen: bool, eq: bool, slots: bool) -> dict[str, Any]:
    """`__init__` of *cls* and, with *eq*, `__eq__` and `__hash__`."""
    own = fields(cls)
    known: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": FACTORY}
    fast = frozen and slots and len(own) >= LEAST_OPENED
    if fast:
        known |= {"_kind": cls, "_open": unfrozen(cls), "_become": object.__dict__["__class__"].__set__}
    lines = _initialiser(cls, own, known, frozen=frozen, slots=slots, fast=fast)
    if eq:
        ours, theirs = (_values(one, (field for field in own if field.compare)) for one in ("self", "other"))
        hashed = _values("self", (field for field in own if (field.compare if field.hash is None else field.hash)))
        lines += [
            "def __eq__(self, other):",
            f" return {ours} == {theirs} if other.__class__ is self.__class__ else NotImplemented",
            *(["def __hash__(self):", f" return hash({hashed})"] if frozen else ["__hash__ = None"]),
        ]
    names = ("__init__", "__eq__", "__hash__") if eq else ("__init__",)
    lines.append(f"return {', '.join(names)},")
    made: dict[str, Any] = {}
    text = f"def make({', '.join(known)}):\n " + "\n ".join(lines)
    exec(text, vars(sys.modules[cls.__module__]), made)
    methods = dict(zip(names, made["make"](**known), strict=True))
    for name, method in methods.items():
        if method is not None:
            method.__qualname__ = f"{cls.__qualname__}.{name}"
    methods["__init__"].__annotations__ = {field.name: field.type for field in own if field.init} | {"return": None}
    return methods


def _values(one: str, of: Iterable[Field[Any]]) -> str:
    return f"({''.join(f'{one}.{field.name}, ' for field in of)})"


LEAST_OPENED = 3
"""Fields from which on it takes less time to open an instance than to write each field past the guard of its class."""


def unfrozen(cls: type[Any]) -> type[Any]:
    """Return a class with the slots of *cls*, frozen with slots, whose fields are plain assignments.

    An instance of the one can become one of the other: its fields are written in a quarter of the time that writing
    past the guard of *cls* takes.
    """
    slots = {name: value for name, value in vars(cls).items() if name == "__slots__"}
    opened = {**slots, "__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    kind: Any = type(cls)
    made: type[Any] = kind(cls.__name__, cls.__bases__, opened)
    return made


def _initialiser(
    cls: type, own: Sequence[Field[Any]], known: dict[str, Any], *, frozen: bool, slots: bool, fast: bool
) -> list[str]:
    """The lines of `__init__`, which adds defaults to *known*; parameters by keyword only come last.

    *fast*: an instance is open while its fields are written, unless it is of a class below *cls*.
    """
    positional, keywords, ready = ["self"], list[str](), list[str]()
    written: dict[str, str] = {}
    for field in own:
        name = value = parameter = field.name
        if field.default is not MISSING:
            known[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
            if not field.init:
                value = f"_default_{name}"
        elif field.default_factory is not MISSING:
            known[f"_make_{name}"] = field.default_factory
            parameter = f"{name}=_FACTORY"
            value = f"_make_{name}() if {name} is _FACTORY else {name}" if field.init else f"_make_{name}()"
        if field.init:
            (keywords if field.kw_only else positional).append(parameter)
        elif value == name or (not slots and field.default is not MISSING):
            continue
        if fast and value != name:
            ready.append(f"_{name} = {value}")
            value = f"_{name}"
        written[name] = value
    guarded = [f"_set(self, {name!r}, {value})" for name, value in written.items()]
    plain = [f"self.{name} = {value}" for name, value in written.items()]
    body = guarded if frozen else plain
    if fast:
        opened = ["_become(self, _open)", *plain, "_become(self, _kind)"]
        body = [*ready, "if self.__class__ is _kind:", *_indented(opened), "else:", *_indented(guarded)]
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
    return [f"def __init__({parameters}):", *_indented(body or ["pass"])]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f" {line}" for line in lines]


@recursive_repr()
def _repr(self: Any) -> str:
    values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{type(self).__qualname__}({values})"


def _refuse(one: Any, name: str, verb: str) -> None:
    """Raise `FrozenInstanceError` unless *one* is of a class that is no dataclass itself, and *name* not a field."""
    if "__dataclass_fields__" in vars(type(one)) or name in type(one).__dataclass_fields__:
        raise FrozenInstanceError(f"cannot {verb} field {name!r}")


def _setattr(self: Any, name: str, value: object) -> None:
    _refuse(self, name, "assign to")
    object.__setattr__(self, name, value)


def _delattr(self: Any, name: str) -> None:
    _refuse(self, name, "delete")
    object.__delattr__(self, name)


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in fields(self)]


def _setstate(self: Any, state: Sequence[object]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
