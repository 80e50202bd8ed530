"""The memory that a schedule needs on its tightest GPU: tensors and reserved memory, beside the GPU's capacity.

`check`, `show advice` and `run` all take this sum, so that they give the same answer. They differ in the tensors:
`run` has the peak of a simulation, the others an upper bound by program order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from math import isfinite

import numpy as np

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.derived import reserved_bytes
from clustersim.scenarios.build.network import network_of
from clustersim.simulator.analysis.memory import Memory, bound, stages
from clustersim.simulator.analysis.memory_upper_bound import uses_host
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.units import show
from clustersim.simulator.schedule.ops import Copy
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule


def reserved_memory(
    scenario: BuiltScenario,
    schedule: Schedule,
    rank: int,
    devices: Sequence[str] | None = None,
    network: Communicator | None = None,
    activations: float = 0.0,
) -> dict[str, float]:
    """Return the bytes on the GPU of *rank* beyond those that *schedule* allocates, as `reserved_bytes` does.

    *devices*: the GPU or host of each rank, those of *scenario* if not given. *network*: the communicator on them, if
    there is one.
    """
    devices = scenario.derived.devices if devices is None else devices
    communicator = network or network_of(scenario.specification, scenario.cluster(), devices)
    return reserved_bytes(schedule, rank, communicator, scenario.software, activations)


@dataclass(frozen=True, slots=True)
class Store:
    """Bytes that the ranks of one server need in the store *name*, and its *capacity*."""

    name: str
    nbytes: float
    capacity: float

    @property
    def fits(self) -> bool:
        """True if it holds what the ranks need."""
        return self.nbytes <= self.capacity


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes on the GPU of *rank*: those of *tensors* at their peak, the *reserved* ones, and its *capacity*.

    *elsewhere*: what the ranks of the fullest server need beside GPUs. *by_category*: the bytes of tensors.
    """

    rank: int
    tensors: float
    capacity: float
    reserved: Mapping[str, float] = field(default_factory=dict)
    elsewhere: tuple[Store, ...] = ()
    by_category: Mapping[str, float] = field(default_factory=dict)

    @property
    def nbytes(self) -> float:
        """Bytes of tensors and reserved memory together."""
        return self.tensors + sum(self.reserved.values())

    @property
    def fits(self) -> bool:
        """True if the GPU and its host have the memory that they need."""
        return self.nbytes <= self.capacity and all(store.fits for store in self.elsewhere)

    @property
    def amount(self) -> str:
        """The bytes needed and the capacity.

        >>> MemoryNeed(0, 86.04e9, 85.9e9).amount
        '86.0 of 85.9 GB'
        """
        return of_capacity(self.nbytes, self.capacity)

    @property
    def short(self) -> str:
        """The name of the first store beside GPUs that does not hold what the ranks need; none: empty."""
        return next((store.name for store in self.elsewhere if not store.fits), "")

    def bytes_in(self, name: str) -> float:
        """Return the bytes needed in the store *name*; empty: those of the GPU."""
        return sum(store.nbytes for store in self.elsewhere if store.name == name) if name else self.nbytes

    def amount_in(self, name: str) -> str:
        """Return `amount` of the store *name* of a node; empty: of the GPU."""
        amounts = [of_capacity(store.nbytes, store.capacity) for store in self.elsewhere if store.name == name]
        return f"{amounts[0]} of {name}" if amounts else self.amount

    def __str__(self) -> str:
        """Return the bytes needed, the capacity, and whether they fit.

        >>> str(MemoryNeed(0, 84e9, 85.9e9, {"context": 2e9}))
        'needs 86.0 of 85.9 GB: DOES NOT FIT'
        """
        for store in self.elsewhere:
            if not store.fits:
                return f"needs {of_capacity(store.nbytes, store.capacity)} of {store.name} a node: DOES NOT FIT"
        if not isfinite(self.capacity):
            return f"needs {self.amount} a GPU"
        return f"needs {self.amount}: {'fits' if self.fits else 'DOES NOT FIT'}"


