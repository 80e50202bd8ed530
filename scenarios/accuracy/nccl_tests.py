"""Collectives measured by nccl-tests and by torch: the rows and the parameters of the fit of NCCL.

Sweeps with a process for each GPU show NCCL's own latency. torch, and a process that drives several GPUs, add to it:
the sweeps of both fit one figure. With one process the times of small vectors on many GPUs are those of the host, which
launches a kernel on each GPU in turn; the launch takes longer for more channels. Nothing else explains that 8 A100 take
the same time for 1 MiB as for 4 MiB, and that fewer GPUs take less in proportion (vTrain's full tables).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from clustersim import topologies
from clustersim.scenarios.accuracy import nccl_generations
from clustersim.scenarios.accuracy.nccl_generations import LANDS
from clustersim.scenarios.accuracy.robust_fit import FitRow, Parameter, Values
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.candidates import GroupTopology, candidate
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.network.library.transport_parameters import PLACES
from clustersim.simulator.network.library.tuner import steps
from clustersim.simulator.network.step import Step
from clustersim.simulator.network.transport import NET, NVLINK, Transport
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import CalibrationError

NVLS = "nvls", "Simple"

REDUCE = "all_reduce"

LARGE = 2.0**27
"""Bytes from which a vector takes as long as links and channels let it: such measurements repeat best."""

RELEASES = 0.05
"""Relative noise of a table whose GPUs were measured with several releases of NCCL, which differ by 3 to 5 %."""

# starts of NVLS: NCCL's table ("2.30") and its efficiency of Hopper; of a round, a few flags that GPUs wait for
PARAMETERS = (
    Parameter(
        "launch",
        2e-6,
        1e-7,
        100e-6,
        "s",
        "what a collective takes on the GPU beside NCCL's own latencies: its kernel is started and drained",
        (LANDS + "launch",),
        spread=1.0,
    ),
    Parameter(
        "handover",
        20e-6,
        1e-6,
        100e-6,
        "s",
        "what torch.distributed, or one process for several GPUs, adds to that",
        (LANDS + "handover",),
    ),
    Parameter(
        "nvls_base",
        25e-6,
        1e-6,
        50e-6,
        "s",
        "what an all-reduce in the NVSwitches takes beside its chunks",
        (LANDS + "base_latency.nvls.Simple",),
        spread=0.3,
    ),
    Parameter(
        "nvls_round",
        0.25e-6,
        1e-8,
        5e-6,
        "s",
        "what each GPU's chunk in a round in the NVSwitches adds: threads copy these in turn",
        (LANDS + "round_latency.nvls.Simple",),
        spread=1.0,
    ),
    Parameter(
        "nvls_share",
        0.85,
        0.5,
        1.0,
        "",
        "share of the NVLinks' bandwidth that all-reduces in the NVSwitches get",
        (LANDS + "shares.nvls.Simple.inside",),
        spread=0.1,
    ),
    Parameter(
        "nvlink_share",
        22 / 25,
        0.5,
        1.0,
        "",
        "share of the NVLinks' bandwidth that rings get where the links are the limit",
        (LANDS + "efficiency.NVLINK",),
    ),
    Parameter(
        "ampere_channels",
        235e9,
        150e9,
        300e9,
        "bytes/s",
        "what all channels of an A100 carry together through NVSwitch",
        (LANDS + "limits.nvlink3",),
    ),
    Parameter(
        "ll128_share",
        0.92,
        0.3,
        1.0,
        "",
        "share of a ring's bandwidth inside a server that LL128 fills with data",
        (LANDS + "shares.ring.LL128.inside",),
    ),
    Parameter(
        "net_share",
        0.9,
        0.5,
        1.0,
        "",
        "share of a NIC's bandwidth that rings between servers get",
        (LANDS + "efficiency.NET",),
    ),
    Parameter("issue", 5e-6, 1e-6, 30e-6, "s", "what the host takes to launch on one more GPU", (LANDS + "issue",)),
    Parameter(
        "issue_channel", 0.3e-6, 0.01e-6, 3e-6, "s", "and for one more channel there", (LANDS + "issue_channel",)
    ),
    Parameter(
        "grouped_share",
        0.85,
        0.5,
        1.0,
        "",
        "share of the NVLinks' bandwidth to rings that grouped sends to GPUs of a server get",
        (LANDS + "grouped_share",),
        spread=0.2,
    ),
    Parameter(
        "ll_crowding",
        0.2,
        0.01,
        1.0,
        "",
        "by how much LL's starts and hops take longer with all threads of a block than with a quarter of them",
        (LANDS + "crowding.ring.LL", LANDS + "crowding.tree.LL"),
        spread=1.0,
    ),
    *nccl_generations.PARAMETERS,
)


OWN = {one.name for one in nccl_generations.PARAMETERS} | {"grouped_share", "ll_crowding"}
"""Names of the parameters of the second stage of the fit."""

STARTS = {one.name: one.start for one in PARAMETERS if one.name in OWN}
"""NCCL's own figures of what generations have: as the first stage of the fit takes them."""

