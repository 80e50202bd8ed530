"""Fit of an accelerator's catalogue entry to measurements of a device, by the simulator's own prices.

For a GPU of the catalogue the peaks of the data sheet stay, and efficiencies are fitted. For any other device the best
measured rate is the peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, log

import numpy as np

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.kernel import Kernel, matmul
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.replay.measurements import DeviceMeasurements, TimedCopy, TimedProduct
from clustersim.simulator.replay.robust_regression import Array, RobustFit, fit

PRIOR_DEVIATION = log(3.0)
"""Standard deviation of the logarithm of a device's values about the first estimates: a factor of three."""

K_HALF = 64.0
"""Start of the search for k_half: the inner steps of a tile's first load (topologies/gpus)."""

CACHED = 100e6
"""Bytes: twice the largest cache of a GPU, and more than that of common processors (H100 data sheet: 50 MB of L2)."""


@dataclass(frozen=True)
class Entry:
    """The *accelerator*, the relative standard *errors* of its fitted values by name, and the *fit* to *products*."""

    accelerator: Accelerator
    errors: dict[str, float]
    fit: RobustFit
    products: tuple[TimedProduct, ...]


@dataclass(frozen=True)
class LinkFit:
    """A transfer takes *latency* (s) plus its bytes over *bandwidth* (bytes/s).

    *errors*: relative standard errors of both.
    """

    latency: float
    bandwidth: float
    errors: tuple[float, float]


def entry(device: DeviceMeasurements, known: Accelerator | None = None) -> Entry:
    """Return the accelerator that prices the measurements of *device* best.

    *known*: the catalogue's accelerator, if any.
    """
    reached, memory_error = _memory(device, known)
    base = known or _unknown(device)
    bandwidth = base.memory_bandwidth if known else reached
    base = replace(base, memory_bandwidth=bandwidth, memory_efficiency=reached / bandwidth)
    products = products_of_length(device)
    start = _start(base, {product.precision for product in products}, known is not None)
    if any(not _kernel(product).aligned for product in products):
        start["unaligned_efficiency"] = base.unaligned_efficiency

    def made(values: Array) -> Accelerator:
        found = dict(zip(start, map(float, values), strict=True))
        peaks = {name.partition(".")[2]: found.pop(name) for name in start if name.startswith("peak_flops.")}
        return replace(base, **({"peak_flops": peaks} if peaks else {}), **found)  # type: ignore[arg-type]

    def predict(values: Array) -> Array:
        accelerator = made(values)
        return np.array([accelerator.seconds([_kernel(one)]) for one in products])

    measured = np.array([one.seconds for one in products])
    found = fit(predict, np.array(list(start.values())), measured, PRIOR_DEVIATION)
    errors = dict(zip(start, map(float, found.errors), strict=True))
    errors["memory_efficiency" if known else "memory_bandwidth"] = memory_error
    return Entry(made(found.parameters), errors, found, tuple(products))


def products_of_length(device: DeviceMeasurements) -> list[TimedProduct]:
    """Return the products that take longer than the host takes to launch one; shorter ones wait for the host."""
    return [one for one in device.products if one.seconds > device.launch] or list(device.products)


def _kernel(product: TimedProduct) -> Kernel:
    return matmul(*product.shape, precision=product.precision)


def _start(base: Accelerator, precisions: set[str], known: bool) -> dict[str, float]:
    """Return the first estimate of each parameter by its name.

    A GPU of the catalogue keeps its peaks, and products in fp32, without tensor cores, have an efficiency of their own.
    """
    if not known:
        depth = {"k_half": K_HALF} if base.sms else {}
        return {f"peak_flops.{one}": base.peak(one) for one in sorted(precisions)} | depth
    start = {}
    if precisions - {"fp32"} or not base.sms:
        start = {"matmul_efficiency": base.matmul_efficiency, "k_half": K_HALF}
    if base.sms and "fp32" in precisions:
        start |= {"fp32_efficiency": base.fp32_efficiency or base.matmul_efficiency, "fp32_k_half": K_HALF}
    return start if base.sms else {"matmul_efficiency": base.matmul_efficiency}


def _memory(device: DeviceMeasurements, known: Accelerator | None) -> tuple[float, float]:
    """bytes/s of copies too large for a cache, and the relative standard error.

    Like products they are measured without the host's launch, and have the latency of a kernel if it is *known*.
    Without copies the rate of the known accelerator stays.
    """
    if known is not None and not device.copies:
        return known.memory_bandwidth * known.memory_efficiency, PRIOR_DEVIATION
    latency = known.kernel_latency if known else 0.0
    large = [one for one in device.copies if one.nbytes > CACHED] or device.copies
    if not large:
        raise CalibrationError("no copies were measured")
    nbytes, seconds = np.array([one.nbytes for one in large]), np.array([one.seconds for one in large])
    start = np.array([float((nbytes / seconds).max())])
    found = fit(lambda values: latency + nbytes / values[0], start, seconds, PRIOR_DEVIATION)
    return float(found.parameters[0]), float(found.errors[0])


def fit_link(transfers: Sequence[TimedCopy]) -> LinkFit:
    """Return the latency and bandwidth that fit *transfers*. Raises `CalibrationError`."""
    if not transfers:
        raise CalibrationError("no transfers were measured")
    nbytes = np.array([one.nbytes for one in transfers])
    seconds = np.array([one.seconds for one in transfers])
    start = np.array([seconds.min(), (nbytes / seconds).max()])
    found = fit(lambda values: values[0] + nbytes / values[1], start, seconds, PRIOR_DEVIATION)
    latency, bandwidth = map(float, found.parameters)
    return LinkFit(latency, bandwidth, (float(found.errors[0]), float(found.errors[1])))


def _unknown(device: DeviceMeasurements) -> Accelerator:
    """An accelerator whose peaks are the best measured rates."""
    best: dict[str, float] = {}
    for one in device.products:
        best[one.precision] = max(best.get(one.precision, 0.0), one.flops / one.seconds)
    if not best:
        raise CalibrationError("no products were measured")
    memory, k_half = device.memory or inf, K_HALF if device.sms else 0.0
    return Accelerator(device.name, best, memory_bytes=memory, sms=device.sms or 0, k_half=k_half)
