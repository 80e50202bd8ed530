"""Fit of an accelerator's catalogue entry to measurements of a device, by the simulator's own prices.

For a GPU of the catalogue the peaks of the data sheet stay, and efficiencies are fitted. For any other device the best
measured rate is the peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np

from simulator.accelerator import Accelerator, Software
from simulator.errors import CalibrationError
from simulator.kernel import matmul
from simulator.replay.calibration.measured_device import Device, Transfer
from simulator.replay.calibration.regression import Fit, Vector, fit

PRIOR_DEVIATION = log(3.0)
"""Standard deviation of the logarithm of a device's values about the first estimates: a factor of three."""

K_HALF = 64.0
"""Start of the search for k_half: the inner steps of a tile's first load (topologies/gpus)."""

CACHED = 100e6
"""Bytes: twice the largest cache of a GPU, and more than that of common processors (H100 data sheet: 50 MB of L2)."""


@dataclass(frozen=True)
class Entry:
    """The *accelerator*, the relative standard *errors* of the fitted values by name, and the *fit* of the products."""

    accelerator: Accelerator
    errors: dict[str, float]
    fit: Fit


@dataclass(frozen=True)
class LinkFit:
    """A transfer takes *latency* (s) plus its bytes over *bandwidth* (bytes/s).

    *errors*: relative standard errors of both.
    """

    latency: float
    bandwidth: float
    errors: tuple[float, float]


def entry(device: Device, known: Accelerator | None = None) -> Entry:
    """Return the accelerator that prices the measurements of *device* best.

    *known*: the catalogue's accelerator, if any.
    """
    reached, memory_error = _memory(device, known)
    base = known or _unknown(device)
    bandwidth = base.memory_bandwidth if known else reached
    base = replace(base, memory_bandwidth=bandwidth, memory_efficiency=reached / bandwidth)
    host = Software(launch_seconds=device.launch)
    precisions = tuple(dict.fromkeys(product.precision for product in device.products))

    def made(values: Vector) -> Accelerator:
        peaks = {p: base.peak(p) * float(f) for p, f in zip(precisions, values, strict=False)}
        changed = {"matmul_efficiency": float(values[0]) * base.matmul_efficiency} if known else {"peak_flops": peaks}
        return replace(base, **changed, **({"k_half": float(values[-1]) * K_HALF} if base.sms else {}))  # type: ignore[arg-type]

    def predict(values: Vector) -> Vector:
        accelerator = made(values)
        return np.array(
            [accelerator.seconds([matmul(*one.shape, precision=one.precision)], host) for one in device.products]
        )

    count = (1 if known else len(precisions)) + bool(base.sms)
    found = fit(predict, np.ones(count), np.array([one.seconds for one in device.products]), PRIOR_DEVIATION)
    names = (["matmul_efficiency"] if known else [f"peak_flops.{p}" for p in precisions]) + ["k_half"] * bool(base.sms)
    errors = dict(zip(names, map(float, found.errors), strict=True))
    errors["memory_efficiency" if known else "memory_bandwidth"] = memory_error
    return Entry(made(found.parameters), errors, found)


def _memory(device: Device, known: Accelerator | None) -> tuple[float, float]:
    """bytes/s of copies too large for a cache, apart from the launch, and the relative standard error.

    Without copies those of the *known* accelerator stay.
    """
    if known is not None and not device.copies:
        return known.memory_bandwidth * known.memory_efficiency, PRIOR_DEVIATION
    large = [one for one in device.copies if one.nbytes > CACHED] or device.copies
    if not large:
        raise CalibrationError("no copies were measured")
    nbytes, seconds = np.array([one.nbytes for one in large]), np.array([one.seconds for one in large])
    start = np.array([float((nbytes / seconds).max())])
    found = fit(lambda values: device.launch + nbytes / values[0], start, seconds, PRIOR_DEVIATION)
    return float(found.parameters[0]), float(found.errors[0])


def fit_link(transfers: Sequence[Transfer]) -> LinkFit:
    """Return the latency and bandwidth that fit *transfers*. Raises `CalibrationError`."""
    if not transfers:
        raise CalibrationError("no transfers were measured")
    nbytes = np.array([one.nbytes for one in transfers])
    seconds = np.array([one.seconds for one in transfers])
    start = np.array([seconds.min(), (nbytes / seconds).max()])
    found = fit(lambda values: values[0] + nbytes / values[1], start, seconds, PRIOR_DEVIATION)
    latency, bandwidth = map(float, found.parameters)
    return LinkFit(latency, bandwidth, (float(found.errors[0]), float(found.errors[1])))


def _unknown(device: Device) -> Accelerator:
    """An accelerator whose peaks are the best measured rates."""
    best: dict[str, float] = {}
    for one in device.products:
        best[one.precision] = max(best.get(one.precision, 0.0), one.flops / one.seconds)
    if not best:
        raise CalibrationError("no products were measured")
    more = {"memory_bytes": device.memory} if device.memory else {}
    return Accelerator(device.name, best, sms=device.sms or 0, k_half=K_HALF if device.sms else 0.0, **more)
