"""Calibration fits the parameters of a transport to measurements, through the same plans that the simulator makes.

The free parameters are the values of a library that depend on the machine and change a measurement, in groups. Values
that a library distinguishes (by link class, algorithm, protocol) keep their ratios unless measurements require more:
one factor applies to all latencies of a link class. Extensions add further parameters one by one, while Bayes'
information criterion justifies them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import log
from typing import Any

import numpy as np

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.plan import Phase, TransferPlan
from clustersim.simulator.network.transport import Transport
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.replay.measurements import SEND, Measurement
from clustersim.simulator.replay.robust_regression import Array, RobustFit, fit

SCALARS = ("launch",)

TABLES = ("base_latency", "hop_latency", "efficiency", "attainable", "limits", "ceilings")
"""Parameters and tables of a transport that depend on the machine. The others are properties of the library."""

LONG = "long"
"""The name of an added protocol, with less cost for each byte and more latency, for vectors above some size."""

LATENCY_RATIO, RATE_RATIO = 4.0, 4.0
"""Start of its search: its latency over that of the first protocol, and its bandwidth over that of the first."""

Key = tuple[str, Any]
"""A table of a transport and one of its keys; or the name of a scalar parameter, and None."""

PRIOR_DEVIATION = log(10.0)
"""Standard deviation of the logarithm of a machine's value about the library's: a factor of ten."""

UNDETERMINED = 0.7
"""A parameter whose error is this share of `PRIOR_DEVIATION` or more was not measured. The library's value stays."""


def calibrate(
    measurements: Sequence[Measurement], cluster: Cluster, devices: Sequence[str], library: Transport
) -> Calibrated:
    """Return *library* with the parameters that fit *measurements* best. Ranks are on *devices* of *cluster*.

    Raises `CalibrationError` if there is nothing to fit.
    """
    bench = _Bench(tuple(measurements), cluster, Communicator(cluster, devices, library))
    best = bench.trial(library, bench.sensitive(library, library_parameters(library)))
    while not best.fit.exact:
        several = extensions(best.transport, best.found, bench.observed(best.whole))
        # as many parameters as rows follow any rows
        trials = [bench.trial(*one) for one in several if len(one[1]) < len(measurements)]
        better = min(trials, key=lambda trial: trial.fit.information, default=best)
        # the best of several trials is partly good by chance: extended criterion (Chen and Chen 2008, gamma = 1)
        if better.fit.information + 2 * log(max(1, len(trials))) >= best.fit.information:
            break
        best = better
    return bench.calibrated(best)


@dataclass(frozen=True)
class Calibrated:
    """The *transport* with the fitted *parameters*, and for each of *measurements* the plan and its *seconds*."""

    transport: Transport
    parameters: tuple[Fitted, ...]
    measurements: tuple[Measurement, ...]
    plans: tuple[TransferPlan, ...]
    seconds: tuple[float, ...]
    fit: RobustFit

    def crossovers(self) -> Iterator[tuple[str, float, TransferPlan, TransferPlan]]:
        """Yield, for each kind, the sizes (bytes) where algorithm or protocol change, with the plans below and
        above.
        """
        for kind in dict.fromkeys(one.kind for one in self.measurements):
            rows = [(m.nbytes, p) for m, p in zip(self.measurements, self.plans, strict=True) if m.kind == kind]
            rows.sort(key=lambda row: row[0])
            for (_, before), (nbytes, after) in pairwise(rows):
                if (before.algorithm, before.protocol) != (after.algorithm, after.protocol):
                    yield kind, nbytes, before, after


@dataclass(frozen=True)
class Fitted:
    """A *parameter* with its fitted value, and its relative standard *error*."""

    parameter: FreeParameter
    error: float


@dataclass(frozen=True)
class _Trial:
    """*parameters* of *transport* at their start, and their *fit*."""

    transport: Transport
    parameters: tuple[FreeParameter, ...]
    fit: RobustFit

    @property
    def found(self) -> list[FreeParameter]:
        """The parameters at their fitted values."""
        return [p.times(float(factor)) for p, factor in zip(self.parameters, self.fit.parameters, strict=True)]

    @property
    def whole(self) -> Transport:
        """The transport with the fitted values."""
        return with_values(self.transport, self.found)


