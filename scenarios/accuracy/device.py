"""A device in a calibration file: an accelerator's entry, its link to the host, the cost of a launch; and the ranks
that measure, with what is kept if they break off.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from clustersim.scenarios.accuracy.communication import RankPlacement
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import CalibrationError, ReplayError, ScenarioError
from clustersim.simulator.reading.files import write_text
from clustersim.simulator.reading.lookup import module
from clustersim.simulator.reading.plain_text import indented, table
from clustersim.simulator.reading.units import show
from clustersim.simulator.reading.validation import listed, near
from clustersim.simulator.replay.accelerator_fit import Entry, LinkFit, entry, fit_link
from clustersim.simulator.replay.launch import TIMEOUT, launch, under_torchrun
from clustersim.simulator.replay.measurements import MEASURED, SEND, Measurement, SizeSweep, sizes
from clustersim.simulator.replay.rank_process import INSTALL, NetworkPlace
from clustersim.simulator.schedule.ops import COLLECTIVES
from clustersim.topologies.catalogue import GPUS, IN_STEPS, device
from clustersim.topologies.inventory import gpu_called

if TYPE_CHECKING:
    from clustersim.simulator.replay.measurements import DeviceMeasurements, TimedProduct

EAGER = "ddp_sdpa_2026"
"""The stack whose launch is measured: eager PyTorch, of now."""


@dataclass(frozen=True)
class MeasuredDevice:
    """A measured *device*, its *entry*, the catalogue's *preset* for it, and its link to the *host*.

    *alone*: products were not measured in steps.
    """

    device: DeviceMeasurements
    entry: Entry
    preset: str | None
    host: LinkFit | None
    alone: bool = False


def fitted(measured: DeviceMeasurements) -> MeasuredDevice:
    """Fit an entry to *measured*, on that of the catalogue if it has the device."""
    preset = gpu_called(measured.name)
    known = device(GPUS, preset).accelerator() if preset else None
    both = (*measured.to_host, *measured.to_device)
    return MeasuredDevice(measured, entry(measured, known), preset, fit_link(both) if both else None)


def in_steps(found: MeasuredDevice) -> MeasuredDevice:
    """Return *found*, whose products were measured alone, with the efficiencies of products in steps, as the catalogue
    has them; unchanged if it is no GPU."""
    made = found.entry.accelerator
    if not made.sms:
        return found
    slower = {name: IN_STEPS * share for name in SHARES if (share := getattr(made, name)) is not None}
    return replace(found, entry=replace(found.entry, accelerator=replace(made, **slower)), alone=True)


SHARES = ("matmul_efficiency", "fp32_efficiency")
"""The measured shares of a peak. That of products in 8 bits is not measured."""


def contents(found: MeasuredDevice, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the calibration file, as plain data."""
    host = {"host": host_section(found)} if found.host else {}
    residuals = np.abs(np.expm1(found.entry.fit.residuals))
    errors = {"products": len(residuals), "median_error": _rounded(np.median(residuals))}
    return {
        "version": 1,
        "accelerator": section(found),
        **host,
        **software_section(found),
        "uncertainty": {f"accelerator.{key}": _rounded(error) for key, error in found.entry.errors.items()},
        "provenance": {**provenance, **errors},
    }


def section(found: MeasuredDevice) -> dict[str, Any]:
    """Return the accelerator's entry, in the form of the catalogue's files."""
    made = found.entry.accelerator
    k_half = {"k_half": _rounded(made.k_half)} if made.sms else {}
    if found.preset:
        fitted = {name: _rounded(getattr(made, name)) for name in found.entry.errors}
        return {"preset": found.preset} | {
            name: min(1.0, value) if name.endswith("efficiency") else value for name, value in fitted.items()
        }
    if made.matmul_efficiency < 1:
        k_half["matmul_efficiency"] = _rounded(made.matmul_efficiency)
    if "unaligned_efficiency" in found.entry.errors:
        k_half["unaligned_efficiency"] = min(1.0, _rounded(made.unaligned_efficiency))
    memory = {"memory": show(found.device.memory, "size", 6)} if found.device.memory else {}
    sms = {"sms": made.sms} if made.sms else {}
    precisions = dict.fromkeys(one.precision for one in found.device.products)
    data = {
        "peak_flops": {precision: show(made.peak(precision), "rate", 4) for precision in precisions},
        **memory,
        "memory_bandwidth": show(made.memory_bandwidth, "bandwidth", 4),
        **sms,
        **k_half,
    }
    return {"name": found.device.name, **data, "sources": {key: _source(key) for key in data}}


