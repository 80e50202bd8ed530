"""All-reduces measured by nccl-tests: the rows and the parameters of the fit of NCCL.

One-node sweeps drive all GPUs from one process. Their times of small vectors are those of the host, which launches a
kernel on each GPU in turn; the launch takes longer for more channels. Nothing else explains that 8 A100 take the same
time for 1 MiB as for 4 MiB, and that fewer GPUs take less in proportion (vTrain's full tables).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import topologies
from scenarios.fitting.parameter import Parameter, Values
from scenarios.fitting.row import Row
from simulator.cluster import Cluster
from simulator.errors import CalibrationError
from simulator.network.transport.communicator import Communicator
from simulator.network.transport.nccl import nccl
from simulator.network.transport.transport import NET, NVLINK, Transport

LANDS = "simulator.network.transport.nccl_fitted:transport."

PARAMETERS = (
    Parameter(
        "launch",
        20e-6,
        1e-6,
        100e-6,
        "s",
        "what a collective takes on the GPU beside NCCL's own latencies: its kernel is started and drained",
        (LANDS + "launch",),
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
    Parameter("issue", 5e-6, 1e-6, 30e-6, "s", "what the host of a test takes to launch on one more GPU"),
    Parameter("issue_channel", 0.3e-6, 0.01e-6, 3e-6, "s", "and for one more channel there"),
)


@dataclass(frozen=True)
class Machine:
    """The *cluster* of a sweep and its NCCL *version*. *one_process*: one process drives all GPUs; else one each."""

    cluster: Cluster
    version: str
    one_process: bool


@lru_cache
def machine(name: str) -> Machine:
    """Return the machine that the tables call *name*.

    One-node tables are of the time of NCCL 2.14 (vTrain ships PyTorch 2.0.1), whose tuning tables are those of 2.10. Of
    the four nodes only the numbers of nodes and GPUs are published; 800 Gb/s each is inferred from a busbw of 92 GB/s.
    """
    if name == "V100":
        return Machine(topologies.cluster("dgx1"), "2.10", True)
    if name == "A100":
        return Machine(topologies.cluster("dgx_a100_80gb"), "2.10", True)
    four = {"preset": "dgx_a100_80gb", "nodes": 4, "node": {"nics": 4}}
    return Machine(topologies.cluster(four), "2.30", False)


def library(version: str, values: Values) -> Transport:
    """Return NCCL of that *version* with the fit's *values*."""
    return laid(nccl(version), values)


def laid(shipped: Transport, values: Values) -> Transport:
    """Return *shipped* with the fit's *values*."""
    return replace(
        shipped,
        launch=values["launch"],
        efficiency={**shipped.efficiency, NVLINK: values["nvlink_share"], NET: values["net_share"]},
        limits={**shipped.limits, "nvlink3": values["ampere_channels"]},
        shares={**shipped.shares, ("ring", "LL128", False): values["ll128_share"]},
    )


def predicted(machine: Machine, ranks: int, nbytes: float, values: Values) -> float:
    """Return the seconds of one all-reduce of *nbytes* among the first *ranks* GPUs, as nccl-tests measures it."""
    transport = library(machine.version, values)
    communicator = Communicator(machine.cluster, machine.cluster.gpus, transport)
    group = tuple(range(ranks))
    plan = communicator.collective("all_reduce", "dp", group, nbytes)
    if not machine.one_process:
        return plan.alone
    channels = plan.sms * machine.cluster.accelerator(machine.cluster.gpus[0]).sms
    return max(plan.alone, ranks * (values["issue"] + channels * values["issue_channel"]))


def rows(path: Path) -> Iterator[Row]:
    """Yield the measurements of a table of all-reduces. Raises `CalibrationError` if it is none."""
    with path.open() as file:
        table = csv.DictReader(file)
        read = _reader(path, set(table.fieldnames or ()))
        for line in table:
            try:
                name, ranks, nbytes, measured = read(line)
            except (TypeError, ValueError):
                where = f"{path}:{table.line_num}"
                raise CalibrationError(f"{where}: ranks, bytes and microseconds must be numbers") from None
            yield _row(path.stem, name, ranks, nbytes, measured * 1e-6)


def _reader(path: Path, columns: set[str]) -> Callable[[dict[str, str]], tuple[str, int, float, float]]:
    if {"gpu", "ngpus", "size_bytes", "in_place_us"} <= columns:
        return lambda line: (line["gpu"], int(line["ngpus"]), float(line["size_bytes"]), float(line["in_place_us"]))
    if {"nodes", "gpus_total", "size_bytes", "time_us"} <= columns:
        return lambda line: (
            "A100" if line["nodes"] == "1" else "4 nodes",
            int(line["gpus_total"]),
            float(line["size_bytes"]),
            float(line["time_us"]),
        )
    raise CalibrationError(f"{path} is no table of all-reduces: it lacks gpu, ngpus, size_bytes, in_place_us")


def _row(data: str, name: str, ranks: int, nbytes: float, measured: float) -> Row:
    ran_on = machine(name)
    uses = {"launch", "ll128_share", *({"issue", "issue_channel"} if ran_on.one_process else {"net_share"})}
    uses.add("nvlink_share" if name == "V100" else "ampere_channels")
    size = "< 16 MiB" if nbytes < 2**24 else ">= 16 MiB"
    return Row(
        f"{data}: {ranks} GPUs of {name}, {nbytes:.0f} B",
        measured,
        lambda values: predicted(ran_on, ranks, nbytes, values),
        {"data": data, "machine": name, "gpus": f"{ranks} {name}", "size": size},
        frozenset(uses),
    )
