"""All-reduces measured by nccl-tests and by torch: the rows and the parameters of the fit of NCCL.

Sweeps with a process for each GPU show NCCL's own latency. torch, and a process that drives several GPUs, add to it:
the sweeps of both fit one figure. With one process the times of small vectors on many GPUs are those of the host, which
launches a kernel on each GPU in turn; the launch takes longer for more channels. Nothing else explains that 8 A100 take
the same time for 1 MiB as for 4 MiB, and that fewer GPUs take less in proportion (vTrain's full tables).
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
from simulator.network.transport.group_properties import NET, NVLINK
from simulator.network.transport.nccl import nccl
from simulator.network.transport.transport import Transport

NVLS = "nvls", "Simple"

LANDS = "simulator.network.transport.nccl_fitted:transport."

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
        2e-6,
        1e-7,
        20e-6,
        "s",
        "what each round of chunks in the NVSwitches adds",
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
)


USES = {
    "V100": ("ll128_share", "handover", "issue", "issue_channel", "nvlink_share"),
    "A100": ("ll128_share", "handover", "issue", "issue_channel", "ampere_channels"),
    "4 nodes": ("ll128_share", "handover", "net_share", "ampere_channels"),
    "H100": ("ll128_share", "nvlink_share", "nvls_base", "nvls_round", "nvls_share"),
}
"""By machine the parameters on which its rows depend, beside the launch."""


@dataclass(frozen=True)
class Machine:
    """The *cluster* of a sweep, its NCCL *version*, and its *driver*, as in a scenario's collective."""

    cluster: Cluster
    version: str
    driver: str


@lru_cache
def machine(name: str) -> Machine:
    """Return the machine that the tables call *name*.

    One-node tables are of the time of NCCL 2.14 (vTrain ships PyTorch 2.0.1), whose tuning tables are those of 2.10. Of
    the four nodes only the numbers of nodes and GPUs are published; 800 Gb/s each is inferred from a busbw of 92 GB/s.
    """
    if name == "V100":
        return Machine(topologies.cluster("dgx1"), "2.10", "one_process")
    if name == "A100":
        return Machine(topologies.cluster("dgx_a100_80gb"), "2.10", "one_process")
    if name == "H100":
        return Machine(topologies.cluster("dgx_h100"), "2.30", "processes")
    four = {"preset": "dgx_a100_80gb", "nodes": 4, "node": {"nics": 4}}
    return Machine(topologies.cluster(four), "2.30", "torch")


def library(version: str, values: Values) -> Transport:
    """Return NCCL of that *version* with the fit's *values*."""
    return laid(nccl(version), values)


def laid(shipped: Transport, values: Values) -> Transport:
    """Return *shipped* with the fit's *values*."""
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


def predicted(machine: Machine, ranks: int, nbytes: float, values: Values) -> float:
    """Return the seconds of one all-reduce of *nbytes* among the first *ranks* GPUs, as nccl-tests measures it."""
    transport = library(machine.version, values)
    if machine.driver == "processes":
        transport = replace(transport, handover=0.0)
    communicator = Communicator(machine.cluster, machine.cluster.gpus, transport)
    group = tuple(range(ranks))
    plan = communicator.collective("all_reduce", "dp", group, nbytes)
    if machine.driver != "one_process":
        return plan.alone
    channels = plan.sms * machine.cluster.accelerator(machine.cluster.gpus[0]).sms
    return max(plan.alone, transport.host_seconds(ranks, channels))


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
    if {"size_bytes", "in_place_us"} == columns - {"source", "licence"}:
        return lambda line: ("H100", 8, float(line["size_bytes"]), float(line["in_place_us"]))
    raise CalibrationError(f"{path} is no table of all-reduces: it lacks gpu, ngpus, size_bytes, in_place_us")


def _row(data: str, name: str, ranks: int, nbytes: float, measured: float) -> Row:
    ran_on = machine(name)
    uses = {"launch", *USES[name]}
    size = "< 16 MiB" if nbytes < 2**24 else ">= 16 MiB"
    return Row(
        f"{data}: {ranks} GPUs of {name}, {nbytes:.0f} B",
        measured,
        lambda values: predicted(ran_on, ranks, nbytes, values),
        {"data": data, "machine": name, "gpus": f"{ranks} {name}", "size": size},
        frozenset(uses),
    )
