"""Calibrating fits the parameters of a transport to measurements, by way of the very plans that the simulator makes.

Free are the library's own latencies, bandwidths and efficiencies, as far as the measurements feel them. What a library
does not distinguish (classes of hop that cost the same) stays one parameter. Further parameters, a latency or a ceiling
of its own for each algorithm and a second protocol for long vectors, are taken in one after the other while Bayes'
information criterion says that the measurements earn them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from typing import Any

import numpy as np

from simulator.cluster import Cluster
from simulator.plan import Phase, Plan
from simulator.transport.communicator import Communicator
from simulator.transport.transport import Transport
from simulator.validation.measurement import SEND, Measurement
from simulator.validation.regression import Fit, Vector, fit

SCALARS = ("launch",)
FREE = ("base_latency", "hop_latency", "efficiency", "attainable", "limits", "ceilings")
"""Parameters and tables of a transport that a machine determines; the others are of the library's own making."""

LOOSELY = log(10.0)
"""How far a library's own figure may lie from a machine's: a factor of ten is one standard deviation."""

LONG = "long"
"""The protocol that is added where vectors above some size cost less a byte, and more to begin with."""

Key = tuple[str, Any]
"""A table of a transport and a key of it; or the name of a parameter that is no table, and None."""


@dataclass(frozen=True)
class Parameter:
    """The entries of tables at *keys* have one value, which is *start* before it is fitted."""

    keys: tuple[Key, ...]
    start: float


@dataclass(frozen=True)
class Fitted:
    """The *value* of a parameter and its relative standard *error*."""

    keys: tuple[Key, ...]
    value: float
    error: float


@dataclass(frozen=True)
class Calibrated:
    """The *transport* with its *parameters* as fitted; beside each of *measurements* the plan and its *seconds*."""

    transport: Transport
    parameters: tuple[Fitted, ...]
    measurements: tuple[Measurement, ...]
    plans: tuple[Plan, ...]
    seconds: tuple[float, ...]
    fit: Fit

    def crossovers(self) -> Iterator[tuple[str, float, Plan, Plan]]:
        """Of each kind the size (bytes) from which on another algorithm or protocol is taken, and both plans."""
        for kind in dict.fromkeys(one.kind for one in self.measurements):
            rows = [(m.nbytes, p) for m, p in zip(self.measurements, self.plans, strict=True) if m.kind == kind]
            rows.sort(key=lambda row: row[0])
            for (_, before), (nbytes, after) in pairwise(rows):
                if (before.algorithm, before.protocol) != (after.algorithm, after.protocol):
                    yield kind, nbytes, before, after


def calibrate(
    measurements: Sequence[Measurement], cluster: Cluster, devices: Sequence[str], library: Transport
) -> Calibrated:
    """*library* with the parameters that fit *measurements* best, of ranks on *devices* of *cluster*.

    Raises `CalibrationError` where there is nothing to fit.
    """
    bench = _Bench(tuple(measurements), cluster, tuple(devices))
    transport, parameters = library, bench.felt(library, _own(library))
    best = bench.fitted(transport, parameters)
    while True:
        trials = [(bench.fitted(*trial), trial) for trial in bench.extensions(transport, parameters, best)]
        trials = [trial for trial in trials if trial[0].information < best.information]
        if not trials:
            return bench.calibrated(transport, parameters, best)
        best, (transport, parameters) = min(trials, key=lambda trial: trial[0].information)


def with_values(transport: Transport, values: Mapping[Key, float]) -> Transport:
    """*transport* with those entries of its tables."""
    changes: dict[str, Any] = {}
    for (name, key), value in values.items():
        if key is None:
            changes[name] = value
        else:
            changes.setdefault(name, dict(getattr(transport, name)))[key] = value
    return replace(transport, **changes)


def _own(library: Transport) -> list[Parameter]:
    """The entries of *library* that may be free; hops that cost the same in every class are one."""
    found = [Parameter(((name, None),), getattr(library, name)) for name in SCALARS]
    for name in FREE:
        tied: dict[Any, list[tuple[Key, float]]] = {}
        for key, value in getattr(library, name).items():
            tied.setdefault(key[1:] if name == "hop_latency" else key, []).append(((name, key), value))
        for entries in tied.values():
            if len({value for _, value in entries}) == 1:
                found.append(Parameter(tuple(key for key, _ in entries), entries[0][1]))
            else:
                found.extend(Parameter((key,), value) for key, value in entries)
    return [parameter for parameter in found if parameter.start > 0]


def seconds(plan: Plan, cluster: Cluster) -> float:
    """How long *plan* takes with nothing else on the links."""
    return sum(phase.latency + _flowing(phase, cluster) for phase in plan.phases)


def _flowing(phase: Phase, cluster: Cluster) -> float:
    if not phase.contended or not phase.nbytes or not phase.flows:
        return 0.0
    slowest = max(phase.nbytes / flow.alone for flow in phase.flows)
    if len(phase.flows) == 1:
        return slowest
    taken: dict[int, float] = {}
    for flow in phase.flows:
        for link, weight in zip(flow.links, flow.weights, strict=True):
            taken[link] = taken.get(link, 0.0) + weight * phase.nbytes
    return max([slowest, *(nbytes / cluster.links[link].bandwidth for link, nbytes in taken.items())])


