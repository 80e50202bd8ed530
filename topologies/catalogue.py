"""The catalogue: accelerators, processors and links as in their data sheets, each value with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from simulator import lookup
from simulator.accelerator import UNALIGNED, Accelerator
from simulator.cluster import Link
from simulator.document import (
    Bandwidth,
    Count,
    Document,
    Fault,
    Flag,
    Fraction,
    Number,
    Power,
    Rate,
    Section,
    Size,
    Time,
    merged,
    part,
    read,
    validated,
)
from simulator.document.validation import near

GPUS, CPUS, LINKS = "topologies.gpus", "topologies.cpus", "topologies.links"


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


LinkKind = Annotated[str, AfterValidator(lambda kind: lookup.plain(LINKS, kind))]
"""A kind of link; an import path of a file of topologies/links becomes its name."""


class Lanes(Section):
    """The kind and the number of a device's links to devices of its own type."""

    kind: LinkKind
    count: Count


EFFICIENCIES = (
    "matmul_efficiency",
    "fp32_efficiency",
    "convolution_efficiency",
    "unaligned_efficiency",
    "memory_efficiency",
    "attention_efficiency",
    "attention_backward",
    "cudnn_attention_efficiency",
    "cudnn_attention_backward",
    "spread",
)
"""Shares of a peak, which hold for similar GPUs."""


HALF_DEPTHS = {"k_half": "fp16", "fp32_k_half": "fp32", "convolution_k_half": "fp32"}
"""Inner dimensions at which products reach half of their speed, and the precision of these products."""


def _peak(flops: float | Mapping[str, float], precision: str) -> float:
    """Return the peak in *precision*, FLOP/s; where there is none, the highest."""
    return flops.get(precision, max(flops.values())) if isinstance(flops, Mapping) else flops


class Device(Sourced):
    """A GPU, or a host processor (one socket): the parameters of `Accelerator`, its own links and its bus to the host.

    *transposes*: products of 8 bits take operands in one layout only.
    In a scenario a mapping may begin with a *preset*, a catalogue file whose values its keys override.
    *efficiency_of*: a GPU of the catalogue on which kernels were measured. What this one does not set of `EFFICIENCIES`
    and `HALF_DEPTHS` is as there; the latter in proportion to peak over memory bandwidth, for what a tile loads and
    stores costs as many more of its inner steps.
    """

    preset: str | None = None
    efficiency_of: str | None = None
    name: str | None = None
    peak_flops: Rate | dict[str, Rate]
    memory: Size = inf
    memory_bandwidth: Bandwidth = inf
    transposes: Flag = True
    sms: Count | None = None
    matmul_efficiency: Fraction = 1.0
    memory_efficiency: Fraction = 1.0
    k_half: Number = 0.0
    fp32_efficiency: Fraction | None = None
    fp32_k_half: Number | None = None
    convolution_efficiency: Fraction | None = None
    convolution_k_half: Number | None = None
    unaligned_efficiency: Fraction = UNALIGNED
    attention_efficiency: Fraction = 1.0
    attention_backward: Fraction = 1.0
    cudnn_attention_efficiency: Fraction | None = None
    cudnn_attention_backward: Fraction | None = None
    spread: Number = 0.0
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
        measured = device(GPUS, self.efficiency_of).accelerator()
        made = {key: getattr(measured, key) for key in EFFICIENCIES}
        for key, precision in HALF_DEPTHS.items():
            depth = getattr(measured, key)
            if depth is not None:
                peaks = _peak(self.peak_flops, precision) / _peak(measured.peak_flops, precision)
                made[key] = depth * peaks * measured.memory_bandwidth / self.memory_bandwidth
        return {key: value for key, value in made.items() if key not in self.model_fields_set}

    def accelerator(self) -> Accelerator:
        """Return the accelerator by which the simulator prices kernels."""
        return replace(self._own(), **self._inherited())

    def _own(self) -> Accelerator:
        return Accelerator(
            name=self.name or "custom",
            peak_flops=self.peak_flops,
            memory_bandwidth=self.memory_bandwidth,
            memory_bytes=self.memory,
            transposes=self.transposes,
            sms=self.sms or 0,
            matmul_efficiency=self.matmul_efficiency,
            memory_efficiency=self.memory_efficiency,
            k_half=self.k_half,
            fp32_efficiency=self.fp32_efficiency,
            fp32_k_half=self.fp32_k_half,
            convolution_efficiency=self.convolution_efficiency,
            convolution_k_half=self.convolution_k_half,
            unaligned_efficiency=self.unaligned_efficiency,
            attention_efficiency=self.attention_efficiency,
            attention_backward=self.attention_backward,
            cudnn_attention_efficiency=self.cudnn_attention_efficiency,
            cudnn_attention_backward=self.cudnn_attention_backward,
            spread=self.spread,
            power=self.power or 0.0,
        )


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