TOLERANCE = 1e-5
"""Of the search for the least loss: of a thousand rows it is a hundredth of what a parameter costs that is a standard
deviation off, so that a fit ends at the same values from wherever it begins."""

Stage = tuple[Sequence[Parameter], list[FitRow]]


def stages(rows: Iterable[FitRow]) -> tuple[Stage, Stage]:
    """Return the two stages of the fit to *rows*: parameters, and the rows that they are fitted to.

    The many rows of `PRESETS` tell what generations have, and not what all GPUs share, which is fitted before.
    """
    rows = list(rows)
    shared = [one for one in PARAMETERS if one.name not in OWN]
    own = [one for one in PARAMETERS if one.name in OWN]
    first = [row.given(STARTS) for row in rows if row.groups["machine"] not in PRESETS]
    second = [row for row in map(_in_servers, rows) if row.uses & OWN]
    return (shared, first), (own, [*second, *nccl_generations.couplings()] if second else [])


def _in_servers(row: FitRow) -> FitRow:
    """Return the *row* of a sweep across servers with NCCL's own figures of `LATENCIES`; others as they are.

    Nothing is told of its network, and torch adds its handover, which the first stage fits beside these figures. What
    is wrong with either would pass for latencies in a server, and reach all generations, which have them in proportion.
    """
    if machine(str(row.groups["machine"])).driver != "torch":
        return row
    own = {name: STARTS[name] for name in row.uses & OWN if name.partition("_")[2] in nccl_generations.LATENCIES}
    return replace(row, predicted=lambda values: row.at({**values, **own}), uses=row.uses - own.keys())


USES = {
    "V100": ("ll128_share", "handover", "issue", "issue_channel", "nvlink_share"),
    "A100": ("ll128_share", "handover", "issue", "issue_channel", "ampere_channels"),
    "4 nodes": ("ll128_share", "handover", "net_share", "ampere_channels"),
    "H100": ("ll128_share", "nvls_base", "nvls_round", "nvls_share", "ll_crowding"),
    "h100": ("ll128_share", "nvls_base", "nvls_round", "nvls_share", "grouped_share", "ll_crowding"),
    "a100_80gb": ("ll128_share", "grouped_share", "ll_crowding"),
    "b200": ("ll128_share", "nvls_round", "nvls_share", "grouped_share", "ll_crowding"),
    "l40s": ("ll_crowding",),
    "gb200": ("ll128_share", "nvls_round", "nvls_share", "grouped_share", "ll_crowding"),
}
"""By machine the parameters on which its rows depend, beside the launch and what its generation and protocol have."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "a100_80gb": {"preset": "dgx_a100_80gb"},
    "h100": {"preset": "dgx_h100"},
    "b200": {"preset": "dgx_b200"},
    "gb200": {"preset": "gb200_nvl72"},
    "l40s": {"preset": "rtx_4090_workstation", "node": {"accelerator": "l40s", "accelerators": 8}},
}
"""Servers of the GPUs of aiconfigurator's table. That of its L40S is not told."""

STAGED = 8192
"""Bytes of vectors beyond which more than two L40S are not fitted to: through the memory of their host, whose server is
not told, bytes pass at 1.4 to 5 GB/s, where others pass 15 and more."""

ONLY = {
    "ll128_share": ("ring", "LL128"),
    "nvls_base": ("nvls", "Simple"),
    "nvls_round": ("nvls", "Simple"),
    "nvls_share": ("nvls", "Simple"),
    "grouped_share": ("direct", "Simple"),
    "ll_crowding": ("ring", "LL"),
}
"""Parameters of one algorithm and protocol: no other collective depends on them."""


@dataclass(frozen=True)
class MeasuredMachine:
    """The *cluster* of a sweep, its NCCL *version*, and its *driver*, as in a scenario's collective."""

    cluster: Cluster
    version: str
    driver: str


