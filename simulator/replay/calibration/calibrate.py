"""Calibration fits the parameters of a transport to measurements, through the same plans that the simulator makes.

The free parameters are those of the library that change a measurement. Further parameters are added one by one while
Bayes' information criterion justifies them.
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
from simulator.replay.calibration.parameters import Observed, Parameter, extensions, library_parameters, with_values
from simulator.replay.calibration.regression import Fit, Vector, fit

PRIOR_DEVIATION = log(10.0)
"""Standard deviation of the logarithm of a machine's value about the library's: a factor of ten."""

UNDETERMINED = 0.7
"""A parameter whose error is this share of `PRIOR_DEVIATION` or more was not measured. The library's value stays."""


@dataclass(frozen=True)
class Fitted:
    """A *parameter* with its fitted value, and its relative standard *error*."""

    parameter: Parameter
    error: float


@dataclass(frozen=True)
class Calibrated:
    """The *transport* with the fitted *parameters*, and for each of *measurements* the plan and its *seconds*."""

    transport: Transport
    parameters: tuple[Fitted, ...]
    measurements: tuple[Measurement, ...]
    plans: tuple[TransferPlan, ...]
    seconds: tuple[float, ...]
    fit: Fit

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


def calibrate(
    measurements: Sequence[Measurement], cluster: Cluster, devices: Sequence[str], library: Transport
) -> Calibrated:
    """Return *library* with the parameters that fit *measurements* best. Ranks are on *devices* of *cluster*.

    Raises `CalibrationError` if there is nothing to fit.
    """
    bench = _Bench(tuple(measurements), cluster, tuple(devices))
    best = bench.trial(library, bench.sensitive(library, library_parameters(library)))
    while True:
        trials = [bench.trial(*one) for one in extensions(best.transport, best.found, bench.observed(best.whole))]
        better = min(trials, key=lambda trial: trial.fit.information, default=best)
        # the best of several trials is partly good by chance: extended criterion (Chen and Chen 2008, gamma = 1)
        if better.fit.information + 2 * log(max(1, len(trials))) >= best.fit.information:
            return bench.calibrated(best)
        best = better


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
        for link, weight in zip(flow.links, flow.weights, strict=True):
            taken[link] = taken.get(link, 0.0) + weight * phase.nbytes
    return max([slowest, *(nbytes / cluster.links[link].bandwidth for link, nbytes in taken.items())])


@dataclass(frozen=True)
class _Trial:
    """*parameters* of *transport* at their start, and their *fit*."""

    transport: Transport
    parameters: tuple[Parameter, ...]
    fit: Fit

    @property
    def found(self) -> list[Parameter]:
        """The parameters at their fitted values."""
        return [p.times(float(factor)) for p, factor in zip(self.parameters, self.fit.parameters, strict=True)]

    @property
    def whole(self) -> Transport:
        """The transport with the fitted values."""
        return with_values(self.transport, self.found)


@dataclass(frozen=True)
class _Bench:
    """The measurements, and the devices of their ranks."""

    measurements: tuple[Measurement, ...]
    cluster: Cluster
    devices: tuple[str, ...]

    def plans(self, transport: Transport) -> list[TransferPlan]:
        """The simulator's plan for each measurement."""
        communicator = Communicator(self.cluster, self.devices, transport)
        return [
            communicator.send(one.ranks[0], one.ranks[1], one.nbytes)
            if one.kind == SEND
            else communicator.collective(one.kind, "all", one.ranks, one.nbytes)
            for one in self.measurements
        ]

    def predicted(self, transport: Transport) -> Vector:
        """The seconds of each measurement according to *transport*."""
        return np.array([seconds(plan, self.cluster) for plan in self.plans(transport)])

    def sensitive(self, transport: Transport, parameters: Iterable[Parameter]) -> list[Parameter]:
        """Those of *parameters* that change the time of a measurement when halved or doubled."""
        as_is = self.predicted(transport)

        def moves(parameter: Parameter) -> bool:
            tried = (self.predicted(with_values(transport, [parameter.times(by)])) for by in (0.5, 2.0))
            return any(not np.allclose(as_is, one) for one in tried)

        return [parameter for parameter in parameters if moves(parameter)]

    def trial(self, transport: Transport, parameters: Sequence[Parameter]) -> _Trial:
        """Fit *parameters* of *transport*."""

        def predict(factors: Vector) -> Vector:
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