@dataclass(frozen=True)
class _Bench:
    """The measurements on *cluster*, and the *communicator* of their ranks with the library's own values."""

    measurements: tuple[Measurement, ...]
    cluster: Cluster
    communicator: Communicator

    def plans(self, transport: Transport) -> list[TransferPlan]:
        """The simulator's plan for each measurement."""
        communicator = self.communicator.by(transport)
        return [
            communicator.send(one.ranks[0], one.ranks[1], one.nbytes)
            if one.kind == SEND
            else communicator.collective(one.kind, "all", one.ranks, one.nbytes)
            for one in self.measurements
        ]

    def predicted(self, transport: Transport) -> Array:
        """The seconds of each measurement according to *transport*."""
        return np.array([seconds(plan, self.cluster) for plan in self.plans(transport)])

    def sensitive(self, transport: Transport, parameters: Iterable[FreeParameter]) -> list[FreeParameter]:
        """Those of *parameters* that change the time of a measurement when halved or doubled."""
        as_is = self.predicted(transport)

        def moves(parameter: FreeParameter) -> bool:
            tried = (self.predicted(with_values(transport, [parameter.times(by)])) for by in (0.5, 2.0))
            return any(not np.allclose(as_is, one) for one in tried)

        return [parameter for parameter in parameters if moves(parameter)]

    def trial(self, transport: Transport, parameters: Sequence[FreeParameter]) -> _Trial:
        """Fit *parameters* of *transport*."""

        def predict(factors: Array) -> Array:
            moved = (p.times(float(factor)) for p, factor in zip(parameters, factors, strict=True))
            return self.predicted(with_values(transport, moved))

        measured = np.array([one.seconds for one in self.measurements])
        return _Trial(transport, tuple(parameters), fit(predict, np.ones(len(parameters)), measured, PRIOR_DEVIATION))

    def observed(self, transport: Transport) -> Observed:
        """What the measurements show if they were made by *transport*."""
        rates: dict[tuple[str, str], float] = {}
        for plan in sorted(self.plans(transport), key=lambda plan: plan.sent_bytes):
            flows = [flow.alone for phase in plan.phases for flow in phase.flows]
            rates[plan.algorithm, plan.protocol] = max(flows, default=1.0)
        rows = self.measurements
        return Observed(rates, min(one.seconds for one in rows), max(one.busbw for one in rows))

    def calibrated(self, best: _Trial) -> Calibrated:
        """The result of *best*. Parameters that the measurements do not determine keep the library's values."""
        rows = list(zip(best.parameters, best.found, best.fit.errors, strict=True))
        determined = [Fitted(found, float(error)) for _, found, error in rows if error < UNDETERMINED * PRIOR_DEVIATION]
        undetermined = [start for start, _, error in rows if error >= UNDETERMINED * PRIOR_DEVIATION]
        whole = with_values(best.transport, [*undetermined, *(one.parameter for one in determined)])
        plans = tuple(self.plans(whole))
        times = tuple(seconds(plan, self.cluster) for plan in plans)
        return Calibrated(whole, tuple(determined), self.measurements, plans, times, best.fit)


def seconds(plan: TransferPlan, cluster: Cluster) -> float:
    """Return the duration of *plan* on idle links."""
    return sum(phase.latency + _flowing(phase, cluster) for phase in plan.phases)


def _flowing(phase: Phase, cluster: Cluster) -> float:
    if not phase.contended or not phase.nbytes or not phase.flows:
        return 0.0
    slowest = max(phase.nbytes / flow.alone for flow in phase.flows)
    if len(phase.flows) == 1:
        return slowest
    taken: dict[int, float] = {}
    for flow in phase.flows:
        for link, weight in zip(flow.links.tolist(), flow.weights.tolist(), strict=True):
            taken[link] = taken.get(link, 0.0) + weight * phase.nbytes
    return max([slowest, *(nbytes / cluster.links[link].bandwidth for link, nbytes in taken.items())])


@dataclass(frozen=True)
class FreeParameter:
    """A factor on *entries*: keys and their initial values."""

    entries: tuple[tuple[Key, float], ...]

    @property
    def name(self) -> Key:
        """The first key, which names the parameter."""
        return self.entries[0][0]

    def times(self, factor: float) -> FreeParameter:
        """Return the parameter with its initial values multiplied by *factor*."""
        return FreeParameter(tuple((key, value * factor) for key, value in self.entries))


def with_values(transport: Transport, parameters: Iterable[FreeParameter]) -> Transport:
    """Return *transport* with the entries of *parameters*. The last of several values of one entry counts."""
    changes: dict[str, Any] = {}
    for parameter in parameters:
        for (name, key), value in parameter.entries:
            if key is None:
                changes[name] = value
            else:
                changes.setdefault(name, dict(getattr(transport, name)))[key] = value
    return replace(transport, **changes)


def library_parameters(library: Transport) -> list[FreeParameter]:
    """Return the values of *library* that may be free."""
    groups: dict[Any, dict[Key, float]] = {
        name: {(name, None): getattr(library, name)} for name in SCALARS if getattr(library, name)
    }
    for table in TABLES:
        for key, value in getattr(library, table).items():
            if value > 0:
                groups.setdefault(_group(library, table, key), {})[table, key] = value
    return [FreeParameter(tuple(entries.items())) for entries in groups.values()]


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


Extended = tuple[Transport, list[FreeParameter]]
"""A transport, and its free parameters."""


def extensions(transport: Transport, parameters: Sequence[FreeParameter], observed: Observed) -> Iterator[Extended]:
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
                yield transport, [*parameters, FreeParameter(tuple(entries.items()))]
    if any(table == "hop_latency" for table, _ in taken):
        yield _with_long(transport, parameters, observed.rate)


def _separate_latencies(transport: Transport, parameters: Sequence[FreeParameter], protocol: str) -> Iterator[Extended]:
    """A separate factor for the latencies of *protocol*."""

    def its(key: Key) -> bool:
        return key[0] in ("base_latency", "hop_latency") and key[1][-1] == protocol

    inside = tuple(entry for parameter in parameters for entry in parameter.entries if its(entry[0]))
    left = [FreeParameter(tuple(e for e in parameter.entries if not its(e[0]))) for parameter in parameters]
    kept = [parameter for parameter in left if parameter.entries]
    if inside and FreeParameter(inside) not in parameters:
        yield transport, [*kept, FreeParameter(inside)]


def _with_long(transport: Transport, parameters: Sequence[FreeParameter], rate: float) -> Extended:
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
    return replace(transport, protocols=(short, LONG)), [*parameters, *(FreeParameter(tuple(e.items())) for e in added)]
