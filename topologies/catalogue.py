"""The catalogue: accelerators, processors and links as in their data sheets, each value with its source."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import sqrt
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.links import Link
from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.document import Document, merged, part
from clustersim.simulator.reading.quantities import (
    Bandwidth,
    Count,
    Power,
    Rate,
    Section,
    Time,
    keys_of,
    made,
)
from clustersim.simulator.reading.validation import Fault, near, validated
from clustersim.simulator.reading.yaml_and_json import read

GPUS, CPUS, LINKS = "clustersim.topologies.gpus", "clustersim.topologies.cpus", "clustersim.topologies.links"

LinkKind = Annotated[str, AfterValidator(lambda kind: lookup.plain(LINKS, kind))]
"""A kind of link; an import path of a file of topologies/links becomes its name."""

STATED = ("name", "peak_flops", "memory_bandwidth", "memory_bytes", "sms", "power", "transposes")
"""Fields of `Accelerator` that a data sheet states."""

EFFICIENCIES = tuple(name for name in keys_of(Accelerator).values() if name not in STATED)
"""Shares of a peak, depths, sides and latencies of kernels, which hold for similar GPUs."""

OF_PRODUCTS = ("matmul_efficiency", "low_precision_efficiency")
"""Those of products at the power limit."""

BEST_SHARE = 0.95
"""Share of a peak that products reach at most where power does not limit them: the best of measured ones, on A100
(gemm_times: 297 of 312 TFLOP/s)."""

IN_STEPS = 0.916
"""Rate of products in training steps over what they sustain alone: that of the A100, whose products reach 0.89 of the
peak alone, and 0.815 in published runs (scenarios/accuracy/a100.yaml: 0.79 to 0.82, by what else is fitted). The
A100's runs are the only ones to which products are fitted; that of other GPUs is taken to be equal."""


class Sourced(Section):
    """A catalogue file. Each of its values has an entry of the same name under ``sources``."""

    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for name in sorted(self.model_fields_set - {"sources", "preset", "name"}):
            if self.sources and not self.sources.get(name, "").strip():
                raise Fault("sources", f"has no entry for {name}")
        for name in self.sources:
            if name not in self.model_fields_set:
                raise Fault(("sources", name), f"is the source of {name}, which this file does not set")
        return self


class LinkData(Sourced):
    """One direction of one link: bytes/s and s.

    *latency* is that of the hardware; a communication library adds its own. For a network it is the latency of a NIC's
    link, with half of the switch at its end. *switch_latency*: that of a link between two switches. *radix*: the ports
    of a switch.
    """

    bandwidth: Bandwidth
    latency: Time
    switch_latency: Time | None = None
    radix: Count | None = None


class Lanes(Section):
    """The kind and the number of a device's links to devices of its own type."""

    kind: LinkKind
    count: Count


def _peak(flops: float | Mapping[str, float], precision: str) -> float:
    """Return the peak in *precision*, FLOP/s; where there is none, the highest."""
    return flops.get(precision, max(flops.values())) if isinstance(flops, Mapping) else flops


def products_at_power(share: float, measured: "Device", gpu: "Device") -> float:
    """Return the share of its peak that *gpu* reaches in products; *measured*, of its generation, reaches *share*.

    Long products run at the power limit. Voltage rises with the clock, so that power grows faster than the rate: four
    Blackwell GPUs of 1,000 to 1,400 W keep one ratio of rate to the square root of power, to 3 % (scenarios/accuracy/
    products.yaml). With no power stated the share is the same.
    """
    if not measured.power or not gpu.power:
        return share
    return min(max(share, BEST_SHARE), share * power_ratio(measured, gpu))


def power_ratio(measured: "Device", gpu: "Device") -> float:
    """Return the share of its peak that power allows *gpu* over that of *measured*; 1 where no power is stated."""
    if not measured.power or not gpu.power:
        return 1.0
    peaks = _peak(measured.peak_flops, "bf16") / _peak(gpu.peak_flops, "bf16")
    return peaks * sqrt(gpu.power / measured.power)


