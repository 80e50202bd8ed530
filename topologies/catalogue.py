"""The catalogue holds accelerators, processors and links as data sheets state them, each datum with its source."""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import Self

from pydantic import Field, model_validator

from simulator import lookup
from simulator.accelerator import Accelerator
from simulator.cluster import Link
from simulator.document import (
    Bandwidth,
    Count,
    Document,
    Fault,
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
    """A catalogue file: every datum that it sets has an entry of its name under ``sources``."""

    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for name in sorted(self.model_fields_set - {"sources", "preset", "name"}):
            if self.sources and not self.sources.get(name, "").strip():
                raise Fault("sources", f"says nothing of {name}")
        for name in self.sources:
            if name not in self.model_fields_set:
                raise Fault(("sources", name), f"there is no {name} that this could be the source of")
        return self


class LinkData(Sourced):
    """One direction of one link: bytes/s and s.

    *latency* is that of the hardware alone, what a communication library takes comes on top; on a network it is that
    of a NIC's link, half of the switch at its end included. *switch_latency* is that of a link between two switches,
    *radix* how many ports the switch has.
    """

    bandwidth: Bandwidth
    latency: Time
    switch_latency: Time | None = None
    radix: Count | None = None


class Lanes(Section):
    """How many links of what kind a device has for its own kind."""

    kind: str
    count: Count


class Device(Sourced):
    """A GPU, or a host processor (one socket): the parameters of `Accelerator`, its own links and its bus to the host.

    In a scenario a mapping may begin with a *preset*, a catalogue file that its keys override.
    """

    preset: str | None = None
    name: str | None = None
    peak_flops: Rate | dict[str, Rate]
    memory: Size = inf
    memory_bandwidth: Bandwidth = inf
    sms: Count | None = None
    matmul_efficiency: Fraction = 1.0
    memory_efficiency: Fraction = 1.0
    k_half: Number = 0.0
    attention_efficiency: Fraction = 1.0
    attention_backward: Fraction = 1.0
    spread: Number = 0.0
    power: Power | None = None
    links: Lanes | None = None
    bus: str | None = None

    def accelerator(self) -> Accelerator:
        """The device as the simulator prices with it."""
        return Accelerator(
            name=self.name or "custom",
            peak_flops=self.peak_flops,
            memory_bandwidth=self.memory_bandwidth,
            memory_bytes=self.memory,
            sms=self.sms or 0,
            matmul_efficiency=self.matmul_efficiency,
            memory_efficiency=self.memory_efficiency,
            k_half=self.k_half,
            attention_efficiency=self.attention_efficiency,
            attention_backward=self.attention_backward,
            spread=self.spread,
            power=self.power or 0.0,
        )


def described(folder: str, name: str) -> Document:
    """The catalogue's file *name* in *folder*, or the user's own file, which may lie on a preset of the catalogue.

    Raises `UnknownName`.
    """
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
    """The catalogue's entry *name* in *folder* (`GPUS` or `CPUS`), or that of a file. Raises `UnknownName`."""
    return validated(described(folder, name), Device)


@lru_cache(maxsize=256)
def link_data(kind: str) -> LinkData:
    """The catalogue's entry of one link of *kind*. Raises `UnknownName`."""
    return validated(read(lookup.data_file(LINKS, kind)), LinkData)


def link(kind: str, bandwidth: float | None = None, latency: float | None = None, count: int = 1) -> Link:
    """*count* links of *kind* side by side; *bandwidth* (bytes/s, of all) and *latency* (s) stand where given.

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
    """Raise `Fault` at *path*, with the names that there are, unless *folder* has a *name*."""
    try:
        lookup.find(folder, name)
    except lookup.UnknownName as error:
        there = lookup.nearest(name, error.names)
        begin = next((other for other in sorted(there) if other.startswith(name)), None)
        hint = f'did you mean "{begin}"?' if begin else near(name, there)
        raise Fault(path, f'unknown {what} "{name}"; there are: {", ".join(there)}', hint) from None
