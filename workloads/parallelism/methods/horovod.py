"""Horovod: ready gradients are negotiated in cycles, fused in one buffer, and all-reduced one buffer after the other.

Sergeev and Del Balso 2018 (arXiv:1802.05799); github.com/horovod/horovod, docs/tensor-fusion and common/operations.cc.
A thread of each rank wakes once a *cycle*. In the first step every rank tells the coordinator, rank 0, which gradients
its host has asked for (a gather); the coordinator answers with those that all ranks ask for (a broadcast). Since
version 0.16.2 each rank keeps these answers in a cache of *cache_capacity* gradients, so in later steps, which are
simulated here, the ranks only combine a bit for each of them (an all-reduce by bitwise "and":
common/response_cache.cc, ``CacheCoordinator::sync``). A model with more gradients than the cache holds evicts each
before its reuse and negotiates all of them in every step, as does a cache of 0.

The thread then waits until the gradients of a buffer, at most *fusion* bytes, are computed, and issues its copies and
its all-reduce; then follows the next buffer. A gradient that is alone in its buffer is not copied. Averaging divides by
the number of ranks, in the kernel that copies back if copies are batched.

The host asks for a gradient when it has launched the kernels that make it, ahead of the GPU. So a slow step has large
buffers, and the last one waits for the end of the backward pass. Which gradients share a buffer is taken from the times
of the kernels on the first GPU, without variation; a buffer then waits for its gradients wherever they are late.

*hierarchical*: reduce-scatter within nodes, all-reduce across them, all-gather within them. Not modelled: Horovod's
copies to the host between these, and cycles in which no rank asks for anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, ClassVar, Literal

from clustersim.simulator.hardware.kernel import BYTES, Kernel
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.quantities import Duration, Flag, Index, Size, Time
from clustersim.simulator.reading.units import show
from clustersim.simulator.schedule.ops import Collective, Compute, Delay, Op
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.gradients import actions, backward_ops, map_replicas, weights_by_stage
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.parallelism._parallelism import DataMethod, TrainingStep

NEGOTIATION = "horovod"
"""The stream of the thread that negotiates."""

REQUEST_BYTES = 100.0
"""About what a rank sends for a gradient, and gets back: its name, shape, type and device (horovod/common/wire/
message.fbs); the name of a variable of TensorFlow has some 60 characters."""

STATUS_BITS = 3
"""Bits beside those of the cache: shut down, gradients outside of it, invalid ones (common/response_cache.h). Bits are
sent in words of 64."""

REQUEST_SECONDS = 1e-6
"""About what the coordinator needs to parse a request and add it to the table of its gradient (horovod/common/
operations.cc, ``IncrementTensorCount``): a program that does the same for 512 ranks and 314 gradients took 1.3 us of a
core of a Xeon for each."""


BATCHED = 160
"""Gradients that one kernel copies (horovod/common/ops/cuda/cuda_kernels.h, BATCHED_D2D_CAPACITY)."""


class Horovod(DataMethod):
    """Gradients that are ready at the same time are fused and all-reduced, as by Horovod."""

    whole_model: ClassVar[bool] = True

    method: Literal["horovod"]
    """horovod: fused gradients of a cycle are all-reduced."""
    fusion: Size = 128 * 2**20
    """Bytes of the buffer in which gradients are fused; by default 128 MiB (64 MiB in Horovod before version 0.21)."""
    cycle: Duration = 1e-3
    """Time between two negotiations; by default 1 ms (5 ms in Horovod before version 0.18)."""
    cache_capacity: Index = 1024
    """Gradients whose negotiation is remembered (HOROVOD_CACHE_CAPACITY); by default 1024; 0, as before version 0.16.2,
    negotiates every gradient in every step."""
    request: Time = REQUEST_SECONDS
    """Time of the coordinator for the message of one rank about one gradient that is not in the cache; by default
    1 us."""
    batch_copies: Flag = True
    """One kernel copies up to 160 gradients to or from the buffer (HOROVOD_BATCH_D2D_MEMCOPIES); by default true.
    False, as before version 0.21: each is copied and divided by kernels of its own."""
    hierarchical: Flag = False
    """All-reduces run within nodes and across them (HOROVOD_HIERARCHICAL_ALLREDUCE)."""

    @property
    def broadcasts(self) -> bool:
        """Every rank has the whole model."""
        return True

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """Reduce the gradients of all replicas."""

        def reduced(program: Program, degrees: Mapping[str, int]) -> Program:
            gradients = _gradients(program, step)
            cached = len(gradients) <= self.cache_capacity
            cycles = fused_by_cycle(gradients, self.cycle, self.fusion)
            program = _inserted(program, list(_Ops(self, step, degrees[REPLICAS], cached).cycles(cycles)))
            buffers = program.resident.get("buffers", 0.0) + self.fusion
            return replace(program, resident={**program.resident, "buffers": buffers})

        return map_replicas(schedule, step.model, reduced)

    def facts(self) -> Mapping[str, Any]:
        """The buffer and the cycle."""
        return {"fusion": show(self.fusion, "size"), "cycle": show(self.cycle, "time")}


@dataclass(frozen=True, slots=True)
class Gradient:
    """*nbytes* of a gradient. The op *made_by* completes it *ready* s after the begin of the step.

    The host asks for it *asked* s after the begin.
    """

    nbytes: float
    made_by: str
    asked: float
    ready: float


@dataclass(frozen=True, slots=True)
class Cycle:
    """A negotiation and its *buffers*, so many *cycles* after the one before, or later if the thread is busy."""

    cycles: int
    buffers: tuple[tuple[Gradient, ...], ...]


def fused_by_cycle(gradients: Sequence[Gradient], cycle: float, most: float) -> list[Cycle]:
    """The cycles, every *cycle* s, that find *gradients*, which are in order of asking, and their buffers.

    A buffer holds at most *most* bytes, or one larger gradient. The thread is late if it waits for gradients.

    >>> early = [Gradient(size, "op", asked, ready) for size, asked, ready in ((1, 0.5, 1.5), (4, 0.6, 9.0), (1, 2, 9))]
    >>> [[[g.nbytes for g in one] for one in found.buffers] for found in fused_by_cycle(early, 1.0, 4.0)]
    [[[1], [4]], [[1]]]
    """
    found: list[Cycle] = []
    begin, free, left = 0.0, 0.0, list(gradients)
    while left:
        cycles = max(1, ceil((left[0].asked - begin) / cycle))
        begin = max(begin + cycles * cycle, free)
        asked = [gradient for gradient in left if gradient.asked <= begin]
        left = left[len(asked) :]
        found.append(Cycle(cycles, _filled(asked, most)))
        free = max(begin, *(gradient.ready for gradient in asked))
    return found


def _filled(gradients: Sequence[Gradient], most: float) -> tuple[tuple[Gradient, ...], ...]:
    """*gradients* in buffers of at most *most* bytes, in order."""
    buffers: list[list[Gradient]] = [[]]
    for gradient in gradients:
        if buffers[-1] and sum(one.nbytes for one in buffers[-1]) + gradient.nbytes > most:
            buffers.append([])
        buffers[-1].append(gradient)
    return tuple(map(tuple, buffers))


def _gradients(program: Program, step: TrainingStep) -> list[Gradient]:
    """The gradients of *program*, in order of the backward pass of the last micro-batch."""
    ready, asked = dict[str, float](), dict[str, float]()
    now = issued = 0.0
    for op in program.ops:
        kernels = op.kernels if isinstance(op, Compute) else ()
        issued += sum(_host_seconds(kernel, step) for kernel in kernels)
        now += step.accelerator.seconds(kernels, step.software) if step.accelerator else 0.0
        ready[op.name], asked[op.name] = now, min(issued, now)
    width = BYTES[step.gradient_dtype or step.model.precision]
    by_layer = {own.name: own for stage in weights_by_stage(program, step.model).values() for own in stage}
    return [
        Gradient(float(tensor.count * width), name, asked[name], ready[name])
        for layer, name in _completing(program).items()
        for tensor in reversed(by_layer[layer].tensors)
    ]


def _host_seconds(kernel: Kernel, step: TrainingStep) -> float:
    """How long the host launches *kernel*; a given duration does not tell, so then it is not ahead of the GPU."""
    return step.software.launch_seconds * kernel.launches if kernel.seconds is None else kernel.seconds


def _completing(program: Program) -> dict[str, str]:
    """By layer, the name of the op that completes its gradients: of the last micro-batch."""
    last = next(actions(program, "BW", from_end=True))[1].micro_batch
    made = backward_ops(program.materialise({last}))
    return {layer: names[-1] for (action, layer), names in made.items() if action.micro_batch == last}


@dataclass(frozen=True)
class _Ops:
    """Makes the ops of cycles; *ranks*: how many negotiate; *cached*: all gradients are in the cache."""

    method: Horovod
    step: TrainingStep
    ranks: int
    cached: bool

    def cycles(self, cycles: Sequence[Cycle]) -> Iterator[Op]:
        """The ops of all *cycles*, in order."""
        begun = ""
        for number, cycle in enumerate(cycles):
            name = f"cycle {number}"
            # the timer of a cycle runs from the begin of the one before
            seconds, after = cycle.cycles * self.method.cycle, (begun,) if begun else ()
            yield Delay(name=f"{name}.timer", stream=f"{NEGOTIATION}.timer", seconds=seconds, after=after)
            begun = f"{name}.begin"
            yield Delay(name=begun, stream=NEGOTIATION, seconds=0.0, after=(f"{name}.timer",))
            yield from self._negotiation(name, sum(len(buffer) for buffer in cycle.buffers))
            for place, buffer in enumerate(cycle.buffers):
                yield from self._reduction(f"{name}.buffer{place}", buffer)

    def _negotiation(self, name: str, count: int) -> Iterator[Op]:
        """The bits of the cache, or the requests of all ranks for so many gradients, and the coordinator's answer."""
        if self.cached:
            nbytes = ceil((self.method.cache_capacity + STATUS_BITS) / 64) * 8.0
            bits = Collective(name=f"{name}.bits", kind="all_reduce", over=REPLICAS, nbytes=nbytes, stream=NEGOTIATION)
            yield replace(bits, algorithm="halving_doubling")
            return
        nbytes = REQUEST_BYTES * count
        requests = Collective(name=f"{name}.requests", kind="gather", over=REPLICAS, nbytes=nbytes * self.ranks)
        yield replace(requests, algorithm="direct", stream=NEGOTIATION)
        seconds = self.method.request * count * self.ranks
        yield Delay(name=f"{name}.coordinator", stream=NEGOTIATION, seconds=seconds)
        yield Collective(name=f"{name}.answer", kind="broadcast", over=REPLICAS, nbytes=nbytes, stream=NEGOTIATION)

    def _reduction(self, name: str, buffer: Sequence[Gradient]) -> Iterator[Op]:
        """The all-reduce of *buffer* between its copies, once its gradients are there."""
        nbytes, fused = sum(gradient.nbytes for gradient in buffer), len(buffer) > 1
        made_by = dict.fromkeys(gradient.made_by for gradient in buffer)
        yield Delay(name=f"{name}.computed", stream=NEGOTIATION, seconds=0.0, after=tuple(made_by))
        yield self._copies(f"{name}.in", 2 * nbytes * fused, len(buffer), (f"{name}.computed",))
        reduced = Collective(name=name, kind="all_reduce", over=REPLICAS, nbytes=nbytes, stream=REPLICAS)
        yield replace(reduced, algorithm="hierarchical") if self.method.hierarchical else reduced
        # copied back, and divided by the number of ranks
        passes = 1 if self.method.batch_copies else fused + 1
        yield self._copies(f"{name}.out", 2 * nbytes * passes, len(buffer) * passes, ())

    def _copies(self, name: str, nbytes: float, tensors: int, after: tuple[str, ...]) -> Compute:
        launches = ceil(tensors / BATCHED) if self.method.batch_copies else tensors
        kernels = (Kernel(nbytes=nbytes, launches=launches),) if nbytes and _priced(self.step.model) else ()
        return Compute(name=name, kernels=kernels, stream=REPLICAS, after=after)


def _priced(model: Model) -> bool:
    """True unless the durations of *model* are given."""
    return model.optimizer_seconds is None


def _inserted(program: Program, ops: Sequence[Op]) -> Program:
    """*program* with *ops* before its optimizer step, which waits for the last of them."""

    def change(op: Op) -> Iterator[Op]:
        if op.action and op.action.phase == "O":
            yield from ops
            op = replace(op, after=(*op.after, *(one.name for one in ops[-1:])))
        yield op

    last = next(actions(program, "BW", from_end=True))[1].micro_batch
    return program.materialise({last}).map_ops(change)
