"""NCCL's topology file, which ``NCCL_TOPO_DUMP_FILE`` writes, is XML: processors, PCIe, GPUs and NICs.

Elements and attributes are those of NVIDIA/nccl, src/graph/xml.cc.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from xml.etree import ElementTree

from simulator.errors import CalibrationError
from topologies.inventory.inventory import LANES, PCIE, SWITCH, Inventory, Part

DEVICES = {
    "0x1db1": "v100_16gb",
    "0x1db5": "v100_32gb",
    "0x20b0": "a100_40gb",
    "0x20b2": "a100_80gb",
    "0x2330": "h100",
    "0x2335": "h200",
    "0x2901": "b200",
}
"""SXM modules by PCI device (The PCI ID Repository, vendor 10de)."""

NVSWITCH = "0x068000"
"""PCI class of an NVSwitch, a bridge of no other kind (PCI Code and ID Assignment Specification)."""


MOST_DIGITS = 9
"""Of a number in the file."""


class Found(NamedTuple):
    """An *element* below the PCI device *pci*, on a *socket* and below its nearest PCIe *switch*."""

    element: ElementTree.Element
    pci: ElementTree.Element
    socket: int
    switch: str | None


def read(text: str, name: str) -> Inventory:
    """Return the server of the file with content *text*. *name*: of the file, for errors. Raises `CalibrationError`."""
    try:
        system = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise CalibrationError(f"{name}:{error.position[0]}: is not valid XML: {error}") from None
    if system.tag != "system":
        raise CalibrationError(f"{name}: is not a topology file of NCCL: it begins with <{system.tag}>, not <system>")
    found = [one for socket, cpu in enumerate(system.findall("cpu")) for one in _below(cpu, socket, None)]
    gpus = [one for one in found if one.element.tag == "gpu"]
    numbers = [_whole(one.element.get("dev", "0"), f"{name}: dev of a gpu") for one in gpus]
    gpus = [gpus[place] for place in sorted(range(len(gpus)), key=numbers.__getitem__)]
    nics = [one for one in found if one.element.tag == "net"]
    if not gpus:
        raise CalibrationError(f"{name}: has no <gpu>; NCCL writes the file when a communicator is made")
    return Inventory(
        tuple(_part(gpu) for gpu in gpus),
        tuple(_part(nic) for nic in nics),
        _nvlinks(gpus, name),
        accelerator=DEVICES.get(gpus[0].pci.get("device", "")),
        bus=_bus(gpus[0].pci),
        nic=_speed(nics, name),
    )


def _below(element: ElementTree.Element, socket: int, switch: str | None) -> Iterator[Found]:
    """The GPUs and the ports of NICs on PCI devices below *element*."""
    for pci in element.findall("pci"):
        for leaf in (*pci.findall("gpu"), *pci.findall("nic/net")):
            yield Found(leaf, pci, socket, switch)
        yield from _below(pci, socket, pci.get("busid") if pci.findall("pci") else switch)


def _part(one: Found) -> Part:
    return Part(one.socket, one.switch)


def _nvlinks(gpus: list[Found], name: str) -> dict[tuple[int, int], int]:
    numbers = {gpu.pci.get("busid", "").lower(): number for number, gpu in enumerate(gpus)}
    links: dict[tuple[int, int], int] = {}
    for number, gpu in enumerate(gpus):
        for joint in gpu.element.findall("nvlink"):
            other = numbers.get(joint.get("target", "").lower())
            if other is None and joint.get("tclass") != NVSWITCH:
                continue  # to a processor, as on POWER9
            count = _whole(joint.get("count"), f"{name}: nvlink count")
            pair = (number, SWITCH) if other is None else (min(number, other), max(number, other))
            if other is None:
                links[pair] = links.get(pair, 0) + count
            else:
                links[pair] = count
    return links


def _whole(text: str | None, what: str) -> int:
    if text is None or not text.isdecimal() or len(text) > MOST_DIGITS:
        raise CalibrationError(f"{what}: must be a whole number, not {text!r}")
    return int(text)


def _bus(pci: ElementTree.Element) -> str | None:
    """The kind of the PCIe link, if it has all lanes and a generation of the catalogue."""
    speed = pci.get("link_speed", "").split()
    if not speed or pci.get("link_width") != str(LANES):
        return None
    try:
        return PCIE.get(float(speed[0]))
    except ValueError:
        return None


def _speed(nics: list[Found], name: str) -> float | None:
    """bits/s of a port; the file has Mb/s."""
    if not nics:
        return None
    return max(_whole(nic.element.get("speed"), f"{name}: net speed") for nic in nics) * 1e6