class Device(Sourced, of=Accelerator):
    """A GPU, or a host processor (one socket): the parameters of `Accelerator`, its own links and its bus to the host.

    In a scenario a mapping may begin with a *preset*, a catalogue file whose values its keys override.
    *efficiency_of*: a GPU of the catalogue on which kernels were measured. What this one does not set of `EFFICIENCIES`
    is as there; if both are of one *generation*, products run at the rate of `products_at_power`.
    """

    preset: str | None = None
    efficiency_of: str | None = None
    name: str | None = None
    peak_flops: Rate | dict[str, Rate]
    sms: Count | None = None
    generation: str | None = None
    power: Power | None = None
    links: Lanes | None = None
    bus: str | None = None

    @field_validator("efficiency_of")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        if name is not None:
            known(GPUS, "GPU", name)
        return name

    def _inherited(self) -> dict[str, Any]:
        if self.efficiency_of is None:
            return {}
        entry = device(GPUS, self.efficiency_of)
        measured = entry.accelerator()
        found = {key: getattr(measured, key) for key in EFFICIENCIES}
        if self.generation is not None and self.generation == entry.generation:
            found |= self._products_of(measured, entry)
        return {key: value for key, value in found.items() if key not in self.model_fields_set}

    def _products_of(self, measured: Accelerator, entry: "Device") -> dict[str, float]:
        """Return the shares of products of this GPU as those of the *measured* one, of *entry*, at this power.

        A GPU with power for more than its best products keeps their clock: of what a burst reaches steps lose
        `IN_STEPS` alone. Of 165.2 TFLOP/s an RTX 4090 reached 158.6 and 160.2 in products of 8,192, in fp16 for
        seconds and in bf16 (mli/transformers-benchmarks, issue 4; zzc0721/torch-performance-test-data, issue 78).
        """
        alone = products_at_power(measured.matmul_efficiency * measured.burst, entry, self)
        lasting = min(measured.matmul_efficiency * power_ratio(entry, self), alone * IN_STEPS)
        change = lasting / measured.matmul_efficiency
        shares = {key: share * change for key in OF_PRODUCTS if (share := getattr(measured, key)) is not None}
        return {**shares, "burst": alone / lasting}

    def accelerator(self) -> Accelerator:
        """Return the accelerator by which the simulator prices kernels."""
        own = made(self, Accelerator, name=self.name or "custom", sms=self.sms or 0, power=self.power or 0.0)
        return replace(own, **self._inherited())


def described(folder: str, name: str) -> Document:
    """Return the catalogue's file *name* in *folder*, or the user's own file, which may have a preset of the catalogue.

    Raises `UnknownName`.
    """
    name = lookup.plain(folder, name)
    path = lookup.data_file(folder, name)
    entry = part(read(path), "accelerator")
    below = entry.data.get("preset")
    if isinstance(below, str):
        known(folder, "device", below, "preset")
        base = described(folder, below)
        entry = merged(Document({k: v for k, v in base.data.items() if k != "sources"}, base.positions), entry)
    called = path.stem if lookup.is_path(name) else name
    return Document({"name": called, **entry.data}, entry.positions)


@lru_cache(maxsize=256)
def device(folder: str, name: str) -> Device:
    """Return the entry *name* in *folder* (`GPUS` or `CPUS`), or that of a file. Raises `UnknownName`."""
    return validated(described(folder, name), Device)


@lru_cache(maxsize=256)
def link_data(kind: str) -> LinkData:
    """Return the entry of a link of *kind*. Raises `UnknownName`."""
    return validated(read(lookup.data_file(LINKS, kind)), LinkData)


def link(kind: str, bandwidth: float | None = None, latency: float | None = None, count: int = 1) -> Link:
    """Return *count* parallel links of *kind*. *bandwidth* (bytes/s, all together) and *latency* (s) override the
    catalogue.

    >>> link("nvlink3", count=12).bandwidth
    300000000000.0
    """
    if bandwidth is not None and latency is not None:
        return Link(kind, bandwidth, latency)
    data = link_data(kind)
    return Link(
        kind,
        data.bandwidth * count if bandwidth is None else bandwidth,
        data.latency if latency is None else latency,
    )


def known(folder: str, what: str, name: str, path: str | tuple[str | int, ...] = ()) -> None:
    """Raise `Fault` at *path*, with the valid names, unless *folder* has *name*."""
    try:
        lookup.find(folder, name)
    except lookup.UnknownName as error:
        there = lookup.nearest(name, error.names)
        begin = next((other for other in sorted(there) if other.startswith(name)), None)
        hint = f'did you mean "{begin}"?' if begin else near(name, there)
        raise Fault(path, f'unknown {what} "{name}"; there are: {", ".join(there)}', hint) from None


def having_precision(precision: str) -> list[str]:
    """Return the GPUs of the catalogue that state a peak in *precision*, by name."""
    peaks = {name: device(GPUS, name).peak_flops for name in lookup.names(GPUS)}
    return [name for name, peak in peaks.items() if isinstance(peak, Mapping) and precision in peak]
