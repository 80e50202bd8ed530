"""The parameters of a transport as a file writes them: tables as mappings in mappings, quantities with their units.

The form follows from `Transport` itself: a table by (algorithm, protocol) is a mapping of mappings. What a file names
replaces that entry of the library's table; all else stays as the library has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from types import GenericAlias
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import create_model

from simulator.document import Amount, Bandwidth, Fault, Flag, Index, Ratio, Section, Time
from simulator.document.validation import listed, near
from simulator.network.transport.transport import NET, NVLINK, PCI, Transport
from simulator.schedule import COLLECTIVES
from simulator.units import show

UNITS: Mapping[str, tuple[Any, str]] = {
    "launch": (Time, "time"),
    "base_latency": (Time, "time"),
    "hop_latency": (Time, "time"),
    "plateau_bytes": (Amount, "size"),
    "attainable": (Bandwidth, "bandwidth"),
    "limits": (Bandwidth, "bandwidth"),
    "ceilings": (Bandwidth, "bandwidth"),
    "ring_ceilings": (Bandwidth, "bandwidth"),
    "buffer_bytes": (Amount, "size"),
    "channel_bytes": (Amount, "size"),
    "chunk_bytes": (Amount, "size"),
}
"""Parameters that have a unit: what reads them, and their dimension. All others are factors and counts."""

KEYS: Mapping[str, tuple[str, ...]] = {
    "algorithms": COLLECTIVES,
    "hop_latency": (NVLINK, PCI, NET),
}
"""Tables the first key of which is one of a few."""

PLACES = {"inside": False, "across": True}
"""How a file says whether a group is within one server."""


IDENTITY = ("name", "version", "believed")
"""What of a `Transport` is no parameter: which library it is, and what that thinks of itself."""


def hints() -> dict[str, Any]:
    """The types of the parameters of `Transport`, by name."""
    return {name: hint for name, hint in get_type_hints(Transport).items() if name not in IDENTITY}


@cache
def section() -> type[Section]:
    """The model of the ``transport:`` of a file."""
    forms: dict[str, Any] = {name: (_form(name, hint) | None, None) for name, hint in hints().items()}
    return create_model("TransportSection", __base__=Section, **forms)


def _form(name: str, hint: Any) -> Any:
    """What a file may hold for the parameter *name*, of the type *hint* in `Transport`."""
    plain = {bool: Flag, int: Index, float: UNITS.get(name, (Ratio, ""))[0], str: str}
    if hint in plain:
        return plain[hint]
    parts = [part for part in get_args(hint) if part is not Ellipsis]
    if not issubclass(get_origin(hint), Mapping):
        return GenericAlias(list, _form(name, parts[0]))
    form = _form(name, parts[1])
    for _ in _key_parts(parts[0]):
        form = GenericAlias(dict, (str, form))
    return form


def _key_parts(key: Any) -> tuple[Any, ...]:
    return get_args(key) or (key,)


def overridden(library: Transport, written: Section) -> Transport:
    """*library* with what is *written*, an instance of `section`. Raises `Fault` at a key that there cannot be."""
    changes = {}
    for name in written.model_fields_set:
        value, hint = getattr(written, name), hints()[name]
        if value is None:
            raise Fault(name, "has no value; leave it out, and it is as in the library")
        if name in KEYS:
            _among(name, value, KEYS[name])
        changes[name] = _taken(name, value, hint, getattr(library, name))
    return replace(library, **changes)


def _taken(name: str, value: Any, hint: Any, before: Any) -> Any:
    origin = get_origin(hint)
    if origin is None:
        return value
    if not issubclass(origin, Mapping):
        return origin(value)
    key, leaf = get_args(hint)
    parts = _key_parts(key)
    make = get_origin(leaf) or (lambda number: number)
    flat = {_key(name, path, parts): make(item) for path, item in _leaves(value, len(parts))}
    return {**before, **flat}


def _key(name: str, path: tuple[str, ...], parts: tuple[Any, ...]) -> Any:
    for place, part in enumerate(parts):
        if part is bool:
            _among((name, *path[:place]), {path[place]: None}, tuple(PLACES))
    typed = tuple(PLACES[text] if part is bool else text for text, part in zip(path, parts, strict=True))
    return typed if len(parts) > 1 else typed[0]


def _leaves(value: Any, depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not depth:
        yield (), value
        return
    for key, inner in value.items():
        for path, leaf in _leaves(inner, depth - 1):
            yield (key, *path), leaf


def _among(at: str | tuple[str, ...], table: Mapping[str, Any], names: tuple[str, ...]) -> None:
    path = at if isinstance(at, tuple) else (at,)
    for key in table:
        if key not in names:
            raise Fault((*path, key), f"must be {listed(names)}", near(key, names))


def difference(library: Transport, transport: Transport) -> dict[str, Any]:
    """What a file has to say for `overridden` to make *transport* of *library*: plain data, quantities as text."""
    found: dict[str, Any] = {}
    for field in fields(Transport):
        before, now = getattr(library, field.name), getattr(transport, field.name)
        if field.name in IDENTITY or before == now:
            continue
        if not isinstance(now, Mapping):
            found[field.name] = _text(field.name, now)
            continue
        for key, value in now.items():
            if before.get(key) != value:
                _put(found.setdefault(field.name, {}), key, _text(field.name, value))
    return found


def _put(table: dict[str, Any], key: Any, value: Any) -> None:
    *outer, last = path(key)
    for part in outer:
        table = table.setdefault(part, {})
    table[last] = value


def path(key: Any) -> tuple[str, ...]:
    """The keys by which a file reaches the entry *key* of a table.

    >>> path(("ring", "LL", True))
    ('ring', 'LL', 'across')
    """
    words = {place: word for word, place in PLACES.items()}
    return tuple(
        words[part] if isinstance(part, bool) else str(part) for part in (key if isinstance(key, tuple) else (key,))
    )


def _text(name: str, value: Any) -> Any:
    if isinstance(value, tuple | frozenset | list):
        return [_text(name, one) for one in sorted(value) if isinstance(value, frozenset)] or [
            _text(name, one) for one in value
        ]
    if name in UNITS and isinstance(value, int | float):
        return show(value, UNITS[name][1], 9)
    return value
