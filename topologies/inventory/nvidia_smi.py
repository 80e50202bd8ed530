"""``nvidia-smi topo -m`` prints, for each pair of GPUs and NICs, the closest connection between them.

Its legend: NV# that many bonded NVLinks; PIX at most one PCIe bridge; PXB several, but no host bridge; PHB a host
bridge; NODE host bridges within a NUMA node; SYS the link between NUMA nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

import networkx as nx

from simulator.errors import CalibrationError
from topologies.inventory.inventory import Inventory, Part

GPU = re.compile(r"GPU\d+")
LINKS = re.compile(r"NV[0-9]{1,4}")
NIC = re.compile(r"NIC\d+|mlx\d+_\w+|bnxt_re\w*|rdma\w*|efa\w*|ib\d+|cxi\d+")
NEAR = ("PIX", "PXB")
"""Joined below a PCIe switch."""
WITHIN = (*NEAR, "PHB", "NODE")
"""Joined below a socket."""


def is_topology(text: str) -> bool:
    """Whether *text* contains the matrix of ``nvidia-smi topo -m``."""
    return bool(re.search(r"^\s*GPU0(\s|$)", text, re.MULTILINE))


def read(text: str, name: str) -> Inventory:
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

    def part(word: str) -> Part:
        return Part(socket[word], f"switch {switch[word]}" if held[switch[word]] > 1 else None)

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
        near = (socket[other] for other in [*gpus, *nics] if other in socket and _joint(rows, nic, other) in WITHIN)
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
    near.add_edges_from(pair for pair in combinations([*gpus, *nics], 2) if _joint(rows, *pair) in by)
    places: dict[str, int] = {}
    for word in [*gpus, *nics]:
        if word not in places:
            places |= dict.fromkeys(nx.node_connected_component(near, word), len(set(places.values())))
    return places


def _joint(rows: Mapping[str, Mapping[str, str]], one: str, other: str) -> str:
    return rows.get(one, {}).get(other) or rows.get(other, {}).get(one, "")
