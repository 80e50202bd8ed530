"""The placement of the measured ranks: on a known cluster, or on an unknown one to be fitted.

An unknown cluster is taken to be a crossbar. Its ports have the measured bandwidth and no latency, so all latency is
the library's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from scenarios.scenario import Scenario
from simulator.cluster import Cluster
from simulator.errors import CalibrationError
from simulator.network.transport.group_properties import NET
from simulator.network.transport.transport import Transport
from simulator.replay.calibration.calibrate import Calibrated, calibrate
from simulator.replay.calibration.measurement import Measurement, undisturbed
from simulator.units import show
from topologies.uniform import uniform

WIRE = ("efficiency", NET)
"""The parameter by which the bandwidth of an unknown cluster is fitted."""


@dataclass(frozen=True)
class RankPlacement:
    """*ranks* on *devices* of *cluster*. If *cluster* is None, on ports of a crossbar."""

    ranks: int
    cluster: Cluster | None = None
    devices: tuple[str, ...] = ()

    @classmethod
    def of(cls, scenario: Scenario) -> RankPlacement:
        """Return the placement on the cluster of *scenario*, one rank on each of the GPUs that it uses."""
        devices = tuple(scenario.derived.devices)
        return cls(len(devices), scenario.cluster(), devices)

    def of_ranks(self, ranks: int) -> RankPlacement:
        """Return the placement of the first *ranks* ranks."""
        return replace(self, ranks=ranks, devices=self.devices[:ranks])

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return a pair of ranks for each distinct route from rank 0 to another rank."""
        if self.cluster is None or self.ranks < 2:
            return ((0, 1),)
        by_route: dict[tuple[int, ...], tuple[int, int]] = {}
        for peer in range(1, self.ranks):
            route = self.cluster.route(self.devices[0], self.devices[peer])
            by_route.setdefault(tuple(map(self.cluster.link_class, route)), (0, peer))
        return tuple(by_route.values())


@dataclass(frozen=True)
class Outcome:
    """The *calibrated* parameters of *library*. *section*: the ``cluster:`` of an unknown cluster, else None.

    *transport* and *errors* (relative standard errors by dotted key) are as in the file. *disturbed*: rows that took
    longer than rows of more bytes, and were left out of the fit.
    """

    library: Transport
    calibrated: Calibrated
    transport: Transport
    section: dict[str, Any] | None
    errors: dict[str, float]
    disturbed: tuple[Measurement, ...] = ()


def outcome(measurements: Sequence[Measurement], placement: RankPlacement, library: Transport) -> Outcome:
    """Fit *library* to *measurements* of ranks at *placement*. Raises `CalibrationError` if they determine nothing."""
    if not measurements:
        raise CalibrationError("nothing was measured")
    kept = undisturbed(measurements)
    return replace(_fitted(kept, placement, library), disturbed=tuple(one for one in measurements if one not in kept))


def _fitted(measurements: Sequence[Measurement], placement: RankPlacement, library: Transport) -> Outcome:
    if placement.cluster is not None:
        found = calibrate(measurements, placement.cluster, placement.devices, library)
        return Outcome(library, found, found.transport, None, _errors(found))
    share = library.efficiency.get(NET, 1.0)
    start = replace(library, efficiency={**library.efficiency, NET: share})
    widest = max(one.busbw for one in measurements) / share
    crossbar = uniform(placement.ranks, widest, 0.0, hosts=0)
    found = calibrate(measurements, crossbar, crossbar.gpus, start)
    bandwidth = widest * found.transport.efficiency[NET] / share
    section = {
        "preset": "uniform",
        "gpus": placement.ranks,
        "bandwidth": show(bandwidth, "bandwidth", 6),
        "latency": "0 s",
    }
    errors = {"cluster.bandwidth" if key == dotted(WIRE) else key: error for key, error in _errors(found).items()}
    return Outcome(library, found, replace(found.transport, efficiency=library.efficiency), section, errors)


def dotted(key: tuple[str, Any]) -> str:
    """Return the key of the entry *key* of a transport in a calibration file.

    >>> dotted(("hop_latency", ("NET", "ring", "tcp")))
    'transport.hop_latency.NET.ring.tcp'
    """
    from simulator.network.transport.parameters import path

    name, entry = key
    return ".".join(["transport", name, *(path(entry) if entry is not None else ())])


def _errors(found: Calibrated) -> dict[str, float]:
    return {dotted(key): one.error for one in found.parameters for key, _ in one.parameter.entries}
