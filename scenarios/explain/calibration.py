"""A calibration from traces: the accelerator from kernel times by shape, the transport from collectives by size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from math import isnan
from pathlib import Path
from statistics import median
from typing import Any

from clustersim.scenarios.accuracy import communication, device
from clustersim.scenarios.accuracy.communication import (
    CalibrationOutcome,
    RankPlacement,
    calibration_report,
    how_to_use,
    outcome,
)
from clustersim.scenarios.real_traces.kernels_and_communications import sizes
from clustersim.scenarios.real_traces.pieces_of_work import COPY, PHASES, Piece
from clustersim.scenarios.real_traces.run import RealRun
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.analysis.metrics import BUS_FACTOR
from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.network.library.calibration_file import transport
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.replay.accelerator_fit import CACHED
from clustersim.simulator.replay.measurements import (
    SEND,
    DeviceMeasurements,
    Measurement,
    TimedCopy,
    TimedProduct,
)

ON_ONE_SERVER = 8
"""GPUs of a server at most: without a scenario, more ranks have a network between servers that no trace describes."""

LEAST_LAUNCH = 1e-7
"""Seconds of the host for a kernel at least. A trace with one kernel says nothing of it."""


def write(run: RealRun, scenario: Scenario | None, path: Path) -> str:
    """Write the calibration of *run* to *path*, and return its report. The ranks are on the cluster of *scenario*.

    Raises `CalibrationError` if the traces have neither matrix products with shapes nor collectives with sizes.
    """
    measured, network = measured_device(run), _network(run, scenario)
    origin = communication.elsewhere(
        run.world_size, {"from": [trace.path.name for trace in run.traces], "traces": "profiler"}
    )
    data: dict[str, Any] = {"version": 1}
    reports = []
    if measured is not None:
        fitted = device.fitted(measured)
        # durations on a GPU are without their launch, which is measured by itself
        fitted = replace(fitted, device=replace(measured, launch=launch(run)))
        data = _joined(data, device.contents(fitted, origin))
        reports.append(device.device_report(fitted))
    if network is not None:
        data = _joined(data, communication.contents(network, origin))
        reports.append(calibration_report(network))
    if not reports:
        raise CalibrationError(
            f"{run.traces[0].path}: has neither matrix products with shapes nor collectives with sizes of several "
            "ranks; record with record_shapes=True"
        )
    communication.write(data, path)
    use = how_to_use(network, path, False) if network is not None else f"next: node: {{accelerator: {path}}}"
    return "\n\n".join([*reports, f"wrote {path}\n{use}"])


def _joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return both contents of a calibration file as one."""
    both = {key: {**one[key], **other[key]} for key in ("uncertainty", "provenance") if key in one and key in other}
    return {**one, **other, **both}


def measured_device(run: RealRun) -> DeviceMeasurements | None:
    """Return the device of *run* as its kernels measure it; None without matrix products with shapes."""
    pieces = [piece for trace in run.traces for piece in trace.measured() if piece.part in PHASES]
    products = tuple(
        TimedProduct(precision, shape, seconds) for (precision, shape), seconds in _medians(pieces, _product).items()
    )
    if not products:
        return None
    copies = (TimedCopy(float(nbytes), seconds) for nbytes, seconds in _medians(pieces, _moved).items())
    beyond_caches = tuple(one for one in copies if one.nbytes > CACHED or not run.on_gpu)
    return DeviceMeasurements(run.traces[0].device or "cpu", products, beyond_caches, 0.0)


def _product(piece: Piece) -> object:
    if piece.shape is None or piece.shape[0] != 1 or piece.precision not in BYTES:
        return None
    return piece.precision, piece.shape[1:]


def _moved(piece: Piece) -> object:
    return piece.nbytes if piece.nbytes and piece.part != COPY else None


def _medians(pieces: list[Piece], key: Callable[[Piece], Any]) -> dict[Any, float]:
    """Return the median duration of *pieces* with equal *key*, s; those with the key None are left out."""
    found: dict[Any, list[float]] = defaultdict(list)
    for piece in pieces:
        if (of := key(piece)) is not None and piece.seconds > 0:
            found[of].append(piece.seconds)
    return {of: median(times) for of, times in found.items()}


def launch(run: RealRun) -> float:
    """Return the median time of the host from one launch to the next, s; from one operator to the next without GPU."""
    gaps = []
    for trace in run.traces:
        if run.on_gpu:
            moments = sorted(piece.launched for piece in trace.measured() if not isnan(piece.launched))
            gaps += [after - before for before, after in pairwise(moments)]
        else:
            own = [piece for piece in trace.measured() if piece.part in PHASES]
            gaps += [after.begin - before.end for before, after in pairwise(own) if after.begin >= before.end]
    return max(median(gaps) if gaps else 0.0, LEAST_LAUNCH)


def _network(run: RealRun, scenario: Scenario | None) -> CalibrationOutcome | None:
    """Return the transport as the communications of *run* measure it; None if their sizes are not known."""
    rows = list(_measurements(run))
    if not rows:
        return None
    if scenario is not None:
        placement = RankPlacement.of(scenario)
        if placement.ranks < run.world_size:
            raise CalibrationError(f"the run has {run.world_size} ranks, but {scenario.name} has {placement.ranks}")
    elif run.on_gpu and run.world_size > ON_ONE_SERVER:
        raise CalibrationError(
            f"the traces do not describe the network between the servers of {run.world_size} ranks; give a scenario on "
            "that cluster: --scenario SCENARIO"
        )
    else:
        placement = RankPlacement(run.world_size)
    return outcome(rows, placement, transport("nccl" if run.on_gpu else "gloo", placement.cluster))


def _measurements(run: RealRun) -> Iterator[Measurement]:
    """Yield the communications of *run* with known sizes. Their groups are taken as the first ranks."""
    for one in sizes(run.traces) if len(run.traces) > 1 else ():
        call = one.call
        kind = SEND if call.kind == "recv" else call.kind
        if call.nbytes and one.seconds > 0 and call.ranks > 1 and (kind in BUS_FACTOR or kind == SEND):
            yield Measurement(kind, tuple(range(call.ranks)), call.nbytes, one.seconds)
