"""Federated learning: in each round a server sends the model to sampled clients, which train alone and send it back.

McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data" (arXiv:1602.05629):
FedAvg. A round samples a *fraction* of all clients; each trains on data of its own, and the server averages their
weights by the numbers of their samples. Reddi et al. 2021, "Adaptive Federated Optimization" (arXiv:2003.00295): the
mean change is a gradient for an optimizer of the server.

A client with twice the data takes twice the local steps. Clients of one round wait for its slowest one: for its link,
its GPU and its data. Each is one GPU with the whole model; its machine and its link are those of the cluster.

A run goes through whole rounds; the step time is that of a round over the most local steps that a client takes. Nothing
is exchanged within a round, so only the first local step has its ops layer by layer; the kernels of later ones are in
one op for each pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import groupby
from math import ceil, log1p, sqrt
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator, model_validator

from clustersim.simulator.hardware.kernel import BYTES, Kernel, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import Count, Fraction, Index, Ratio, Section
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.schedule.mesh import Axis
from clustersim.simulator.schedule.ops import Compute, Op, Recv, Send
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.records import changed
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.parallelism._parallelism import DataMethod, TrainingStep

FP32 = 4.0
"""Bytes of a weight as optimizers and the server hold it."""

WIDTH = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0}
"""Bytes of a weight in a message."""

STATES = {"fedavg": 0, "fedavgm": 1, "fedadagrad": 1, "fedadam": 2, "fedyogi": 2}
"""States of the server's optimizer for each parameter (arXiv:2003.00295, algorithm 2; FedAvgM: arXiv:1909.06335)."""

AXIS = "fed"
"""The server, at coordinate 0, and all clients."""

NOTHING: Mapping[str, float] = {}

MOST_STEPS = 100_000
"""Local steps of a run at most; more are not worth simulating one by one."""


class ClientSizes(Section):
    """Data of the clients, drawn from a log-normal distribution."""

    variation: Ratio
    """Coefficient of variation of the clients' numbers of samples. Required."""


def _sizes(value: Any) -> Any:
    if isinstance(value, Mapping | ClientSizes):
        return value if isinstance(value, ClientSizes) else ClientSizes.model_validate(value)
    if isinstance(value, list):
        return value
    raise ValueError("must be a list of the clients' numbers of samples, or {variation: 0.5}")