@lru_cache
def machine(name: str) -> MeasuredMachine:
    """Return the machine that the tables call *name*.

    One-node tables are of the time of NCCL 2.14 (vTrain ships PyTorch 2.0.1), whose tuning tables are those of 2.10. Of
    the four nodes only the numbers of nodes and GPUs are published; 800 Gb/s each is inferred from a busbw of 92 GB/s.
    The table of NCCL 2.27 and 2.29 names its GPUs.
    """
    if name in PRESETS:
        return MeasuredMachine(topologies.cluster(dict(PRESETS[name])), "2.30", "processes")
    if name == "V100":
        return MeasuredMachine(topologies.cluster("dgx1"), "2.10", "one_process")
    if name == "A100":
        return MeasuredMachine(topologies.cluster("dgx_a100_80gb"), "2.10", "one_process")
    if name == "H100":
        return MeasuredMachine(topologies.cluster("dgx_h100"), "2.30", "processes")
    four = {"preset": "dgx_a100_80gb", "nodes": 4, "node": {"nics": 4}}
    return MeasuredMachine(topologies.cluster(four), "2.30", "torch")


def library(version: str, values: Values) -> Transport:
    """Return NCCL of that *version* with the fit's *values*."""
    return laid(nccl(version), values)


def laid(shipped: Transport, values: Values) -> Transport:
    """Return *shipped* with the fit's *values*."""
    shipped = nccl_generations.laid(shipped, values)
    if "ll_crowding" in values:
        crowding = {("ring", "LL"): values["ll_crowding"], ("tree", "LL"): values["ll_crowding"]}
        shipped = replace(shipped, crowding={**shipped.crowding, **crowding})
    if "grouped_share" in values:
        shipped = replace(shipped, grouped_share=values["grouped_share"])
    return replace(
        shipped,
        launch=values["launch"],
        handover=values["handover"],
        issue=values["issue"],
        issue_channel=values["issue_channel"],
        base_latency={**shipped.base_latency, NVLS: values["nvls_base"]},
        round_latency={**shipped.round_latency, NVLS: values["nvls_round"]},
        efficiency={**shipped.efficiency, NVLINK: values["nvlink_share"], NET: values["net_share"]},
        limits={**shipped.limits, "nvlink3": values["ampere_channels"]},
        shares={
            **shipped.shares,
            ("ring", "LL128", False): values["ll128_share"],
            (*NVLS, False): values["nvls_share"],
        },
    )


def values_of(transport: Transport) -> dict[str, float]:
    """Return the values of the parameters that *transport* has; not those of which it has none."""
    found = {}
    for parameter in PARAMETERS:
        field, *key = parameter.lands[0].removeprefix(LANDS).split(".")
        table = getattr(transport, field)
        value = table if not key else table.get(_keyed(key))
        if value:
            found[parameter.name] = min(max(float(value), parameter.low), parameter.high)
    return found


def _keyed(path: list[str]) -> object:
    """The key of a table of a transport for the *path* that a calibration file has."""
    parts = tuple(PLACES.get(part, part) for part in path)
    return parts if len(parts) > 1 else parts[0]


def predicted(name: str, kind: str, ranks: int, nbytes: float, values: Values) -> float:
    """Return the seconds of the collective *kind* of *nbytes* among the first *ranks* GPUs of the machine *name*, as
    nccl-tests measures it.
    """
    topology = _by(name, ranks, tuple(values.items()))
    transport = topology.transport
    algorithm, protocol = choice(name, kind, ranks, nbytes)
    taken = _steps(name, algorithm, kind, ranks, nbytes)
    seconds = candidate(transport, topology, kind, algorithm, protocol, taken, nbytes).seconds
    if machine(name).driver != "one_process":
        return seconds
    channels = transport.channels_used(algorithm, protocol, nbytes, ranks, topology.channels)
    return max(seconds, transport.host_seconds(ranks, channels))


@cache
def choice(name: str, kind: str, ranks: int, nbytes: float) -> tuple[str, str]:
    """Return the algorithm and the protocol that NCCL takes: by its tables, so whatever the values of a fit are."""
    plan = _shipped(name).collective(kind, "dp", tuple(range(ranks)), nbytes)
    return plan.algorithm, plan.protocol


@cache
def _shipped(name: str) -> Communicator:
    on = machine(name)
    return Communicator(on.cluster, on.cluster.gpus, nccl(on.version))


