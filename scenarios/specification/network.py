"""The network section: the library, its algorithms, the choice of paths, and the traffic of other jobs."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from clustersim.simulator.network.algorithm_files.algorithm_file import is_file
from clustersim.simulator.network.library.calibration_file import LIBRARIES, loaded
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.lookup import find, is_path, names
from clustersim.simulator.reading.names_and_parameters import known
from clustersim.simulator.reading.quantities import Bandwidth, BelongsTo, Count, Flag, Index, Section, Time
from clustersim.simulator.reading.units import show
from clustersim.simulator.reading.validation import Fault, listed, near
from clustersim.simulator.schedule.ops import COLLECTIVES
from clustersim.topologies.fabrics._network import Policy

QUEUE_PAIRS = 2
"""NCCL has two channels for each ring (`simulator.network.library.nccl.BLOCKS`), each with one queue pair, the
default of NCCL_IB_QPS_PER_CONNECTION (NCCL user guide)."""

OF_ECMP = BelongsTo("routing", "ecmp")

OF_NCCL = BelongsTo("transport", "nccl", among=LIBRARIES)
"""Calibration files and transports of the user's own take the keys of NCCL, too."""


class BackgroundTraffic(Section):
    """Traffic of another job, which shares the links on its way fairly with the traffic of this one."""

    source: str = Field(alias="from")
    """The device that sends, e.g. gpu 0 or host 1; show topology prints names. Required."""
    target: str = Field(alias="to")
    """The device that receives. Required."""
    rate: Bandwidth
    """Bytes/s that the other job sends at most. Required."""
    begin: Time = 0.0
    """When it begins, since the begin of the simulation."""
    end: Time | None = None
    """When it ends; by default it lasts as long as the simulation."""

    @model_validator(mode="after")
    def _moves(self) -> Self:
        if self.source == self.target:
            raise Fault("to", f"{self.target} sends to itself; name another device")
        if self.end is not None and self.end <= self.begin:
            raise Fault("end", f"must be after begin, {show(self.begin, 'time')}")
        return self


class NetworkSection(Section):
    """How communication is simulated."""

    fidelity: Literal["alpha_beta", "flow", "chunk"] = "flow"
    """alpha_beta: a delay for each collective, without contention; flow: flows share links; chunk: flow with each chunk
    on its own."""
    transport: str = "nccl"
    """Communication library: nccl, gloo, ici (the default on TPUs) or ideal, a calibration file (.yaml), or the import
    path of a function of your own."""
    algorithms: dict[str, str] = Field(default_factory=dict)
    """Algorithm by collective (all_reduce) or by axis and collective (dp.all_reduce): auto, a file of
    simulator/network/collectives, an import path, or an algorithm file of MSCCL (.xml) or MSCCL++ (.json)."""

    routing: Policy = "auto"
    """How switches choose among equal-cost paths. adaptive: packets are spread evenly; ecmp: a hash of each connection;
    static: by destination (D-mod-K); auto: adaptive in trees, and in a dragonfly by the sender's router."""
    seed: Annotated[Index | None, OF_ECMP] = None
    """Seed of the hash of ecmp; by default simulation.seed."""
    queue_pairs: Annotated[Count, OF_ECMP] = QUEUE_PAIRS
    """Connections between two GPUs of a group, each with a hash of its own under ecmp."""
    pxn: Annotated[Flag, OF_NCCL] = False
    """Whether a GPU sends to a GPU of another rail through the GPU of its own node on that rail, over NVLink, as NCCL
    does since 2.12 (PXN); else through its own NIC and the spines."""
    relay_gpus: Annotated[Flag, OF_NCCL] = False
    """Whether GPUs of a node without a common NVLink reach each other through a GPU between them, as in a DGX-1 (NCCL's
    NVB paths); else over PCIe."""
    sharp: Annotated[Flag, OF_NCCL] = False
    """Whether InfiniBand switches add (SHARP, of HDR and newer) and NCCL has the plugin for it: all-reduce between
    servers may take sharp, and nvls_sharp on H100 and newer."""
    nvls_tree: Annotated[Flag, OF_NCCL] = True
    """Whether NCCL may take nvls_tree, as it does by itself since 2.18 (its NVLSTree): an all-reduce between servers of
    H100 and newer."""
    version: Annotated[str | None, OF_NCCL] = None
    """Release of NCCL, such as "2.27"; by default the one that knows the GPUs: 2.10 before H100, else 2.30."""
    sockets: Annotated[Count, OF_NCCL] = 1
    """TCP connections of NCCL between two ranks for each channel: NCCL_NSOCKS_PERTHREAD times NCCL_SOCKET_NTHREADS;
    NCCL takes 16 on instances of AWS."""
    background: list[BackgroundTraffic] = Field(default_factory=list)
    """Traffic of other jobs on the same links."""

    @model_validator(mode="after")
    def _on_infiniband(self) -> Self:
        if self.sharp and self.routing == "ecmp":
            raise Fault("sharp", "needs InfiniBand, whose switches have no ecmp; take routing static or adaptive")
        return self

    @model_validator(mode="after")
    def _shared(self) -> Self:
        if self.background and self.fidelity == "alpha_beta":
            raise Fault("background", "needs links that are shared; take fidelity flow or chunk")
        return self

    @field_validator("version", mode="before")
    @classmethod
    def _release(cls, version: object) -> object:
        """A number would lose digits: 2.10 is 2.1."""
        if version is not None and not (isinstance(version, str) and re.fullmatch(r"2\.\d+(\.\d+)*", version)):
            raise ValueError(f'must be a release of NCCL in quotes, such as "2.27", not {version}')
        return version

    @field_validator("transport")
    @classmethod
    def _transport(cls, name: str) -> str:
        name = known(name, "clustersim.simulator.network.library", only=LIBRARIES)
        if is_path(name):
            loaded(name)  # reports faults of the file before anything runs
        return name

    @field_validator("algorithms")
    @classmethod
    def _algorithms(cls, algorithms: dict[str, str]) -> dict[str, str]:
        plain = {}
        for key, given in algorithms.items():
            kind = key.rpartition(".")[2]
            if kind not in COLLECTIVES:
                raise Fault(key, f"is no collective; there are {', '.join(COLLECTIVES)}", near(kind, COLLECTIVES))
            if is_file(given):
                plain[key] = _of_file(key, kind, given)
                continue
            try:
                name = plain[key] = known(given, "clustersim.simulator.network.collectives", ("auto",))
            except Fault as fault:
                raise Fault(key, fault.message, fault.hint) from None
            if name != "auto" and not hasattr(find("clustersim.simulator.network.collectives", name), kind):
                able = [
                    one
                    for one in names("clustersim.simulator.network.collectives")
                    if hasattr(find("clustersim.simulator.network.collectives", one), kind)
                ]
                raise Fault(key, f"{name} has no {kind}; it must be {listed(['auto', *able])}")
        return plain


def _of_file(key: str, kind: str, path: str) -> str:
    """Return *path* if the algorithm file is right and of *kind*. Raises `Fault` at *key*."""
    from clustersim.simulator.network.library import tuner

    try:
        tuner.function(path, kind)
    except SimulatorError as error:
        raise Fault(key, str(error)) from None
    return path
