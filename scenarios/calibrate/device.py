"""A device in a calibration file: an accelerator's entry, its link to the host, and the cost of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clustersim.simulator.reading.plain_text import indented, table
from clustersim.simulator.reading.units import show
from clustersim.simulator.replay.accelerator_fit import Entry, LinkFit, entry, fit_link
from clustersim.topologies.catalogue import GPUS, device
from clustersim.topologies.inventory import gpu_called

if TYPE_CHECKING:
    from clustersim.simulator.replay.measurements import DeviceMeasurements, TimedProduct

EAGER = "ddp_sdpa"
"""The stack whose launch is measured: eager PyTorch."""


@dataclass(frozen=True)
class MeasuredDevice:
    """A measured *device*, its *entry*, the catalogue's *preset* for it, and its link to the *host*."""

    device: DeviceMeasurements
    entry: Entry
    preset: str | None
    host: LinkFit | None


def fitted(measured: DeviceMeasurements) -> MeasuredDevice:
    """Fit an entry to *measured*, on that of the catalogue if it has the device."""
    preset = gpu_called(measured.name)
    known = device(GPUS, preset).accelerator() if preset else None
    both = (*measured.to_host, *measured.to_device)
    return MeasuredDevice(measured, entry(measured, known), preset, fit_link(both) if both else None)


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