@cache
def _topology(name: str, ranks: int) -> GroupTopology:
    """The first *ranks* GPUs of the machine *name*; its routes are those of all values of a fit."""
    return _shipped(name).topology(tuple(range(ranks)))


@lru_cache(maxsize=8)
def _by(name: str, ranks: int, values: tuple[tuple[str, float], ...]) -> GroupTopology:
    """The same by the library with the fit's *values*: rows of one group follow each other."""
    return _topology(name, ranks).by(_transport(name, values))


@cache
def _steps(name: str, algorithm: str, kind: str, ranks: int, nbytes: float) -> Sequence[Step]:
    return steps(algorithm, kind, _topology(name, ranks).group, nbytes, 0)


@lru_cache(maxsize=4)
def _transport(name: str, values: tuple[tuple[str, float], ...]) -> Transport:
    """The library on the machine *name* with the fit's *values*; rows of one machine follow each other."""
    on = machine(name)
    transport = library(on.version, dict(values))
    return replace(transport, handover=0.0) if on.driver == "processes" else transport


def rows(path: Path) -> Iterator[FitRow]:
    """Yield the measurements of a table of collectives, without the GPUs that are not in `USES`.

    Raises `CalibrationError` if it is none.
    """
    with path.open() as file:
        table = csv.DictReader(file)
        read = _reader(path, set(table.fieldnames or ()))
        for line in table:
            try:
                name, kind, ranks, nbytes, measured = read(line)
            except (TypeError, ValueError):
                where = f"{path}:{table.line_num}"
                raise CalibrationError(f"{where}: ranks, bytes and microseconds must be numbers") from None
            if name in USES and (name != "l40s" or ranks == 2 or nbytes <= STAGED):
                yield _row(path.stem, name, kind, ranks, nbytes, measured * 1e-6)


def _reader(path: Path, columns: set[str]) -> Callable[[dict[str, str]], tuple[str, str, int, float, float]]:
    if {"gpu", "collective", "ranks", "size_bytes", "time_us"} <= columns:
        return lambda line: (
            line["gpu"],
            line["collective"],
            int(line["ranks"]),
            float(line["size_bytes"]),
            float(line["time_us"]),
        )
    if {"gpu", "ngpus", "size_bytes", "in_place_us"} <= columns:
        return lambda line: (
            line["gpu"],
            REDUCE,
            int(line["ngpus"]),
            float(line["size_bytes"]),
            float(line["in_place_us"]),
        )
    if {"nodes", "gpus_total", "size_bytes", "time_us"} <= columns:
        return lambda line: (
            "A100" if line["nodes"] == "1" else "4 nodes",
            REDUCE,
            int(line["gpus_total"]),
            float(line["size_bytes"]),
            float(line["time_us"]),
        )
    if {"size_bytes", "in_place_us"} == columns - {"source", "licence"}:
        return lambda line: ("H100", REDUCE, 8, float(line["size_bytes"]), float(line["in_place_us"]))
    raise CalibrationError(f"{path} is no table of collectives: it lacks gpu, ngpus, size_bytes, in_place_us")


def _row(data: str, name: str, kind: str, ranks: int, nbytes: float, measured: float) -> FitRow:
    size = "< 16 MiB" if nbytes < 2**24 else ">= 16 MiB"
    word = "" if kind == REDUCE else f"{kind.replace('_', '-')}, "
    return FitRow(
        f"{data}: {word}{ranks} GPUs of {name}, {nbytes:.0f} B",
        measured,
        lambda values: predicted(name, kind, ranks, nbytes, values),
        {"data": data, "machine": name, "gpus": f"{ranks} {name}", "size": size},
        _used(name, kind, ranks, nbytes),
        _noise(name, nbytes),
    )


def _noise(name: str, nbytes: float) -> float:
    if name not in PRESETS:
        return 0.03
    return RELEASES if nbytes < LARGE else 0.02


def _used(name: str, kind: str, ranks: int, nbytes: float) -> frozenset[str]:
    """The names of the parameters on which a row depends."""
    chosen = choice(name, kind, ranks, nbytes)
    common = {one for one in USES[name] if ONLY.get(one, chosen) == chosen}
    link = _shipped(name).topology(tuple(range(ranks))).properties.link
    measured = link in nccl_generations.GENERATIONS and link not in _shipped(name).transport.newer_links
    generation = nccl_generations.used(link, *chosen) if measured else ()
    return frozenset({"launch", *common, *generation})