class Federated(DataMethod):
    """A server and clients that train alone on data of their own."""

    whole_model: ClassVar[bool] = True
    exchanges_weights: ClassVar[bool] = True

    method: Literal["federated"]
    """federated: in each round a server sends the model to sampled clients, which train alone and send it back."""
    clients: Count
    """Clients in all. There are as many GPUs, or as many as a round samples; then each is another client in every
    round. Required."""
    fraction: Fraction = 1.0
    """Share of the clients that a round samples; at least one."""
    local_steps: Count
    """Optimizer steps of a client in a round, of one that has the mean number of samples. Required."""
    sizes: Annotated[list[Ratio] | ClientSizes | None, BeforeValidator(_sizes)] = None
    """Data of the clients: a list of their numbers of samples, or {variation: 0.5}; by default equal. Their local steps
    are in proportion."""
    server: Literal["fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi"] = "fedavg"
    """The optimizer of the server; fedavg takes the mean of the weights."""
    dtype: Literal["fp32", "bf16", "fp16", "int8"] = "fp32"
    """In which weights are sent, both ways."""
    rounds: Count = 1
    """Rounds that are simulated, each with clients of its own sample."""
    sampling_seed: Index = 0
    """Seed of the samples and of drawn sizes."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if isinstance(self.sizes, list) and len(self.sizes) != self.clients:
            raise Fault("sizes", f"lists {len(self.sizes)} clients, but clients is {self.clients}")
        if self.rounds * self.most_steps > MOST_STEPS:
            what = f"{self.rounds} rounds of {self.most_steps:,} steps of the client with most data"
            raise Fault("rounds", f"{what} are more than {MOST_STEPS:,} steps; take fewer")
        return self

    @property
    def hosts(self) -> int:
        """The server."""
        return 1

    @property
    def sampled(self) -> int:
        """The clients of a round: at least one (arXiv:1602.05629, algorithm 1)."""
        return max(1, round(self.clients * self.fraction))

    @property
    def steps_of_clients(self) -> tuple[int, ...]:
        """The local steps of each client in a round, at least one."""
        return _steps_of_clients(self.clients, self.local_steps, self._relative_sizes, self.sampling_seed)

    @property
    def _relative_sizes(self) -> tuple[float, ...] | float:
        if isinstance(self.sizes, ClientSizes):
            return self.sizes.variation
        return tuple(self.sizes) if self.sizes else 0.0

    @property
    def most_steps(self) -> int:
        """The local steps of the client with most data."""
        return max(self.steps_of_clients)

    def steps_by_gpu(self, gpus: int, rounds: int) -> list[list[int]]:
        """For each of *gpus* its local steps in each of *rounds*; 0 where its client is not in the sample.

        Raises `ScenarioError` unless there is a GPU for each client, or for each of a round.
        """
        if gpus not in (self.clients, self.sampled):
            good = " or ".join(map(str, dict.fromkeys((self.clients, self.sampled))))
            raise ScenarioError(
                f"{self.clients} clients, {self.sampled} of them in a round, need dp = {good}, not {gpus}"
            )
        generator = np.random.default_rng([self.sampling_seed, 1])
        taken = [[0] * rounds for _ in range(gpus)]
        for number in range(rounds):
            chosen = generator.choice(self.clients, self.sampled, replace=False).tolist()
            for place, client in enumerate(sorted(chosen)):
                taken[client if gpus == self.clients else place][number] = self.steps_of_clients[client]
        return taken

    def trained_share(self, replicas: int, batches: int) -> float:
        """The local steps of all clients over those of *replicas* that take part in each of *batches*."""
        taken = self.steps_by_gpu(replicas, batches // self.most_steps)
        return sum(map(sum, taken)) / (replicas * batches)

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """Add the server, and give each client the steps of its rounds: at least as many as the schedule has."""
        (program,) = schedule.programs
        (gpus,) = schedule.degrees(REPLICAS)
        count = max(self.rounds, ceil(schedule.steps / self.most_steps))
        taken = self.steps_by_gpu(gpus, count)
        rounds = _Rounds(step.model, program, self.server, self.dtype)
        kinds = {steps: number for number, steps in enumerate(dict.fromkeys(map(tuple, taken)))}
        clients = [rounds.client(steps) for steps in kinds]
        return replace(
            schedule,
            mesh=schedule.mesh.extended(1, {AXIS: Axis(((gpus, *range(gpus)),))}),
            programs=(*clients, rounds.of_server(taken)),
            program_of=(*(kinds[tuple(steps)] for steps in taken), len(clients)),
            steps=1,
            batches=count * self.most_steps,
        )

    def facts(self) -> Mapping[str, Any]:
        """The clients of a round and their steps."""
        steps = self.steps_of_clients
        told = f"{min(steps)} to {max(steps)}" if min(steps) < max(steps) else max(steps)
        return {"clients": self.clients, "clients_of_a_round": self.sampled, "local_steps": told}


@cache
def _steps_of_clients(clients: int, mean: int, sizes: tuple[float, ...] | float, seed: int) -> tuple[int, ...]:
    """The local steps of each of *clients*; *sizes*: as listed, or the coefficient of variation of drawn ones."""
    if isinstance(sizes, float):
        sigma = sqrt(log1p(sizes**2))
        sizes = tuple(np.random.default_rng([seed, 0]).lognormal(0.0, sigma, clients).tolist())
    average = sum(sizes) / clients
    return tuple(max(1, round(mean * size / average)) for size in sizes)


@dataclass(frozen=True)
class _Rounds:
    """Makes the programs of clients and server; *program*: a local step of a client."""

    model: Model
    program: Program
    optimizer: str
    dtype: str

    @property
    def parameters(self) -> int:
        return self.model.trainable_parameters

    @property
    def nbytes(self) -> float:
        """Bytes of a model or of an update, as it is sent."""
        return WIDTH[self.dtype] * self.parameters

    def client(self, steps: Sequence[int]) -> Program:
        """The program of a client that takes so many *steps* in each round."""
        ops: list[Op] = []
        for number, count in enumerate(steps):
            if count:
                first, later = self._steps
                ops += [*self._pull(number), *_numbered(first, f"{number}.0")]
                ops += [op for own in range(1, count) for op in _numbered(later, f"{number}.{own}")]
                ops += self._push(number)
        return Program("client" if ops else "idle client", tuple(ops), self.program.resident if ops else {})

    @cached_property
    def _steps(self) -> tuple[list[Op], list[Op]]:
        """The ops of a local step: layer by layer, and with one op for each pass."""
        ops = self.program.materialise().ops
        return _joined(ops, {"O"}, keeps_memory=True), _joined(ops, set("FBIWRO"), keeps_memory=False)

    def _pull(self, number: int) -> Iterator[Op]:
        """The model of round *number* arrives, and is written into the weights."""
        held = {"buffers": self.nbytes}
        yield Recv(name=f"round {number}.model", over=AXIS, peer=0, nbytes=self.nbytes, allocates=held)
        width = BYTES[self.model.precision]
        copy = width if width < FP32 else 0.0
        yield self._compute(f"round {number}.unpack", self.nbytes + (FP32 + copy) * self.parameters, frees=held)

    def _push(self, number: int) -> Iterator[Op]:
        """The weights after the last step are packed and sent."""
        held = {"buffers": self.nbytes}
        yield self._compute(f"round {number}.pack", FP32 * self.parameters + self.nbytes, allocates=held)
        yield Send(name=f"round {number}.update", over=AXIS, peer=0, nbytes=self.nbytes, frees=held)

    def of_server(self, taken: Sequence[Sequence[int]]) -> Program:
        """The program of the server, for clients with the steps *taken* in each round."""
        ops: list[Op] = []
        for number in range(len(taken[0])):
            peers = [place + 1 for place, steps in enumerate(taken) if steps[number]]
            ops += self._round(number, peers)
        kept = {"host.parameters": FP32, "host.optimizer": FP32 * STATES[self.optimizer], "host.buffers": FP32}
        return Program(SERVER, tuple(ops), {name: each * self.parameters for name, each in kept.items()}, on="host")

    def _round(self, number: int, peers: Sequence[int]) -> Iterator[Op]:
        """The model goes to all *peers* at once; each update is added to the sum when it arrives, then weights move."""
        before = (update_name(number - 1),) if number else ()
        for peer in peers:
            down = f"down.{peer}"
            yield Send(
                name=f"{number}.send.{peer}", over=AXIS, peer=peer, nbytes=self.nbytes, stream=down, after=before
            )
        held = {"host.buffers": self.nbytes}
        for peer in peers:
            name, up = arrival_name(number, peer), f"up.{peer}"
            yield Recv(name=name, over=AXIS, peer=peer, nbytes=self.nbytes, stream=up, allocates=held)
            add = self._compute(f"{number}.add.{peer}", self.nbytes + 2 * FP32 * self.parameters, frees=held)
            yield replace(add, stream=up, on="host")
        # the sum is read; weights are written, and read by all optimizers but the mean; states are read and written
        passes = 2 + (1 + 2 * STATES[self.optimizer] if self.optimizer != "fedavg" else 0)
        after = tuple(f"{number}.add.{peer}" for peer in peers)
        update = self._compute(update_name(number), passes * FP32 * self.parameters)
        yield replace(update, stream="update", on="host", after=after)

    def _compute(
        self, name: str, nbytes: float, allocates: Mapping[str, float] = NOTHING, frees: Mapping[str, float] = NOTHING
    ) -> Compute:
        """A kernel that moves *nbytes*, unless the durations of the model are given."""
        kernels: tuple[Kernel, ...] = (memory_bound(nbytes),) if self.model.optimizer_seconds is None else ()
        return Compute(name=name, kernels=kernels, allocates=allocates, frees=frees)


SERVER = "federated server"
"""The role of the server's program."""


