"""Parameters off the GPU are fetched before each use, layer by layer.

Bandwidth-centric partitioning (Rajbhandari et al. 2021, section 6.1): every rank fetches its own shard over its own
PCIe link, and the ranks gather the layer. A shard is copied to the GPU one layer before it is gathered, and read from a
drive one layer before that (section 6.2). A single rank fetches whole layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from simulator.kernel import BYTES
from simulator.schedule import Collective, Copy, Op, Program
from workloads.memory.offload.places import BEGIN, READ, TO_GPU, Held, Places
from workloads.memory.sharding import added
from workloads.memory.unshard import unsharded


def with_fetches(program: Program, held: Held, places: Places, degrees: Mapping[str, int]) -> Program:
    """Return *program* with the copies of its parameters.

    *degrees*: the number of shards by each axis over which parameters are gathered.
    """
    if any(_gathers(op, degrees) for op in program.distinct()):
        return _with_shards_fetched(program, held, places, degrees)
    layers = {weights.name: weights for own in held.stages.values() for weights in own}
    wide = held.parameter / BYTES[held.precision]

    def fetched(gather: Collective) -> Iterator[Op]:
        yield from _copies(gather, gather.nbytes * wide, places, gather.after, gather.after, {"buffers": gather.nbytes})

    width = BYTES[held.precision]
    return unsharded(program, layers, width, "", overlap=places.overlap, made=fetched)


def _with_shards_fetched(program: Program, held: Held, places: Places, degrees: Mapping[str, int]) -> Program:
    wide = held.parameter / BYTES[held.precision]
    before: list[tuple[str, ...]] = [(BEGIN,), (BEGIN,)]
    ops: list[Op] = []
    for op in program.ops:
        if isinstance(op, Collective) and _gathers(op, degrees):
            nbytes = op.nbytes / degrees[op.over] * wide
            name = f"{op.name}.fetch"
            ops += _copies(replace(op, name=name), nbytes, places, before[-1], before[-2], {"buffers": nbytes})
            before.append(op.after or (BEGIN,))
            ops.append(replace(op, after=(*op.after, name), frees=added(op.frees, "buffers", nbytes)))
        else:
            ops.append(op)
    return replace(program, ops=tuple(ops))


def _gathers(op: Op, degrees: Mapping[str, int]) -> bool:
    return isinstance(op, Collective) and op.kind == "all_gather" and op.over in degrees and ".gather" in op.name


def _copies(
    gather: Collective,
    nbytes: float,
    places: Places,
    after: tuple[str, ...],
    read_after: tuple[str, ...],
    allocates: Mapping[str, float],
) -> Iterator[Copy]:
    """Yield the copy of *nbytes* to the GPU in place of *gather*, behind the ops *after*, and the read from a drive."""
    blocks = gather.stream == "compute"
    read = ""
    if places.parameters == "nvme":
        read = f"{gather.name}.read"
        stream, buffer = "compute" if blocks else READ, {"host.buffers": nbytes}
        yield Copy(
            name=read,
            action=gather.action,
            nbytes=nbytes,
            to="host",
            source="nvme",
            stream=stream,
            after=read_after,
            allocates=buffer,
        )
    yield Copy(
        name=gather.name,
        action=gather.action,
        nbytes=nbytes,
        to="gpu",
        stream="compute" if blocks else TO_GPU,
        after=(*after, read) if read else after,
        allocates=allocates,
        frees={"host.buffers": nbytes} if read else {},
    )
