"""The parameters of a transport as a file has them: tables as nested mappings, quantities with their units.

The form follows from `Transport`: a table by (algorithm, protocol) is a mapping of mappings. An entry in the file
replaces that entry of the library's table; all other entries stay.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from types import GenericAlias
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import create_model

from clustersim.simulator.network.transport import NET, NVLINK, PCI, Transport, link_class
from clustersim.simulator.reading.quantities import Amount, Bandwidth, Flag, Index, Ratio, Section, Time
from clustersim.simulator.reading.units import show
from clustersim.simulator.reading.validation import Fault, listed, near
from clustersim.simulator.schedule.ops import COLLECTIVES

UNITS: Mapping[str, tuple[Any, str]] = {
    "launch": (Time, "time"),
    "handover": (Time, "time"),
    "issue": (Time, "time"),
    "issue_channel": (Time, "time"),
    "tcp_latency": (Time, "time"),
    "round_latency": (Time, "time"),
    "base_latency": (Time, "time"),
    "start_latency": (Time, "time"),
    "hop_latency": (Time, "time"),
    "reporting": (Time, "time"),
    "net_overhead": (Time, "time"),
    "copy_rate": (Bandwidth, "bandwidth"),
    "message_bytes": (Amount, "size"),
    "plateau_bytes": (Amount, "size"),
    "attainable": (Bandwidth, "bandwidth"),
    "limits": (Bandwidth, "bandwidth"),
    "ceilings": (Bandwidth, "bandwidth"),
    "ring_ceilings": (Bandwidth, "bandwidth"),
    "buffer_bytes": (Amount, "size"),
    "channel_bytes": (Amount, "size"),
    "chunk_bytes": (Amount, "size"),
    "net_chunk_bytes": (Amount, "size"),
    "round_bytes": (Amount, "size"),
    "lines": (Amount, "size"),
}
"""Parameters with a unit: the type that reads them, and their dimension. All others are factors and counts."""

KEYS: Mapping[str, tuple[str, ...]] = {
    "algorithms": COLLECTIVES,
    "hop_latency": (NVLINK, PCI, NET),
}
"""Tables whose first key is one of a fixed set."""

PLACES = {"inside": False, "across": True}
"""Words in a file for a group within one server and for a group across servers."""


FILE_KEYS: Mapping[str, str] = {
    "overlapped_latency": "hides",
    "intra_node_penalty": "strained",
    "large_message_factor": "plateau",
    "large_message_bytes": "plateau_bytes",
    "single_gpu_shares": "lone_shares",
}
"""Fields of `Transport` that files of version 1 call by another name."""

FIELDS = {key: field for field, key in FILE_KEYS.items()}
"""The inverse of `FILE_KEYS`."""

IDENTITY = ("name", "version", "tuning_model")
"""Fields of `Transport` that are not parameters: the library's identity, and its tuning model."""


@cache
def hints() -> dict[str, Any]:
    """Return the types of the parameters of `Transport`, by their names in files."""
    return {
        FILE_KEYS.get(field, field): hint for field, hint in get_type_hints(Transport).items() if field not in IDENTITY
    }


@cache
def section() -> type[Section]:
    """Return the pydantic model of the ``transport:`` section of a file."""
    forms: dict[str, Any] = {name: (_form(name, hint) | None, None) for name, hint in hints().items()}
    return create_model("TransportSection", __base__=Section, **forms)


def _form(name: str, hint: Any) -> Any:
    """The type of the parameter *name* in a file. *hint*: its type in `Transport`."""
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
    """Return *library* with the values of *written*, an instance of `section`. Raises `Fault` at an impossible key."""
    changes = {}
    for name in written.model_fields_set:
        value, hint = getattr(written, name), hints()[name]
        if value is None:
            raise Fault(name, "has no value; leave it out, and it is as in the library")
        if name in KEYS:
            # hops inside a server may also be told by the kind of link
            of_links = [key for key in value if name == "hop_latency" and link_class(key) != NET]
            _check_keys(name, {key: value[key] for key in value if key not in of_links}, KEYS[name])
        field = FIELDS.get(name, name)
        changes[field] = _merged(name, value, hint, getattr(library, field))
    return replace(library, **changes)


def _merged(name: str, value: Any, hint: Any, before: Any) -> Any:
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
            _check_keys((name, *path[:place]), {path[place]: None}, tuple(PLACES))
    typed = tuple(PLACES[text] if part is bool else text for text, part in zip(path, parts, strict=True))
    return typed if len(parts) > 1 else typed[0]


def _leaves(value: Any, depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not depth:
        yield (), value
        return
    for key, inner in value.items():
        for path, leaf in _leaves(inner, depth - 1):
            yield (key, *path), leaf


def _check_keys(at: str | tuple[str, ...], table: Mapping[str, Any], names: tuple[str, ...]) -> None:
    path = at if isinstance(at, tuple) else (at,)
    for key in table:
        if key not in names:
            raise Fault((*path, key), f"must be {listed(names)}", near(key, names))


def difference(library: Transport, transport: Transport) -> dict[str, Any]:
    """Return the content of a file by which `overridden` makes *transport* out of *library*.

    The content is plain data with quantities as text.
    """
    found: dict[str, Any] = {}
    for field in fields(Transport):
        name = FILE_KEYS.get(field.name, field.name)
        before, now = getattr(library, field.name), getattr(transport, field.name)
        if field.name in IDENTITY or before == now:
            continue
        if not isinstance(now, Mapping):
            found[name] = _text(name, now)
            continue
        for key, value in now.items():
            if before.get(key) != value:
                _put(found.setdefault(name, {}), key, _text(name, value))
    return found


def _put(table: dict[str, Any], key: Any, value: Any) -> None:
    *outer, last = path(key)
    for part in outer:
        table = table.setdefault(part, {})
    table[last] = value


def path(key: Any) -> tuple[str, ...]:
    """Return the keys under which a file has the entry *key* of a table.

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