def update_name(number: int) -> str:
    """The name of the op that ends round *number* on the server."""
    return f"{number}.update"


def arrival_name(number: int, peer: int) -> str:
    """The name of the op by which the server gets the weights of the client at coordinate *peer* in round *number*."""
    return f"{number}.arrival.{peer}"


def _numbered(ops: Sequence[Op], number: str) -> Iterator[Op]:
    """*ops* with names of their own."""
    return (changed(op, name=f"{number}.{op.name}", after=tuple(f"{number}.{name}" for name in op.after)) for op in ops)


def _joined(ops: Sequence[Op], phases: Collection[str], *, keeps_memory: bool) -> list[Op]:
    """*ops* of one stream, with neighbouring computations of one pass joined, if it is one of *phases*.

    Without *keeps_memory* they allocate nothing: at the end of a step all that it allocated is free again.
    """
    made: list[Op] = []
    for (phase, _), several in groupby(ops, _pass_of):
        own = list(several)
        joins = phase in phases and all(isinstance(op, Compute) and not op.server for op in own)
        made += [_join([op for op in own if isinstance(op, Compute)])] if joins else own
    memory: dict[str, Any] = {} if keeps_memory else {"allocates": {}, "frees": {}}
    kept = {op.name for op in made}
    return [replace(op, after=tuple(name for name in op.after if name in kept), **memory) for op in made]


def _pass_of(op: Op) -> tuple[str, int]:
    return (op.action.phase, op.action.micro_batch or 0) if op.action else ("", 0)


def _join(ops: Sequence[Compute]) -> Compute:
    """One computation with the kernels of *ops*, and what is allocated or freed in the end."""
    kernels = tuple(kernel for op in ops for kernel in op.kernels)
    change: Counter[str] = Counter()
    for op in ops:
        change.update(op.allocates)
        change.subtract(op.frees)
    more = {name: float(nbytes) for name, nbytes in change.items() if nbytes > 0}
    less = {name: -float(nbytes) for name, nbytes in change.items() if nbytes < 0}
    return replace(ops[0], kernels=kernels, layer=None, allocates=more, frees=less)
