"""The free parameters of a calibration: the values of a library that depend on the machine, in groups.

Values that a library distinguishes (by link class, algorithm, protocol) keep their ratios unless measurements require
more: one factor applies to all latencies of a link class. Extensions add further parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.network.transport.transport import Transport

SCALARS = ("launch",)
TABLES = ("base_latency", "hop_latency", "efficiency", "attainable", "limits", "ceilings")
"""Parameters and tables of a transport that depend on the machine. The others are properties of the library."""

LONG = "long"
"""The name of an added protocol, with less cost for each byte and more latency, for vectors above some size."""

LATENCY_RATIO, RATE_RATIO = 4.0, 4.0
"""Start of its search: its latency over that of the first protocol, and its bandwidth over that of the first."""

Key = tuple[str, Any]
"""A table of a transport and one of its keys; or the name of a scalar parameter, and None."""


@dataclass(frozen=True)
class Parameter:
    """A factor on *entries*: keys and their initial values."""

    entries: tuple[tuple[Key, float], ...]

    @property
    def name(self) -> Key:
        """The first key, which names the parameter."""
        return self.entries[0][0]

    def times(self, factor: float) -> Parameter:
        """Return the parameter with its initial values multiplied by *factor*."""
        return Parameter(tuple((key, value * factor) for key, value in self.entries))


def with_values(transport: Transport, parameters: Iterable[Parameter]) -> Transport:
    """Return *transport* with the entries of *parameters*. The last of several values of one entry counts."""
    changes: dict[str, Any] = {}
    for parameter in parameters:
        for (name, key), value in parameter.entries:
            if key is None:
                changes[name] = value
            else:
                changes.setdefault(name, dict(getattr(transport, name)))[key] = value
    return replace(transport, **changes)


def library_parameters(library: Transport) -> list[Parameter]:
    """Return the values of *library* that may be free."""
    groups: dict[Any, dict[Key, float]] = {
        name: {(name, None): getattr(library, name)} for name in SCALARS if getattr(library, name)
    }
    for table in TABLES:
        for key, value in getattr(library, table).items():
            if value > 0:
                groups.setdefault(_group(library, table, key), {})[table, key] = value
    return [Parameter(tuple(entries.items())) for entries in groups.values()]


def _group(library: Transport, table: str, key: Any) -> tuple[Any, ...]:
    """The group of the entry *key*."""
    if table == "base_latency":
        return (table,)
    if table == "hop_latency":
        return (table,) if _classes_alike(library.hop_latency) else (table, key[0])
    return (table, key[1]) if table == "ceilings" else (table, key)


def _classes_alike(hops: Mapping[tuple[str, str, str], float]) -> bool:
    """Whether every link class costs the same."""
    classes: dict[str, dict[tuple[str, str], float]] = {}
    for (hop, *rest), value in hops.items():
        classes.setdefault(hop, {})[rest[0], rest[1]] = value
    return len({tuple(sorted(one.items())) for one in classes.values()}) == 1


@dataclass(frozen=True)
class Observed:
    """What the measurements show, as a start for extensions.

    *used*: algorithm and protocol -> bytes/s of a rank in their largest measurement. *latency*: the shortest time (s).
    *rate*: the largest bus bandwidth, bytes/s.
    """

    used: Mapping[tuple[str, str], float]
    latency: float
    rate: float


Extended = tuple[Transport, list[Parameter]]


def extensions(transport: Transport, parameters: Sequence[Parameter], observed: Observed) -> Iterator[Extended]:
    """Yield each possible addition to *parameters* of *transport*."""
    if len(transport.protocols) > 1:
        for protocol in dict.fromkeys(protocol for _, protocol in observed.used):
            yield from _separate_latencies(transport, parameters, protocol)
        return
    taken = {key: value for parameter in parameters for key, value in parameter.entries}
    for (algorithm, protocol), rate in observed.used.items():
        hops = {(t, (key[0], algorithm, protocol)): value for (t, key), value in taken.items() if t == "hop_latency"}
        for entries in (
            hops,
            {("base_latency", (algorithm, protocol)): observed.latency},
            {("ceilings", (algorithm, protocol, "any")): rate},
        ):
            if entries and not taken.keys() & entries.keys():
                yield transport, [*parameters, Parameter(tuple(entries.items()))]
    if any(table == "hop_latency" for table, _ in taken):
        yield _with_long(transport, parameters, observed.rate)


def _separate_latencies(transport: Transport, parameters: Sequence[Parameter], protocol: str) -> Iterator[Extended]:
    """A separate factor for the latencies of *protocol*."""

    def its(key: Key) -> bool:
        return key[0] in ("base_latency", "hop_latency") and key[1][-1] == protocol

    inside = tuple(entry for parameter in parameters for entry in parameter.entries if its(entry[0]))
    left = [Parameter(tuple(e for e in parameter.entries if not its(e[0]))) for parameter in parameters]
    kept = [parameter for parameter in left if parameter.entries]
    if inside and Parameter(inside) not in parameters:
        yield transport, [*kept, Parameter(inside)]


def _with_long(transport: Transport, parameters: Sequence[Parameter], rate: float) -> Extended:
    """*transport* with a second protocol."""
    short = transport.protocols[0]
    taken = {key: value for parameter in parameters for key, value in parameter.entries}
    hops = {
        (table, (*key[:2], LONG)): LATENCY_RATIO * value
        for (table, key), value in taken.items()
        if table == "hop_latency" and key[2] == short
    }
    ceiling: dict[Key, float] = {("ceilings", ("any", short, "any")): rate / RATE_RATIO}
    added = [hops] if taken.keys() & ceiling.keys() else [hops, ceiling]
    return replace(transport, protocols=(short, LONG)), [*parameters, *(Parameter(tuple(e.items())) for e in added)]
