"""Calibrating fits the parameters of a transport to measurements, by way of the very plans that the simulator makes.

Free is what the measurements feel of the library's own figures. Further parameters are taken in one after the other
while Bayes' information criterion says that the measurements earn them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log

import numpy as np

from simulator.cluster import Cluster
from simulator.network.plan import Phase, TransferPlan
from simulator.network.transport.communicator import Communicator
from simulator.network.transport.transport import Transport
from simulator.replay.calibration.measurement import SEND, Measurement
from simulator.replay.calibration.parameters import Parameter, Seen, extensions, own, with_values
from simulator.replay.calibration.regression import Fit, Vector, fit

LOOSELY = log(10.0)
"""How far a library's own figure may lie from a machine's: a factor of ten is one standard deviation."""

UNTOLD = 0.7
"""A parameter as unsure as this share of what was believed beforehand was not measured; the library's figure stays."""


@dataclass(frozen=True)
class Fitted:
    """A *parameter* at the value that was found, and its relative standard *error*."""

    parameter: Parameter
    error: float


@dataclass(frozen=True)
class Calibrated:
    """The *transport* with its *parameters* as fitted; beside each of *measurements* the plan and its *seconds*."""

    transport: Transport
    parameters: tuple[Fitted, ...]
    measurements: tuple[Measurement, ...]
    plans: tuple[TransferPlan, ...]
    seconds: tuple[float, ...]
    fit: Fit

    def crossovers(self) -> Iterator[tuple[str, float, TransferPlan, TransferPlan]]:
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
    best = bench.trial(library, bench.felt(library, own(library)))
    while True:
        trials = [bench.trial(*one) for one in extensions(best.transport, best.found, bench.seen(best.whole))]
        better = min(trials, key=lambda trial: trial.fit.information, default=best)
        # the best of several is good by chance too: the criterion extended for that (Chen and Chen 2008, gamma = 1)
        if better.fit.information + 2 * log(max(1, len(trials))) >= best.fit.information:
            return bench.calibrated(best)
        best = better


def seconds(plan: TransferPlan, cluster: Cluster) -> float:
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
class _Trial:
    """*parameters* of *transport*, as they began, and their *fit*."""

    transport: Transport
    parameters: tuple[Parameter, ...]
    fit: Fit

    @property
    def found(self) -> list[Parameter]:
        """The parameters at what was found."""
        return [p.times(float(factor)) for p, factor in zip(self.parameters, self.fit.parameters, strict=True)]

    @property
    def whole(self) -> Transport:
        """The transport with what was found."""
        return with_values(self.transport, self.found)


@dataclass(frozen=True)
class _Bench:
    """The measurements, and where the ranks were that made them."""

    measurements: tuple[Measurement, ...]
    cluster: Cluster
    devices: tuple[str, ...]

    def plans(self, transport: Transport) -> list[TransferPlan]:
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
            tried = (self.predicted(with_values(transport, [parameter.times(by)])) for by in (0.5, 2.0))
            return any(not np.allclose(as_is, one) for one in tried)

        return [parameter for parameter in parameters if moves(parameter)]

    def trial(self, transport: Transport, parameters: Sequence[Parameter]) -> _Trial:
        """*parameters* of *transport*, fitted."""

        def predict(factors: Vector) -> Vector:
            moved = (p.times(float(factor)) for p, factor in zip(parameters, factors, strict=True))
            return self.predicted(with_values(transport, moved))

        measured = np.array([one.seconds for one in self.measurements])
        return _Trial(transport, tuple(parameters), fit(predict, np.ones(len(parameters)), measured, LOOSELY))

    def seen(self, transport: Transport) -> Seen:
        """What the measurements show where *transport* is how they were made."""
        rates: dict[tuple[str, str], float] = {}
        for plan in sorted(self.plans(transport), key=lambda plan: plan.sent_bytes):
            flows = [flow.alone for phase in plan.phases for flow in phase.flows]
            rates[plan.algorithm, plan.protocol] = max(flows, default=1.0)
        rows = self.measurements
        return Seen(rates, min(one.seconds for one in rows), max(one.busbw for one in rows))

    def calibrated(self, best: _Trial) -> Calibrated:
        """What came of it; a parameter of which the measurements do not tell is left as the library has it."""
        rows = list(zip(best.parameters, best.found, best.fit.errors, strict=True))
        told = [Fitted(found, float(error)) for _, found, error in rows if error < UNTOLD * LOOSELY]
        untold = [begun for begun, _, error in rows if error >= UNTOLD * LOOSELY]
        whole = with_values(best.transport, [*untold, *(one.parameter for one in told)])
        plans = tuple(self.plans(whole))
        times = tuple(seconds(plan, self.cluster) for plan in plans)
        return Calibrated(whole, tuple(told), self.measurements, plans, times, best.fit)
