"""Where the states of training live, and the optimizer step on the cores of the host, tile by tile.

While the host updates a tile, the tile before it is copied to the GPU (Ren et al. 2021, section 5.1), on a stream of
its own whether other copies overlap or not (DeepSpeed, csrc/adam/cpu_adam_impl.cpp). Tiles on drives are read one ahead
and written back one behind (Rajbhandari et al. 2021, section 6.2). The update reads gradients and reads and writes
master weights and states, so the memory of the host bounds it; ranks of one processor share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

from clustersim.simulator.hardware.kernel import BYTES, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.ops import Compute, Copy, Op
from clustersim.simulator.schedule.program import OpBlock, Program, TemplatedOps
from clustersim.workloads.data_parallel.buckets import Weights
from clustersim.workloads.data_parallel.gradients import updated_stages, weights_by_stage
from clustersim.workloads.memory.optimizer import BY_SHAPE, BY_TENSOR, Optimizer, optimizer_kernels, state_bytes
from clustersim.workloads.operators.model import Model

TILE = 128 * 1024 * 1024
"""Elements of a tile of the update (DeepSpeed, csrc/includes/cpu_adam.h, ``TILE``)."""

BUFFERS = 3
"""Tiles of states of a drive in host memory: one is read, one updated, one written."""

MOST_TILES = 256
"""Tiles of an update that are simulated at most; beyond it they are larger."""


def with_host_updates(program: Program, held: HeldStates, places: Places, last_copy: Mapping[str, str]) -> Program:
    """Return *program* with its updates on the host; each waits for the copy of *last_copy*, by update."""
    updates = updated_stages(program)
    blocks: list[OpBlock] = []
    computed = ""
    for block in program.blocks:
        if any(op.name in updates for op in block.ops):
            ops: list[Op] = []
            for op in block.materialise().ops:
                if isinstance(op, Compute) and op.name in updates:
                    one = _Update(op, held.elements(sorted(updates[op.name])) * places.fraction, held, places)
                    ready = tuple(dict.fromkeys(filter(None, (*op.after, computed, last_copy.get(op.name, "")))))
                    ops += one.delayed(ready) if places.delayed else one.at_once(ready)
                else:
                    ops.append(op)
                computed = op.name if op.stream == "compute" else computed
            blocks.append(OpBlock(tuple(ops), block.micro_batch))
        else:
            blocks.append(block)
            last = next((op.name for op in reversed(block.ops) if op.stream == "compute"), "")
            computed = block.name(last) or computed
    return program.with_templated_ops(TemplatedOps(_early(blocks) if places.delayed else blocks))


def _early(blocks: Sequence[OpBlock]) -> list[OpBlock]:
    """*blocks* with the updates behind the first: the gradients of the step before are there when a step begins."""
    updates = tuple(op for block in blocks for op in block.ops if op.stream == ON_HOST)
    rest = [
        OpBlock(tuple(op for op in block.ops if op.stream != ON_HOST), block.micro_batch)
        if any(op.stream == ON_HOST for op in block.ops)
        else block
        for block in blocks
    ]
    return [rest[0], OpBlock(updates), *rest[1:]]


@dataclass(frozen=True, slots=True)
class Places:
    """Where *optimizer* states, *gradients* and *parameters* live: ``gpu``, ``host`` or ``nvme``.

    - *fraction*: the share of the optimizer states that leaves the GPU.
    - *delayed*: the host updates with the gradients of the step before.
    - *fused*: the update on the host is one pass over all tensors, else torch's operations one by one.
    - *overlap*: copies run beside computation.
    - *full_precision*: parameters and gradients cross to the host in fp32, and the host adds gradients up, as in FSDP;
      else in the precision of the model, and the GPU adds them up, as in DeepSpeed.
    - *master_on_gpu*: the GPU keeps fp32 master weights beside those of the host, which come back in fp32 and are cast
      there, as in Megatron Core (optimizer/cpu_offloading/hybrid_optimizer.py, ``param_update_in_fp32``).
    """

    optimizer: str = "gpu"
    gradients: str = "gpu"
    parameters: str = "gpu"
    fraction: float = 1.0
    delayed: bool = False
    fused: bool = True
    overlap: bool = True
    full_precision: bool = False
    master_on_gpu: bool = False

    @property
    def crosses_in_fp32(self) -> bool:
        """True if parameters come back to the GPU in fp32."""
        return self.full_precision or self.master_on_gpu


@dataclass(frozen=True)
class HeldStates:
    """What a rank has of the states: the weights of its *stages*, and the *share* of the trained ones that it updates.

    *element*: bytes per parameter by category of memory. *parameter*, *gradient*: bytes of one as it crosses to the
    host. *optimizer*, *precision*: as in `state_bytes`.
    """

    stages: Mapping[int, Sequence[Weights]]
    share: float
    element: Mapping[str, float]
    parameter: int
    gradient: int
    optimizer: Optimizer
    precision: str

    def elements(self, stages: Sequence[int]) -> float:
        """Return the number of parameters of *stages* that the rank updates."""
        weights = (weights.trained for stage in stages for weights in self.stages.get(stage, ()))
        return self.share * sum(one.parameters for one in weights)

    def widening(self) -> float:
        """Return the bytes of parameters that cross to the GPU, by those that ranks gather; frozen ones cross as held.

        It is the mean over all layers.
        """
        width = BYTES[self.precision]
        weights = [one for own in self.stages.values() for one in own]
        gathered = sum(one.gathered(width) for one in weights)
        trained = sum(one.trained.gathered(width) for one in weights)
        return 1.0 + (self.parameter / width - 1.0) * trained / gathered


@dataclass(frozen=True)
class _Update:
    """The optimizer step *op*, which updates *elements* on the host."""

    op: Compute
    elements: float
    held: HeldStates
    places: Places

    @property
    def _tiles(self) -> int:
        return min(MOST_TILES, max(1, ceil(self.elements / TILE)))

    def at_once(self, ready: tuple[str, ...]) -> list[Op]:
        """Return the step that begins when the ops *ready* have ended, and that the GPU awaits."""
        copies = self._copies(ready)
        return [*self._on_gpu(), *copies, self._end(_last_of_streams(copies))]

    def delayed(self, ready: tuple[str, ...]) -> list[Op]:
        """Return the step that needs nothing of this batch; its parameters replace the old ones after *ready*."""
        copies = self._copies((BEGIN,))
        late = [replace(op, after=(*op.after, *ready)) if op.stream == TO_GPU else op for op in copies]
        return [*late, self._end((*ready, *_last_of_streams(late)))]

    def _copies(self, ready: tuple[str, ...]) -> list[Copy]:
        """Return the copies of all tiles; the read of a tile is issued before the update of the tile before it."""
        tiles = [list(self._tile(number, ready)) for number in range(self._tiles)]
        reads = [[op for op in tile if op.stream == READ] for tile in tiles]
        issued = [*reads[0]]
        for number, tile in enumerate(tiles):
            issued += [op for following in reads[number + 1 : number + 2] for op in following]
            issued += [op for op in tile if op.stream != READ]
        return issued

    def _on_gpu(self) -> Iterator[Op]:
        """Yield the update of the share that stays on the GPU."""
        share = 1.0 - self.places.fraction
        if share:
            kernels = tuple(replace(one, nbytes=one.nbytes * share) for one in self.op.kernels)
            held = {name: nbytes * share for name, nbytes in self.op.allocates.items()}
            yield replace(self.op, name=f"{self.op.name}.gpu", kernels=kernels, allocates=held, frees=held)

    def _tile(self, number: int, ready: tuple[str, ...]) -> Iterator[Copy]:
        """Yield the copies of one tile: read, update, write, copy to the GPU."""
        name, elements = f"{self.op.name}.tile{number}", self.elements / self._tiles
        states = elements * self.held.element["optimizer"]
        update = self._copy(name, self._traffic(elements), "host", "host", ON_HOST, ready)
        on_drive = self.places.optimizer == "nvme"
        if on_drive:
            before = (f"{self.op.name}.tile{number - BUFFERS}.write",) if number >= BUFFERS else ()
            read = self._copy(f"{name}.read", states, "host", "nvme", READ, (*ready, *before))
            yield replace(read, allocates={"host.buffers": states})
            update = replace(update, after=(*ready, f"{name}.read"))
        yield update
        nbytes = elements * self.held.parameter
        if self.places.parameters == "nvme":
            yield self._copy(f"{name}.keep", nbytes, "nvme", "host", WRITE, (name,))
        if on_drive:
            write = self._copy(f"{name}.write", states, "nvme", "host", WRITE, (name,))
            yield replace(write, frees={"host.buffers": states})
        if self.places.parameters == "gpu":
            yield self._copy(f"{name}.in", nbytes, "gpu", "host", TO_GPU, (name,))

    def _copy(self, name: str, nbytes: float, to: str, source: str, stream: str, after: tuple[str, ...]) -> Copy:
        action = self.op.action
        return Copy(name=name, action=action, nbytes=nbytes, to=to, source=source, stream=stream, after=after)

    def _traffic(self, elements: float) -> float:
        """Return the bytes that the update of *elements* reads and writes."""
        gradient = "fp32" if self.held.gradient == 4 else "fp16"
        precision = "fp32" if self.places.crosses_in_fp32 else self.held.precision
        fused = self.places.fused
        kernels = optimizer_kernels(elements, self.held.optimizer, precision, gradient, fused=fused)
        return sum(kernel.nbytes for kernel in kernels)

    def _end(self, awaited: tuple[str, ...]) -> Compute:
        """Return the op at which the GPU has waited for the step; it has the name of the step.

        It casts parameters that come back in fp32 to those of the model.
        """
        cast = self.elements * (BYTES["fp32"] + BYTES[self.held.precision]) if self.places.master_on_gpu else 0.0
        kernels = (memory_bound(cast),) if cast and self.held.precision != "fp32" else ()
        return Compute(name=self.op.name, action=self.op.action, kernels=kernels, after=awaited)


def _last_of_streams(copies: Sequence[Copy]) -> tuple[str, ...]:
    """The name of the last of *copies* on each stream."""
    return tuple({op.stream: op.name for op in copies}.values())


TO_GPU, TO_HOST = "offload.in", "offload.out"
"""Streams of copies to the GPU and to the host: a GPU has a copy engine for each direction."""

ON_HOST = "offload.host"
"""The stream of computations on the host."""

BEGIN = "offload.begin"
"""The name of an op without work at the begin of a step, which copies await that need nothing else of it."""

READ, WRITE = "nvme.read", "nvme.write"
"""Streams of copies from and to NVMe drives."""


def held_by(
    program: Program, model: Model, optimizer: Optimizer, gradient_dtype: str, places: Places
) -> HeldStates | None:
    """Return what *program* has of the states of *model*; None if it updates nothing.

    Raises `ScenarioError` if the optimizer has no states that could leave the GPU, or no implementation on the host.
    """
    if optimizer.name in (*BY_SHAPE, *BY_TENSOR):
        raise ScenarioError(f"{optimizer.name} has no update on the host; take adam, or keep its states on the GPU")
    stages = weights_by_stage(program, model) if program.on == "gpu" else {}
    total = sum(weights.trained.parameters for own in stages.values() for weights in own)
    if not total or not updated_stages(program):
        return None
    element = state_bytes(optimizer, model.precision, gradient_dtype)
    if not element["optimizer"]:
        raise ScenarioError(f"{optimizer.name} in {model.precision} has no states that could leave the GPU; take adam")
    owned = program.resident["optimizer"] / element["optimizer"]
    full = BYTES["fp32"]
    parameter = full if places.crosses_in_fp32 else BYTES[model.precision]
    gradient = full if places.full_precision else BYTES[gradient_dtype]
    return HeldStates(stages, owned / total, element, parameter, gradient, optimizer, model.precision)


def with_places(program: Program, held: HeldStates, places: Places) -> Program:
    """Return *program* with its resident states where *places* has them; those on drives are in neither memory."""
    resident = dict(program.resident)
    away = resident["optimizer"] * places.fraction
    owned = resident["optimizer"] / held.element["optimizer"]
    master = BYTES["fp32"] if places.master_on_gpu and held.precision != "fp32" else 0
    resident["optimizer"] -= away - owned * places.fraction * master
    host = {"gradients": owned * places.fraction * held.gradient * (2 if places.delayed else 1)}
    if places.optimizer == "host":
        host["optimizer"] = away
    if places.gradients == "host":
        resident["gradients"] = resident.get("gradients", 0.0) * (1.0 - places.fraction)
    if places.parameters != "gpu":
        # trained parameters in fp32 are those of the optimizer
        doubled = owned * BYTES[held.precision] if places.full_precision and held.precision != "fp32" else 0.0
        kept = max(0.0, resident["parameters"] - doubled)
        host["parameters"] = kept if places.parameters == "host" else 0.0
        resident["parameters"] = 0.0
    on_host = {f"host.{category}": nbytes for category, nbytes in host.items() if nbytes}
    return replace(program, resident={**{name: n for name, n in resident.items() if n}, **on_host})