def of_capacity(nbytes: float, capacity: float) -> str:
    """Return *nbytes* beside *capacity* in the unit of the capacity, with as many digits as tell them apart.

    >>> of_capacity(2e9, float("inf")), of_capacity(512e6, 16e9), of_capacity(0.0, 16e9)
    ('2 GB', '0.5 of 16.0 GB', '0.0 of 16.0 GB')
    """
    if not isfinite(capacity):
        return show(nbytes, "size", 3)
    unit = show(capacity, "size", 3).split()[1]
    factor = {"PB": 1e15, "TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}[unit]
    digits = 1
    while nbytes > capacity and digits < MOST_DIGITS and f"{nbytes / factor:.{digits}f}" == _rounded(capacity, factor):
        digits += 1
    return f"{nbytes / factor:.{digits}f} of {_rounded(capacity, factor)} {unit}"


MOST_DIGITS = 6
"""Digits after the point at most."""


def _rounded(capacity: float, factor: float) -> str:
    return f"{capacity / factor:.1f}"


def memory_need(
    scenario: BuiltScenario,
    schedule: Schedule,
    memory: Memory | None = None,
    devices: Sequence[str] | None = None,
    network: Communicator | None = None,
) -> MemoryNeed:
    """Return what *schedule* needs on its tightest GPU.

    *memory*: its peak; an upper bound of it if not given. *devices*: the GPU or host of each rank, those of *scenario*
    if not given. *network*: the communicator on them, if there is one. On GPUs of several sizes, each stage must fit
    the smallest GPU among its ranks.
    """
    devices = scenario.derived.devices if devices is None else devices
    memory = bound(schedule, _ranks_on_server(scenario, schedule, devices)) if memory is None else memory
    peak = memory.peak
    accelerators, places = scenario.cluster().accelerators(devices)
    sizes = np.array([one.memory_bytes for one in accelerators])
    capacity = sizes[places[: schedule.mesh.world_size][_on_gpu(schedule)]]
    rank, tensors, least = peak.rank, peak.nbytes, float(capacity.min(initial=np.inf))
    if len(capacity) and least < capacity.max():
        rank, tensors, least = _tightest(schedule, memory, capacity)
    activations = min(tensors, peak.by_category.get("activations", 0.0))
    reserved = reserved_memory(scenario, schedule, rank, devices, network, activations)
    elsewhere = tuple(_elsewhere(scenario, schedule, memory, devices))
    # on GPUs of several sizes, the tightest need not be the fullest
    by_category = peak.by_category if tensors == peak.nbytes else {}
    return MemoryNeed(rank, tensors, least, reserved, elsewhere, by_category)


def _elsewhere(scenario: BuiltScenario, schedule: Schedule, memory: Memory, devices: Sequence[str]) -> Iterator[Store]:
    """Yield the memory of the smallest host, and the drives if there are any, with what the fullest server needs."""
    cluster = scenario.cluster()
    yield Store("host memory", memory.host_bytes, cluster.host_memory(devices))
    stored = [_on_drives(program) for program in schedule.programs]
    if any(stored):
        held: dict[int | str, float] = defaultdict(float)
        for rank, number in enumerate(schedule.program_of):
            held[cluster.node_of(devices[rank])] += stored[number]
        yield Store("NVMe", max(held.values()), min(map(cluster.drive_capacity, cluster.first_of_nodes(devices))))


def _on_drives(program: Program) -> float:
    """The bytes that *program* keeps on drives: it writes each of them once a step."""
    return sum(op.nbytes for op in program.ops if isinstance(op, Copy) and op.to == "nvme") if _writes(program) else 0.0


def _writes(program: Program) -> bool:
    return any(isinstance(op, Copy) and op.to == "nvme" for op in program.distinct())


def _ranks_on_server(scenario: BuiltScenario, schedule: Schedule, devices: Sequence[str]) -> int:
    """The most ranks of one server that hold memory of its host."""
    offloads = [program.on == "gpu" and uses_host(program) for program in schedule.programs]
    node_of = scenario.cluster().node_of
    if not any(offloads):
        return 1
    count = Counter(node_of(devices[rank]) for rank, number in enumerate(schedule.program_of) if offloads[number])
    return max(count.values())


def _on_gpu(schedule: Schedule) -> np.ndarray:
    """By rank, whether it is on a GPU."""
    return np.array([program.on == "gpu" for program in schedule.programs])[schedule.program_numbers]


def _tightest(schedule: Schedule, memory: Memory, capacity: np.ndarray) -> tuple[int, float, float]:
    """Return (rank, bytes of tensors, capacity) of the stage with the least room on the smallest of its GPUs."""
    ranks = np.flatnonzero(_on_gpu(schedule))
    stage = stages(schedule)[ranks]
    found = []
    for number, nbytes in zip(np.unique(stage).tolist(), memory.stages, strict=True):
        mine = np.flatnonzero(stage == number)
        smallest = mine[int(capacity[mine].argmin())]
        found.append((int(ranks[smallest]), nbytes, float(capacity[smallest])))
    return max(found, key=lambda one: one[1] - one[2])
