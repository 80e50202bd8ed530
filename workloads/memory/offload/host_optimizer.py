"""The optimizer step on the cores of the host, tile by tile.

While the host updates a tile, the tile before it is copied to the GPU (Ren et al. 2021, section 5.1), on a stream of
its own whether other copies overlap or not (DeepSpeed, csrc/adam/cpu_adam_impl.cpp). Tiles on drives are read one ahead
and written back one behind (Rajbhandari et al. 2021, section 6.2). The update reads gradients and reads and writes
master weights and states, so the memory of the host bounds it; ranks of one processor share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from clustersim.simulator.hardware.kernel import BYTES, memory_bound
from clustersim.simulator.schedule.ops import Compute, Copy, Op
from clustersim.simulator.schedule.program import OpBlock, Program, TemplatedOps
from clustersim.workloads.data_parallel.gradients import updated_stages
from clustersim.workloads.memory.offload.places import BEGIN, ON_HOST, READ, TO_GPU, WRITE, HeldStates, Places
from clustersim.workloads.memory.optimizer import optimizer_kernels

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
