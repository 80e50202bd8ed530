"""Inventories of servers from two kinds of files: NCCL's topology file, XML that ``NCCL_TOPO_DUMP_FILE`` writes, and
the matrix that ``nvidia-smi topo -m`` prints.

Elements and attributes of the XML are those of NVIDIA/nccl, src/graph/xml.cc. The legend of the matrix: NV# that many
bonded NVLinks; PIX at most one PCIe bridge; PXB several, but no host bridge; PHB a host bridge; NODE host bridges
within a NUMA node; SYS the link between NUMA nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree

import networkx as nx

from clustersim.simulator.reading.errors import CalibrationError
from clustersim.topologies.inventory import LANES, PCIE, SWITCH, Inventory, ServerPart

PCI_DEVICES = {
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

GPU = re.compile(r"GPU\d+")

LINKS = re.compile(r"NV[0-9]{1,4}")

NIC = re.compile(r"NIC\d+|mlx\d+_\w+|bnxt_re\w*|rdma\w*|efa\w*|ib\d+|cxi\d+")

NEAR = ("PIX", "PXB")
"""Joined below a PCIe switch."""

WITHIN = (*NEAR, "PHB", "NODE")
"""Joined below a socket."""


class FoundElement(NamedTuple):
    """An *element* below the PCI device *pci*, on a *socket* and below its nearest PCIe *switch*."""

    element: ElementTree.Element
    pci: ElementTree.Element
    socket: int
    switch: str | None


def read_nccl_topology(text: str, name: str) -> Inventory:
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
        accelerator=PCI_DEVICES.get(gpus[0].pci.get("device", "")),
        bus=_bus(gpus[0].pci),
        nic=_speed(nics, name),
    )


def _below(element: ElementTree.Element, socket: int, switch: str | None) -> Iterator[FoundElement]:
    """The GPUs and the ports of NICs on PCI devices below *element*."""
    for pci in element.findall("pci"):
        for leaf in (*pci.findall("gpu"), *pci.findall("nic/net")):
            yield FoundElement(leaf, pci, socket, switch)
        yield from _below(pci, socket, pci.get("busid") if pci.findall("pci") else switch)


def _part(one: FoundElement) -> ServerPart:
    return ServerPart(one.socket, one.switch)


def _nvlinks(gpus: list[FoundElement], name: str) -> dict[tuple[int, int], int]:
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


def _speed(nics: list[FoundElement], name: str) -> float | None:
    """bits/s of a port; the file has Mb/s."""
    if not nics:
        return None
    return max(_whole(nic.element.get("speed"), f"{name}: net speed") for nic in nics) * 1e6


def is_nvidia_smi(text: str) -> bool:
    """Whether *text* contains the matrix of ``nvidia-smi topo -m``."""
    return bool(re.search(r"^\s*GPU0(\s|$)", text, re.MULTILINE))


def read_nvidia_smi(text: str, name: str) -> Inventory:
    """Return the server of the matrix in *text*.

    *name*: of the file, for errors. Raises `CalibrationError` with the line.
    """
    lines = re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()
    begin = next((number for number, line in enumerate(lines) if re.match(r"\s*GPU0\s+", line)), None)
    if begin is None:
        raise CalibrationError(f"{name}: has no header GPU0 GPU1 ..., as nvidia-smi topo -m prints it")
    header = [word for word in lines[begin].split() if GPU.fullmatch(word) or NIC.fullmatch(word)]
    rows: dict[str, dict[str, str]] = {}
    affinity: dict[str, str] = {}
    for number, line in enumerate(lines[begin + 1 :], start=begin + 2):
        cells = line.split()
        if not cells or cells[0] not in header:
            continue
        if len(cells) < 1 + len(header):
            raise CalibrationError(
                f"{name}:{number}: {cells[0]} has {len(cells) - 1} of {len(header)} columns: cut off?"
            )
        rows[cells[0]] = dict(zip(header, cells[1:], strict=False))
        affinity[cells[0]] = next(iter(cells[1 + len(header) :]), "")
    missing = [word for word in header if GPU.fullmatch(word) and word not in rows]
    if missing:
        raise CalibrationError(f"{name}: has no row of {missing[0]}")
    for one, row in rows.items():
        wrong = next((cell for cell in row.values() if cell.startswith("NV") and not LINKS.fullmatch(cell)), None)
        if wrong is not None:
            raise CalibrationError(
                f"{name}: the row of {one} has {wrong[:20]!r}; NVLinks are written NV and their number"
            )
    return _inventory(header, rows, affinity)


def _inventory(header: Sequence[str], rows: Mapping[str, Mapping[str, str]], affinity: Mapping[str, str]) -> Inventory:
    gpus = [word for word in header if GPU.fullmatch(word)]
    nics = [word for word in header if NIC.fullmatch(word)]
    joined = {
        (i, j): int(rows[one][other][2:])
        for (i, one), (j, other) in combinations(enumerate(gpus), 2)
        if rows[one][other].startswith("NV")
    }
    switch = _places(gpus, nics, rows, NEAR)
    socket = _sockets(gpus, nics, rows, affinity)
    held = Counter(switch.values())

    def part(word: str) -> ServerPart:
        return ServerPart(socket[word], f"switch {switch[word]}" if held[switch[word]] > 1 else None)

    return Inventory(tuple(map(part, gpus)), tuple(map(part, nics)), joined)


def _sockets(
    gpus: Sequence[str], nics: Sequence[str], rows: Mapping[str, Mapping[str, str]], affinity: Mapping[str, str]
) -> dict[str, int]:
    """The socket of each device. GPUs of one CPU affinity share a socket with the NICs near them."""
    if not all(affinity[gpu] for gpu in gpus):
        return _places(gpus, nics, rows, WITHIN)
    labels = list(dict.fromkeys(affinity[gpu] for gpu in gpus))
    socket = {gpu: labels.index(affinity[gpu]) for gpu in gpus}
    for nic in nics:
        near = (
            socket[other] for other in [*gpus, *nics] if other in socket and _matrix_cell(rows, nic, other) in WITHIN
        )
        socket[nic] = next(near, max(socket.values()) + 1)
    return socket


def _places(
    gpus: Sequence[str], nics: Sequence[str], rows: Mapping[str, Mapping[str, str]], by: Sequence[str]
) -> dict[str, int]:
    """The number of the place of each device, in order. Devices joined by one of *by* share a place.

    The matrix shows NVLink instead of the PCIe connection of two GPUs. Such GPUs share a place if they are near one
    NIC.
    """
    near: nx.Graph[str] = nx.Graph()
    near.add_nodes_from([*gpus, *nics])
    near.add_edges_from(pair for pair in combinations([*gpus, *nics], 2) if _matrix_cell(rows, *pair) in by)
    places: dict[str, int] = {}
    for word in [*gpus, *nics]:
        if word not in places:
            places |= dict.fromkeys(nx.node_connected_component(near, word), len(set(places.values())))
    return places


def _matrix_cell(rows: Mapping[str, Mapping[str, str]], one: str, other: str) -> str:
    return rows.get(one, {}).get(other) or rows.get(other, {}).get(one, "")
