"""Calibration of communication: placement of the measured ranks, outcome of the fit, its file and report.

An unknown cluster is taken to be a crossbar: its ports have the measured bandwidth and no latency, so all latency is
the library's.

An unknown cluster is taken to be a crossbar. Its ports have the measured bandwidth and no latency, so all latency is
the library's.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.library.transport_parameters import UNITS, difference
from clustersim.simulator.network.plan import TransferPlan
from clustersim.simulator.network.transport import NET, Transport
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.reading.files import write_text
from clustersim.simulator.reading.plain_text import indented, table
from clustersim.simulator.reading.units import show
from clustersim.simulator.reading.yaml_and_json import yaml_text
from clustersim.simulator.replay.measurements import SEND, Measurement, undisturbed
from clustersim.simulator.replay.transport_fit import Calibrated, Fitted, calibrate
from clustersim.topologies.uniform_and_tree import uniform

WIRE = ("efficiency", NET)
"""The parameter by which the bandwidth of an unknown cluster is fitted."""


@dataclass(frozen=True)
class RankPlacement:
    """*ranks* on *devices* of *cluster*. If *cluster* is None, on ports of a crossbar."""

    ranks: int
    cluster: Cluster | None = None
    devices: Sequence[str] = ()

    @classmethod
    def of(cls, scenario: Scenario) -> RankPlacement:
        """Return the placement on the cluster of *scenario*, one rank on each of the GPUs that it uses."""
        devices = scenario.derived.devices
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
class CalibrationOutcome:
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


def outcome(measurements: Sequence[Measurement], placement: RankPlacement, library: Transport) -> CalibrationOutcome:
    """Fit *library* to *measurements* of ranks at *placement*. Raises `CalibrationError` if they determine nothing."""
    if not measurements:
        raise CalibrationError("nothing was measured")
    kept = undisturbed(measurements)
    return replace(_fitted(kept, placement, library), disturbed=tuple(one for one in measurements if one not in kept))


def _fitted(measurements: Sequence[Measurement], placement: RankPlacement, library: Transport) -> CalibrationOutcome:
    if placement.cluster is not None:
        found = calibrate(measurements, placement.cluster, placement.devices, library)
        return CalibrationOutcome(library, found, found.transport, None, _errors(found))
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
    return CalibrationOutcome(library, found, replace(found.transport, efficiency=library.efficiency), section, errors)


def dotted(key: tuple[str, Any]) -> str:
    """Return the key of the entry *key* of a transport in a calibration file.

    >>> dotted(("hop_latency", ("NET", "ring", "tcp")))
    'transport.hop_latency.NET.ring.tcp'
    """
    from clustersim.simulator.network.library.transport_parameters import path

    name, entry = key
    return ".".join(["transport", name, *(path(entry) if entry is not None else ())])


def _errors(found: Calibrated) -> dict[str, float]:
    return {dotted(key): one.error for one in found.parameters for key, _ in one.parameter.entries}


def contents(outcome: CalibrationOutcome, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the file for *outcome*, as plain data. *provenance*: how it was measured."""
    library, calibrated = outcome.library, outcome.calibrated
    version = {"library_version": library.version} if library.version else {}
    section = {"cluster": outcome.section} if outcome.section else {}
    errors = {
        "rows": len(calibrated.measurements),
        "median_error": _rounded(calibrated.fit.typical_error),
        "worst_error": _rounded(worst(outcome)),
    }
    return {
        "version": 1,
        "library": library.name,
        **version,
        "transport": difference(library, outcome.transport),
        **section,
        "uncertainty": {key: _rounded(error) for key, error in outcome.errors.items()},
        "provenance": {**provenance, **errors},
    }


def worst(outcome: CalibrationOutcome) -> float:
    """Return the largest relative error of a row, in absolute value."""
    calibrated = outcome.calibrated
    return max(abs(s / m.seconds - 1) for m, s in zip(calibrated.measurements, calibrated.seconds, strict=True))