def _source(key: str) -> str:
    return "reported by the device" if key in ("memory", "sms") else "measured, see provenance"


def software_section(found: MeasuredDevice) -> dict[str, Any]:
    """Return the ``software`` section: a stack of the catalogue with the measured cost of a launch."""
    launch = {"launch": show(found.device.launch, "time", 3), "source": "launch: measured, see provenance"}
    return {"software": {"name": "measured", "preset": EAGER, **launch}}


def host_section(found: MeasuredDevice) -> dict[str, Any]:
    """Return the ``host`` link of a node as measured. Its kind is the accelerator's bus."""
    assert found.host is not None
    bus = (device(GPUS, found.preset).bus if found.preset else None) or "pcie4"
    latency, bandwidth = show(found.host.latency, "time", 3), show(found.host.bandwidth, "bandwidth", 4)
    return {"kind": bus, "bandwidth": bandwidth, "latency": latency}


def device_report(found: MeasuredDevice) -> str:
    """Return the report: measured products and copies beside the fitted times."""
    made, measured = found.entry.accelerator, found.device
    errors = dict(zip(found.entry.products, np.exp(found.entry.fit.residuals), strict=True))
    rows = [[*_measured(one), *_fitted(one, errors.get(one))] for one in measured.products]
    products = table(rows, ["", "m x n x k", "time", "rate", "fitted", "error"], "lr")
    copies = [[show(c.nbytes, "size", 3), show(c.nbytes / c.seconds, "bandwidth", 3)] for c in measured.copies]
    lines = [
        f"memory: {show(made.memory_bandwidth * made.memory_efficiency, 'bandwidth', 4)}",
        f"launch: {show(measured.launch, 'time', 3)} of the host for each kernel of eager training",
    ]
    lines += [f"{key}: +- {error:.1%}" for key, error in found.entry.errors.items()]
    if made.sms and found.alone:
        lines.append(f"products in steps: {IN_STEPS} of the rate alone, as measured on A100s")
    if found.host:
        lines.append("host: " + ", ".join(f"{k} {v}" for k, v in host_section(found).items()))
    sections = [f"{measured.name}\n{indented(products)}"]
    if copies:
        sections.append("copies\n" + indented(table(copies, ["read and written", "rate"], "r")))
    return "\n\n".join([*sections, "\n".join(lines)])


def _measured(product: TimedProduct) -> list[str]:
    rate = show(product.flops / product.seconds, "rate", 3)
    return [product.precision, " x ".join(map(str, product.shape)), show(product.seconds, "time", 3), rate]


def _fitted(product: TimedProduct, ratio: float | None) -> list[str]:
    """Return the fitted time and its error; *ratio*: fitted over measured, None if the product was not fitted."""
    if ratio is None:
        return ["shorter than a launch", ""]
    return [show(product.seconds * ratio, "time", 3), f"{100 * (ratio - 1):+.1f} %"]


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


OnMeasurement = Callable[[Measurement], None]


class BrokenCalibrationError(CalibrationError):
    """Ranks that broke off. *measurements*: those made until then."""

    def __init__(self, message: str, measurements: Sequence[Measurement]) -> None:
        self.measurements = tuple(measurements)
        super().__init__(message)


def measured(
    sweep: SizeSweep,
    ranks: int,
    *,
    backend: str = "gloo",
    places: Sequence[NetworkPlace] | None = None,
    timeout: float = TIMEOUT,
    on_measurement: OnMeasurement = lambda one: None,
) -> list[Measurement] | None:
    """Return the measurements of *sweep* by *ranks* at *places* (default: on the loopback interface), within *timeout*
    s.

    *on_measurement* is called with each measurement as it is made, and again when a later visit improves it.
    Under torchrun rank 0 gets them, the others None.
    Raises `BrokenCalibrationError`.
    """
    measure = _torch("measure_communication").measure
    made: dict[tuple[str, tuple[int, ...], float], Measurement] = {}

    def on_report(_rank: int, one: Measurement) -> None:
        made[one.kind, one.ranks, one.nbytes] = one  # a later visit to a case knows more
        on_measurement(one)

    try:
        results = launch(measure, [sweep] * ranks, backend=backend, places=places, timeout=timeout, on_report=on_report)
    except ReplayError as error:
        raise BrokenCalibrationError(str(error), list(made.values())) from None
    except KeyboardInterrupt:
        if not made:
            raise
        raise BrokenCalibrationError("interrupted", list(made.values())) from None
    return None if results is None else list(results[0])


