"""Parameter servers that exchange part by part: each GPU pushes gradients as they are made, and pulls before it reads.

A *part* is a tensor, a piece of one, or all that a server holds. A GPU pushes a part when the backward pass of its
layer is over, and begins the forward pass of a layer of the next step when the parts of that layer have been pulled.
Pushes of a GPU to one server follow each other, and so do the pulls of a GPU from one server, in order of the pushes.
With *priority* the part that the next forward pass reads first goes before others that wait, as in BytePS and in
ByteScheduler (Peng et al. 2019, "A Generic Communication Scheduler for Distributed DNN Training Acceleration", SOSP). A
part on its way is not interrupted, so parts must be small.

*staleness* s (Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server",
NeurIPS): a GPU begins step t when all GPUs have pushed step t - s - 1. 0: the server sums the gradients of all GPUs,
updates once, and all go on together. None: no GPU waits for others, as in Li et al. 2014 (OSDI). Where s is not 0, the
server updates with each push when it arrives, and answers that GPU at once, or when s permits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil

from clustersim.simulator.hardware.kernel import BYTES, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.mesh import Axis
from clustersim.simulator.schedule.ops import Compute, Op, Recv, Send
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.buckets import Weights
from clustersim.workloads.data_parallel.gradients import backward_ops
from clustersim.workloads.data_parallel.sharded_states import of_shard
from clustersim.workloads.memory.compute import update_op
from clustersim.workloads.memory.optimizer import Optimizer, resident_states
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import ParameterTensor


@dataclass(frozen=True, slots=True)
class PushedPart:
    """Part *number*: so many *parameters* of *layer* at *server*; without a layer, of the whole model."""

    number: int
    parameters: float
    server: int
    layer: str | None = None


def whole_shares(model: Model, servers: int) -> list[PushedPart]:
    """One part for each of *servers*: equal shares of all parameters."""
    return [PushedPart(number, model.trainable_parameters / servers, number) for number in range(servers)]


def parts_of(layers: Sequence[Weights], servers: int, most: float | None) -> list[PushedPart]:
    """The tensors of *layers* (in order of the forward pass) in pieces of at most *most* parameters, in push order.

    Each piece goes to the server with the fewest parameters so far.
    """
    load = [0.0] * servers
    made: list[PushedPart] = []
    for layer in reversed(layers):
        for tensor in reversed(layer.trained.tensors):
            pieces = ceil(tensor.count / most) if most else 1
            for _ in range(pieces):
                server = load.index(min(load))
                load[server] += tensor.count / pieces
                made.append(PushedPart(len(made), tensor.count / pieces, server, layer.name))
    return made


@dataclass(frozen=True)
class PushPull:
    """The exchange of *parts* of *model* between *workers* GPUs and *servers*, over *batches* steps.

    Each step of a GPU has so many *micro_batches*. *staleness*, *priority*: as above. *dtype*: of the gradients.
    """

    model: Model
    parts: Sequence[PushedPart]
    servers: int
    workers: int
    batches: int
    micro_batches: int
    staleness: int | None
    optimizer: str | Optimizer
    dtype: str
    priority: bool = False

    def schedule(self, schedule: Schedule) -> Schedule:
        """*schedule*, of one stage and with replicas, with the servers, numbered after the GPUs."""
        (program,) = schedule.programs
        gpus = tuple(range(self.workers))
        # a queue belongs to one GPU
        workers = [self._worker(program, gpu + 1) for gpu in (gpus if self.priority else gpus[:1])]
        axes = {axis(server): Axis(((self.workers + server, *gpus),)) for server in range(self.servers)}
        return replace(
            schedule,
            mesh=schedule.mesh.extended(self.servers, axes),
            programs=(*workers, *map(self._server, range(self.servers))),
            program_of=tuple(min(gpu, len(workers) - 1) for gpu in gpus)
            + tuple(range(len(workers), len(workers) + self.servers)),
            independent=True,
        )

    def _worker(self, program: Program, peer: int) -> Program:
        """The program of the GPU at coordinate *peer*; its optimizer step has no work and ends a step."""
        program = program.materialise()
        first, reading, making = self._first_ops(program), self._reading(program), self._making(program, peer)

        def change(op: Op) -> Iterator[Op]:
            if op.name in first:
                yield from (self._pull(first[op.name], part) for part in self.parts)
            if isinstance(op, Compute) and op.action and op.action.phase == "O":
                op = replace(op, kernels=(), allocates={}, frees={})
            yield replace(op, after=(*op.after, *reading.get(op.name, ())))
            yield from making.get(op.name, ())

        held = {category: nbytes for category, nbytes in program.resident.items() if category != "optimizer"}
        return replace(program.map_ops(change), role="GPU", resident=held)

    def _first_ops(self, program: Program) -> dict[str, int]:
        """The step that begins with an op, by the name of the op."""
        begins: dict[int, str] = {}
        for op in program.ops:
            if op.action and op.action.phase == "F" and op.action.micro_batch is not None:
                begins.setdefault(op.action.micro_batch // self.micro_batches, op.name)
        return {name: step for step, name in begins.items()}

    def _reading(self, program: Program) -> dict[str, tuple[str, ...]]:
        """The names of the pulls that an op waits for: the first op of a step that reads the weights of a layer."""
        reads: dict[tuple[int, str | None], str] = {}
        for op in program.ops:
            if op.action and op.action.phase == "F" and op.action.micro_batch is not None:
                step = op.action.micro_batch // self.micro_batches
                reads.setdefault((step, None), op.name)
                reads.setdefault((step, op.layer), op.name)
        waits: dict[str, tuple[str, ...]] = {}
        for (step, layer), name in reads.items():
            pulls = tuple(pull_name(step, part) for part in self.parts if part.layer == layer)
            waits[name] = (*waits.get(name, ()), *pulls)
        return waits

    def _making(self, program: Program, peer: int) -> dict[str, tuple[Op, ...]]:
        """The pushes that follow an op: the last one of a step that adds to the gradients of a layer."""
        makes: dict[tuple[int, str | None], str] = {}
        for (action, layer), ops in backward_ops(program).items():
            step = (action.micro_batch or 0) // self.micro_batches
            makes[step, layer] = makes[step, None] = ops[-1]
        pushes: dict[str, tuple[Op, ...]] = {}
        for (step, made), name in makes.items():
            parts = [part for part in self.parts if part.layer == made]
            own = tuple(op for part in parts for op in self._in_turn(self._push(step, part, name), part, peer))
            pushes[name] = (*pushes.get(name, ()), *own)
        return pushes

    def _pull(self, step: int, part: PushedPart) -> Recv:
        name = pull_name(step, part)
        return Recv(name=name, over=axis(part.server), peer=0, nbytes=self._weights(part), stream=f"pull.{part.number}")

    def _push(self, step: int, part: PushedPart, after: str) -> Send:
        return Send(
            name=f"{step}.push.{part.number}",
            over=axis(part.server),
            peer=0,
            nbytes=self._gradients(part),
            stream=f"push.{part.server}",
            after=(after,),
        )

    def _in_turn(self, send: Send, part: PushedPart, peer: int) -> tuple[Op, ...]:
        """*send* of *part* by or to *peer*, which with priority waits in the queue of its stream."""
        if not self.priority:
            return (send,)
        # the queues of all ranks have names of their own
        queue, stream = f"{send.stream} of {part.server}.{peer}", f"{send.stream}.{part.number}"
        turn = Compute(name=f"{send.name}.turn", kernels=(), server=queue, holds=True, stream=stream, after=send.after)
        return replace(turn, priority=-part.number), replace(send, stream=stream, after=(), releases=queue)

    def _server(self, server: int) -> Program:
        """The program of *server*; the GPUs are its peers from 1 on."""
        own = [part for part in self.parts if part.server == server]
        states = resident_states(self._trained, self.optimizer, self.model.precision, self.dtype)
        share = sum(part.parameters for part in own) / max(1, self.model.trainable_parameters)
        kept = {f"host.{category}": nbytes * share for category, nbytes in states.items()}
        ops = [op for step in range(self.batches) for op in self._step(step, own)]
        return Program(f"server {server}", tuple(ops), kept, on="host")

    def _step(self, step: int, parts: Sequence[PushedPart]) -> Iterator[Op]:
        """What a server does in a *step* of each GPU: it sends weights, receives gradients and updates."""
        peers = range(1, self.workers + 1)
        for part in parts:
            for peer in peers:
                yield from self._in_turn(self._answer(step, part, peer), part, peer)
        for part in parts:
            for peer in peers:
                yield from self._arrival(step, part, peer)
            update = self._update(f"{step}.update.{part.number}", part, f"update.{part.number}")
            arrivals = tuple(arrival_name(step, part, peer) for peer in peers)
            # with staleness it is no work, but the time when all GPUs have pushed
            yield replace(update, after=arrivals, kernels=() if self.staleness else update.kernels)

    def _answer(self, step: int, part: PushedPart, peer: int) -> Send:
        """The weights of *part* for *peer*, which begins *step*."""
        after: list[str] = []
        if self.staleness != 0 and step > 0:
            after.append(arrival_name(step - 1, part, peer))
        if self.staleness is not None and step > self.staleness:
            after.append(f"{step - 1 - self.staleness}.update.{part.number}")
        return Send(
            name=f"{step}.pull.{part.number}.{peer}",
            over=axis(part.server),
            peer=peer,
            nbytes=self._weights(part),
            stream=f"pull.{peer}",
            after=tuple(after),
        )

    def _arrival(self, step: int, part: PushedPart, peer: int) -> Iterator[Op]:
        """The gradient of *peer*, and what the server does with it: it adds it to the sum, or updates at once."""
        stream, nbytes = f"{peer}.{part.number}", self._gradients(part)
        held = {"host.buffers": nbytes}
        push = f"{step}.push.{part.number}.{peer}"
        yield Recv(name=push, over=axis(part.server), peer=peer, nbytes=nbytes, stream=stream, allocates=held)
        work = self._update(arrival_name(step, part, peer), part, stream)
        if self.staleness == 0:
            # the sum is read and written
            kernels = (memory_bound(3 * nbytes),) if self.model.optimizer_seconds is None else ()
            work = replace(work, kernels=kernels)
        yield replace(work, action=None, frees=held)

    def _update(self, name: str, part: PushedPart, stream: str) -> Compute:
        """The optimizer step over *part* on the server."""
        return replace(self._updates[part.number], name=name, stream=stream)

    @cached_property
    def _updates(self) -> dict[int, Compute]:
        """The optimizer step by number of the part."""
        made = update_op(self.model, Action("O", 0), self._trained, self.optimizer, self.dtype)
        count = self.model.trainable_parameters
        return {
            part.number: replace(
                made,
                action=None,
                kernels=tuple(of_shard(kernel, count, part.parameters) for kernel in made.kernels),
                on="host",
            )
            for part in self.parts
        }

    @cached_property
    def _trained(self) -> list[ParameterTensor]:
        every = self.model.tensors_of({layer.name for layer in self.model.layers})
        return [tensor for tensor in every if tensor.trainable]

    def _weights(self, part: PushedPart) -> float:
        return float(part.parameters * BYTES[self.model.precision])

    def _gradients(self, part: PushedPart) -> float:
        return float(part.parameters * BYTES[self.dtype])


def axis(server: int) -> str:
    """The axis of *server*, at coordinate 0, and all GPUs."""
    return f"ps.{server}"


def pull_name(step: int, part: PushedPart) -> str:
    """The name of the op by which a GPU gets the weights of *part* for *step*."""
    return f"{step}.pull.{part.number}"


def arrival_name(step: int, part: PushedPart, peer: int) -> str:
    """The name of the op by which the server takes in the gradient of *part* that *peer* made in *step*."""
    return f"{step}.arrived.{part.number}.{peer}"