def provenance(backend: str, ranks: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the date and the ranks of a measurement. Of the machine it names only what other machines may share."""
    import torch

    machine = {"date": datetime.now(UTC).date().isoformat(), "backend": backend, "ranks": ranks}
    return {**machine, "torch": str(torch.__version__), "processor": platform.machine(), **more}


def elsewhere(ranks: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the date of a fit to earlier measurements of *ranks*."""
    return {"date": datetime.now(UTC).date().isoformat(), "ranks": ranks, **more}


def write(data: Mapping[str, Any], path: Path) -> None:
    """Write *data* as YAML to *path*, with missing folders."""
    write_text(path, yaml_text(dict(data)))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


HEADER = (
    ["size", "time", "algbw", "busbw", "spread", "fitted", "error", "algorithm", "protocol"],
    ["(B)", "(us)", "(GB/s)", "(GB/s)", "(%)", "(us)", "(%)", "", ""],
)


BUSY = 0.5
"""Median spread of the rows above which the machine was busy; on idle cores it is below 0.2."""

RANGES = (("up to 8 KiB", 0.0, 2.0**13), ("8 KiB to 1 MiB", 2.0**13, 2.0**20), ("above 1 MiB", 2.0**20, inf))
"""Ranges of sizes, bytes: bound by latency, between, and bound by bandwidth on common links."""

POOR = 0.25
"""Median error of a range of sizes from which the fit does not follow it; NCCL's measured sweeps are below 0.1."""


def calibration_report(outcome: CalibrationOutcome) -> str:
    """Return the whole report."""
    sections = [*_tables(outcome), _parameters(outcome), *_crossovers(outcome), _summary(outcome)]
    return "\n\n".join(sections)


def how_to_use(outcome: CalibrationOutcome, output: object, cluster: bool) -> str:
    """Return how a scenario takes the file *output*; *cluster*: whether the file has a cluster from an inventory."""
    own = "" if outcome.section is None and not cluster else f"cluster: {{preset: {output}}}"
    lines = [f"next: clustersim run SCENARIO --set network.transport={output}"]
    if own:
        lines.append(f"or on the measured cluster, in a scenario: {own} and network: {{transport: {output}}}")
    if outcome.section is not None:
        lines.append(
            f"cluster.bandwidth, {outcome.section['bandwidth']}, is that of this cluster alone; a preset such as "
            "dgx_a100_80gb keeps the bandwidths of its own links"
        )
    return "\n".join(lines)


def _tables(outcome: CalibrationOutcome) -> Iterator[str]:
    found = outcome.calibrated
    rows = list(zip(found.measurements, found.plans, found.seconds, strict=True))
    for kind, ranks in dict.fromkeys((one.kind, one.ranks) for one in found.measurements):
        mine = [_row(*row) for row in rows if (row[0].kind, row[0].ranks) == (kind, ranks)]
        yield f"{_name(kind, ranks)}\n" + indented(table([*HEADER[1:], *mine], HEADER[0], "rrrrrrrll"))


def _name(kind: str, ranks: Sequence[int]) -> str:
    return f"send from rank {ranks[0]} to {ranks[1]}" if kind == SEND else f"{kind} of {len(ranks)} ranks"


def _row(one: Measurement, plan: TransferPlan, seconds: float) -> list[str]:
    return [
        f"{one.nbytes:.0f}",
        f"{one.seconds * 1e6:.4g}" if one.seconds < 1e-2 else f"{one.seconds * 1e6:.0f}",
        f"{one.algbw / 1e9:.2f}",
        f"{one.busbw / 1e9:.2f}",
        f"{one.spread * 100:.0f}" if one.spread else "",
        f"{seconds * 1e6:.4g}" if seconds < 1e-2 else f"{seconds * 1e6:.0f}",
        f"{100 * (seconds / one.seconds - 1):+.1f}",
        plan.algorithm,
        plan.protocol,
    ]


def _parameters(outcome: CalibrationOutcome) -> str:
    rows = [_parameter(outcome, one) for one in outcome.calibrated.parameters]
    return "parameters\n" + indented(table(rows, ["", outcome.library.name, "fitted", "+-"], "lrrr"))


def _parameter(outcome: CalibrationOutcome, one: Fitted) -> list[str]:
    key, more = one.parameter.name, len(one.parameter.entries) - 1
    name = dotted(key)
    error = f"{one.error:.1%}"
    if name not in outcome.errors and outcome.section is not None:
        return ["cluster.bandwidth", "", outcome.section["bandwidth"], error]
    also = f" and {more} with it" if more else ""
    values = [written(transport, key) for transport in (outcome.library, outcome.transport)]
    return [name.removeprefix("transport.") + also, *values, error]


def _crossovers(outcome: CalibrationOutcome) -> Iterator[str]:
    lines = [
        f"{kind}: from {nbytes:.0f} B on {after.algorithm} {after.protocol}, below {before.algorithm} {before.protocol}"
        for kind, nbytes, before, after in outcome.calibrated.crossovers()
    ]
    if lines:
        yield "crossovers\n" + indented("\n".join(lines))


def _summary(outcome: CalibrationOutcome) -> str:
    fit, rows = outcome.calibrated.fit, outcome.calibrated.measurements
    text = (
        f"{len(rows)} rows: median error {fit.typical_error:.1%}, worst {worst(outcome):.1%};"
        f" robust standard deviation {fit.scale:.1%}"
    )
    return "\n".join([text, *_doubts(outcome)])


def _doubts(outcome: CalibrationOutcome) -> Iterator[str]:
    """Yield what makes the fit less sure: rows left out, and other work on the machine while it was measured."""
    left_out = [f"{one.kind} of {one.nbytes:.0f} B ({show(one.seconds, 'time', 3)})" for one in outcome.disturbed]
    if left_out:
        yield f"left out, since more bytes took less time: {', '.join(left_out)}"
    every = (*outcome.calibrated.measurements, *outcome.disturbed)
    spreads = [one.spread for one in every if one.spread]
    busy = float(median(spreads)) if spreads else 0.0
    if busy > BUSY:
        yield (
            f"not sure: other work disturbed the ranks, and the median batch took {1 + busy:.1f} times as long as the "
            "shortest; measure again on an idle machine, or with a longer --budget"
        )
    once = len(every) - len(spreads)
    if spreads and once:
        # measurements of files have no spread at all
        yield f"{once} rows were measured in one batch only, for lack of time; give a longer --budget"
    yield from _by_size(outcome)


def _by_size(outcome: CalibrationOutcome) -> Iterator[str]:
    """Yield the errors by range of sizes, and which ranges the fit does not follow."""
    rows = zip(outcome.calibrated.measurements, outcome.calibrated.seconds, strict=True)
    sized = [(one.nbytes, abs(seconds / one.seconds - 1)) for one, seconds in rows]
    ranges = {name: [error for nbytes, error in sized if low < nbytes <= high] for name, low, high in RANGES}
    ranges = {name: errors for name, errors in ranges.items() if errors}
    if len(ranges) > 1:
        told = [f"{name} median {median(errors):.0%}, worst {max(errors):.0%}" for name, errors in ranges.items()]
        yield f"errors by size: {'; '.join(told)}"
    poor = [name for name, errors in ranges.items() if median(errors) > POOR]
    if poor:
        yield (
            f"not sure {' and '.join(poor)}: one latency and one bandwidth do not follow all sizes; "
            "fit only the sizes that the scenario sends (-b and -e measure no others)"
        )


def written(transport: Transport, key: tuple[str, Any]) -> str:
    """Return the entry *key* of *transport* as in a file; empty if there is none."""
    name, entry = key
    value = getattr(transport, name) if entry is None else getattr(transport, name).get(entry)
    if value is None:
        return ""
    return show(value, UNITS[name][1]) if name in UNITS else f"{value:.4g}"