def measured_device(name: str) -> DeviceMeasurements:
    """Measure the device that torch calls *name*. Raises `CalibrationError`."""
    found: DeviceMeasurements = _torch("measure_device").measure_device(name)
    return found


def _torch(name: str) -> ModuleType:
    """A module of the validator that needs torch."""
    try:
        return module(f"clustersim.simulator.replay.{name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise CalibrationError(INSTALL) from None


def with_rows_kept(error: BrokenCalibrationError, path: Path, backend: str) -> CalibrationError:
    """Write the measurements of *error* beside *path*, the requested file; return an error that names the file."""
    if not error.measurements:
        return CalibrationError(f"{error}; nothing had been measured")
    rows = keep(error.measurements, path, backend)
    many = len(error.measurements)
    return CalibrationError(
        f"{error}; {many} measurement{'s' if many > 1 else ''} kept: clustersim calibrate --from {rows} fits them"
    )


def keep(measurements: Sequence[Measurement], path: Path, backend: str) -> Path:
    """Write *measurements* beside the calibration file at *path*, as JSON that ``--from`` reads.

    Return the new path.
    """
    rows = path.with_suffix(".rows.json")
    lines = ",\n".join(json.dumps(asdict(one)) for one in measurements)
    head = json.dumps({"version": 1, "backend": backend})[:-1]
    write_text(rows, f'{head}, "measurements": [\n{lines}\n]}}\n')
    return rows


FACTORS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
"""Factors of the letters after a number of bytes, as in nccl-tests (parsesize, src/common.cu)."""


def placement(scenarios: Sequence[str], ranks: int | None, settings: list[str] | None) -> RankPlacement:
    """Return the placement of the ranks: on the cluster of the one of *scenarios*, or on an unknown one."""
    if len(scenarios) > 1:
        raise ScenarioError(f"calibrate takes one scenario, not {len(scenarios)}; files follow --from")
    if not scenarios:
        return RankPlacement(int(os.environ["WORLD_SIZE"]) if under_torchrun() else ranks or 2)
    whole = RankPlacement.of(Scenario.load(scenarios[0], options=settings))
    if ranks is not None and ranks > whole.ranks:
        raise ScenarioError(f"--ranks {ranks}: the scenario has {whole.ranks}")
    return whole.of_ranks(ranks or whole.ranks)


def span(begin: str, end: str, factor: int) -> tuple[int, ...]:
    """Return the sizes from *begin* to *end*, in bytes."""
    least, largest = _bytes("--begin", begin), _bytes("--end", end)
    if largest < least:
        raise ScenarioError(f"--end {end}: must be at least --begin, {begin}")
    return sizes(least, largest, factor)


def _bytes(option: str, text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)B?", text.upper())
    if not match or not int(match[1]):
        raise ScenarioError(f"{option} {text}: must be bytes, e.g. 8, 64K or 128M (powers of two, as in nccl-tests)")
    return int(match[1]) * FACTORS[match[2]]


def check_budget(seconds: float) -> None:
    """Raise `ScenarioError` unless *seconds* are time in which something can be measured."""
    if not 0 < seconds < float("inf"):
        raise ScenarioError(f"--budget {seconds:g}: must be above 0, and finite")


def kinds(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return *names* of collectives and ``send``; the default ones if none is given."""
    known = (SEND, *COLLECTIVES)
    for name in names or ():
        if name not in known:
            hint = near(name, known)
            raise ScenarioError(f"--kind {name}: must be {listed(known)}" + (f"; {hint}" if hint else ""))
    return tuple(names or MEASURED)


@contextmanager
def places(placement: RankPlacement, testbed: bool) -> Iterator[tuple[RankPlacement, tuple[NetworkPlace, ...] | None]]:
    """Yield the placement as built, and the places of its ranks; None for ranks on the loopback interface."""
    if not testbed:
        yield placement, None
        return
    if placement.cluster is None:
        raise ScenarioError("--testbed builds the cluster of a scenario; name one")
    from clustersim.simulator.replay.testbed import build

    with build(placement.cluster, placement.devices) as built:
        yield replace(placement, cluster=built.cluster), built.places
