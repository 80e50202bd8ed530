"""Parameters off the GPU are fetched before each use, layer by layer.

Bandwidth-centric partitioning (Rajbhandari et al. 2021, section 6.1): every rank fetches its own shard over its own
PCIe link, and the ranks gather the layer. A shard is copied to the GPU one layer before it is gathered, and read from a
drive one layer before that (section 6.2). A single rank fetches whole layers, and a rank the whole of experts that no
other rank has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from simulator.kernel import BYTES
from simulator.schedule import Collective, Copy, Op, Program
from workloads.gradients.bucket import Weights
from workloads.memory.offload.places import BEGIN, READ, TO_GPU, Held, Places
from workloads.operators.parameter import ParameterTensor
from workloads.sharding.gathers import unsharded
from workloads.sharding.states import added


def with_fetches(program: Program, held: Held, places: Places, degrees: Mapping[str, int]) -> Program:
    """Return *program* with the copies of its parameters.

    *degrees*: the number of shards by each axis over which parameters are gathered.
    """
    if any(_gathers(op, degrees) for op in program.distinct()):
        program = _with_shards_fetched(program, held, places, degrees)
    return _with_whole_fetched(program, held, places, degrees)


def _with_whole_fetched(program: Program, held: Held, places: Places, degrees: Mapping[str, int]) -> Program:
    """Return *program* with the copies of tensors without shards: all of a single rank, or experts of this rank."""
    weights = (one for own in held.stages.values() for one in own)
    layers = {one.name: Weights(one.name, tuple(t for t in one.tensors if _whole(t, degrees))) for one in weights}
    if not any(one.parameters for one in layers.values()):
        return program
    wide = held.widening()

    def fetched(gather: Collective) -> Iterator[Op]:
        yield from _copies(gather, gather.nbytes * wide, places, gather.after, gather.after, {"buffers": gather.nbytes})

    width = BYTES[held.precision]
    return unsharded(program, layers, width, "", overlap=places.overlap, suffix=" whole", made=fetched)


def _whole(tensor: ParameterTensor, degrees: Mapping[str, int]) -> bool:
    return tensor.reduced_over[-1] not in degrees


def _with_shards_fetched(program: Program, held: Held, places: Places, degrees: Mapping[str, int]) -> Program:
    wide = held.widening()
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