@dataclass(frozen=True)
class _Bench:
    """The measurements, and where the ranks were that made them."""

    measurements: tuple[Measurement, ...]
    cluster: Cluster
    devices: tuple[str, ...]

    def plans(self, transport: Transport) -> list[Plan]:
        """What the simulator would do for each measurement."""
        communicator = Communicator(self.cluster, self.devices, transport)
        return [
            communicator.send(one.ranks[0], one.ranks[1], one.nbytes)
            if one.kind == SEND
            else communicator.collective(one.kind, "all", one.ranks, one.nbytes)
            for one in self.measurements
        ]

    def predicted(self, transport: Transport) -> Vector:
        """Seconds of each measurement as *transport* has it."""
        return np.array([seconds(plan, self.cluster) for plan in self.plans(transport)])

    def felt(self, transport: Transport, parameters: Iterable[Parameter]) -> list[Parameter]:
        """Those of *parameters* that any measurement feels, half and twice the value being tried."""
        as_is = self.predicted(transport)

        def moves(parameter: Parameter) -> bool:
            return any(
                not np.allclose(
                    as_is, self.predicted(with_values(transport, dict.fromkeys(parameter.keys, by * parameter.start)))
                )
                for by in (0.5, 2.0)
            )

        return [parameter for parameter in parameters if moves(parameter)]

    def fitted(self, transport: Transport, parameters: Sequence[Parameter]) -> Fit:
        """*parameters* of *transport*, fitted."""

        def predict(values: Vector) -> Vector:
            return self.predicted(with_values(transport, _values(parameters, values)))

        measured = np.array([one.seconds for one in self.measurements])
        return fit(predict, np.array([parameter.start for parameter in parameters]), measured, LOOSELY)

    def extensions(
        self, transport: Transport, parameters: Sequence[Parameter], best: Fit
    ) -> Iterator[tuple[Transport, list[Parameter]]]:
        """What could be taken in beside *parameters*, which are started from where they are *best*."""
        begun = [Parameter(p.keys, float(value)) for p, value in zip(parameters, best.parameters, strict=True)]
        at_best = _values(parameters, best.parameters)
        now = with_values(transport, at_best)
        taken = {key for parameter in parameters for key in parameter.keys}
        plans = self.plans(now)
        used = dict.fromkeys((plan.algorithm, plan.protocol) for plan in plans)
        latency = min(seconds(plan, self.cluster) for plan in plans)
        for algorithm, protocol in used:
            hops = [(name, (key[0], algorithm, protocol)) for name, key in taken if name == "hop_latency"]
            if algorithm != "ring" and not taken.intersection(hops):
                start = next(v for (name, key), v in at_best.items() if name == "hop_latency")
                yield transport, [*begun, Parameter(tuple(dict.fromkeys(hops)), start)]
            base: Key = "base_latency", (algorithm, protocol)
            if base not in taken:
                yield transport, [*begun, Parameter((base,), latency)]
            ceiling: Key = "ceilings", (algorithm, protocol, "any")
            if ceiling not in taken and len(used) > 1:
                yield transport, [*begun, Parameter((ceiling,), self._fastest(algorithm, plans))]
        if len(transport.protocols) == 1 and any(name == "hop_latency" for name, _ in taken):
            yield self._with_long(transport, begun)

    def _fastest(self, algorithm: str, plans: Sequence[Plan]) -> float:
        """The rate of a rank's channel, bytes/s, in the largest of what *algorithm* did."""
        rates = [
            (m.nbytes, max((flow.alone for phase in plan.phases for flow in phase.flows), default=1.0))
            for m, plan in zip(self.measurements, plans, strict=True)
            if plan.algorithm == algorithm
        ]
        return max(rates)[1]

    def _with_long(self, transport: Transport, begun: Sequence[Parameter]) -> tuple[Transport, list[Parameter]]:
        """*transport* with a second protocol: it begins four times as late, and the first has a quarter of its rate."""
        short = transport.protocols[0]
        hops = [(key, p.start) for p in begun for name, key in p.keys if name == "hop_latency" and key[2] == short]
        latency = Parameter(tuple(("hop_latency", (*key[:2], LONG)) for key, _ in hops), 4 * max(s for _, s in hops))
        ceiling = Parameter((("ceilings", ("any", short, "any")),), max(m.busbw for m in self.measurements) / 4)
        taken = {key for parameter in begun for key in parameter.keys}
        added = [latency] if ceiling.keys[0] in taken else [latency, ceiling]
        return replace(transport, protocols=(short, LONG)), [*begun, *added]

    def calibrated(self, transport: Transport, parameters: Sequence[Parameter], best: Fit) -> Calibrated:
        """What came of it."""
        whole = with_values(transport, _values(parameters, best.parameters))
        plans = self.plans(whole)
        rows = zip(parameters, best.parameters, best.errors, strict=True)
        fitted = tuple(Fitted(p.keys, float(value), float(error)) for p, value, error in rows)
        times = tuple(seconds(plan, self.cluster) for plan in plans)
        return Calibrated(whole, fitted, self.measurements, tuple(plans), times, best)


def _values(parameters: Sequence[Parameter], values: Vector) -> dict[Key, float]:
    return {key: float(v) for parameter, v in zip(parameters, values, strict=True) for key in parameter.keys}
