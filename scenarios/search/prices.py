"""Prices for estimates: each phase of a layer is one kernel with the duration of its operators and their exchanges, and
each communication has the duration that it has when all groups of its axis communicate at once.

The operators of each distinct layer are simulated once, with the exchanges over inner axes such as ``tp``. A schedule
of priced layers has some ten times fewer ops than one of operators, and takes the same time where exchanges do not run
beside other layers.

Prices of transfers: the duration of each communication when all groups of its axis communicate at once.

The plan is that of the engine. Groups of an axis share links, so their transfers take longer than on idle links by a
factor. It does not depend on the bytes, so one simulation of all groups finds it for each algorithm, and none is needed
if they fill no link. Collectives of an axis that run at once, such as ZeRO's gathers and reductions, share the links
that limit them. Between axes there is no contention here.

Rank classes with one rank for each program, on transfers of known durations.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from clustersim.scenarios.build.layer_probe import AGAIN, STOPPED, content
from clustersim.simulator.engine.setup import Communication
from clustersim.simulator.hardware.hashing import Indices, distinct
from clustersim.simulator.hardware.kernel import Kernel, measured
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.plan import Flow, Phase, TransferPlan
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.matching import request_of
from clustersim.simulator.schedule.mesh import Axis, Mesh, family
from clustersim.simulator.schedule.ops import Collective, Copy, Op, Recv, Send
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import SimulationRun
from clustersim.workloads.operators.model import Layer, Model
from clustersim.workloads.operators.operator import ParameterTensor


@dataclass(frozen=True)
class PricedLayer(Layer):
    """A layer with *seconds* and *flops* by phase, and the bytes of the layer that it stands for.

    *transient*: bytes held only during a phase, the *buffers* of exchanges included.
    """

    name: str
    kind: str
    weights: tuple[ParameterTensor, ...]
    seconds: Mapping[str, float]
    flops: Mapping[str, float]
    kept: float
    output: float
    input_of_next: float
    transient: Mapping[str, float]
    kept_for_weights: float
    recomputable: float
    buffers: Mapping[str, float]

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Those of the layer."""
        return self.weights

    def forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """One kernel, what selective recomputation runs again, if anything, and the end that full one leaves out."""
        again, end = self.recomputable_forward(micro_batch_size), self._end
        rest = measured(self.seconds[STOPPED] - self.seconds[AGAIN], self.flops[STOPPED] - self.flops[AGAIN])
        return (rest, *again, *end)

    def unneeded_forward(self, micro_batch_size: int) -> int:
        """One kernel, or none."""
        return len(self._end)

    @property
    def _end(self) -> tuple[Kernel, ...]:
        """What the backward pass does not need of the forward pass."""
        seconds = self.seconds["F"] - self.seconds[STOPPED]
        return (measured(seconds, self.flops["F"] - self.flops[STOPPED]),) if seconds > 0 else ()

    def backward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """One kernel."""
        return (measured(self.seconds["B"], self.flops["B"]),)

    def backward_input(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """One kernel."""
        return (measured(self.seconds["I"], self.flops["I"]),)

    def backward_weights(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """One kernel, or none."""
        return (measured(self.seconds["W"], self.flops["W"]),) if self.seconds["W"] else ()

    def recomputable_forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """One kernel, or none."""
        return (measured(self.seconds[AGAIN], self.flops[AGAIN]),) if self.seconds[AGAIN] else ()

    def activation_bytes(self, micro_batch_size: int) -> float:
        """Those of the layer."""
        return self.kept

    def output_bytes(self, micro_batch_size: int) -> float:
        """Those of the layer."""
        return self.output

    def input_bytes_of_next(self, micro_batch_size: int) -> float:
        """Those of the layer."""
        return self.input_of_next

    def transient_bytes(self, phase: str, micro_batch_size: int) -> float:
        """Those of the layer, and its buffers."""
        return self.transient.get(phase, 0.0)

    def buffer_bytes(self, phase: str, micro_batch_size: int) -> float:
        """Those of the layer's exchanges."""
        return self.buffers.get(phase, 0.0)

    def weight_bytes(self, micro_batch_size: int) -> float:
        """Those of the layer."""
        return self.kept_for_weights

    def recomputable_bytes(self, micro_batch_size: int) -> float:
        """Those of the layer."""
        return self.recomputable


@dataclass(frozen=True, slots=True)
class LayerPrice:
    """The *seconds* of a layer for one micro-batch and the bytes of the *buffers* of its exchanges, by phase."""

    seconds: Mapping[str, float]
    buffers: Mapping[str, float] = field(default_factory=dict)

    def total(self, phases: str) -> float:
        """The sum of the seconds of *phases*."""
        return sum(self.seconds[phase] for phase in phases)

    def times(self, factor: float) -> LayerPrice:
        """This price with all seconds multiplied by *factor*."""
        return replace(self, seconds={phase: factor * known for phase, known in self.seconds.items()})

    def less(self, slow: LayerPrice, fast: LayerPrice) -> LayerPrice:
        """This price with kernels that take as long as in *fast* instead of *slow*; no phase becomes negative."""
        saved = {phase: slow.seconds[phase] - fast.seconds[phase] for phase in slow.seconds}
        return replace(self, seconds={phase: max(0.0, known - saved[phase]) for phase, known in self.seconds.items()})


def priced(layer: Layer, samples: int, price: LayerPrice) -> PricedLayer:
    """Return *layer* for micro-batches of *samples* at its *price*."""
    seconds, buffers = price.seconds, price.buffers
    forward, end = layer.forward(samples), layer.unneeded_forward(samples) if seconds[STOPPED] < seconds["F"] else 0
    kernels = {
        "F": forward,
        STOPPED: forward[: len(forward) - end],
        "B": layer.backward(samples),
        "I": layer.backward_input(samples),
        "W": layer.backward_weights(samples),
        AGAIN: layer.recomputable_forward(samples),
    }
    return PricedLayer(
        layer.name,
        layer.kind,
        layer.tensors,
        seconds,
        {phase: sum(kernel.flops for kernel in several) for phase, several in kernels.items()},
        layer.activation_bytes(samples),
        layer.output_bytes(samples),
        layer.input_bytes_of_next(samples),
        {phase: layer.transient_bytes(phase, samples) + buffers.get(phase, 0.0) for phase in ("F", "I")},
        layer.weight_bytes(samples),
        layer.recomputable_bytes(samples),
        buffers,
    )


def of_priced_layers(model: Model, layers: Mapping[Hashable, PricedLayer]) -> Model:
    """Return *model* with the priced layer of each content."""
    own = [replace(layers[content(layer)], name=layer.name, kind=layer.kind) for layer in model.layers]
    return replace(model, layers=own)


class Transfers:
    """The prices of transfers on the devices of *communicator*."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self._plans: dict[Hashable, TransferPlan] = {}
        self._factors: dict[Hashable, float] = {}

    def plan(self, op: Op, axis: Axis | None, ranks: tuple[int, ...]) -> TransferPlan:
        """Return the plan of *op* between *ranks* as one phase; *axis*: that of the op, None for a copy.

        Messages and copies are delays. A collective has a flow whose only row, number 0, has a capacity of 1.
        """
        key = type(op), request_of(op), ranks
        if key not in self._plans:
            alone = self.communicator.plan(op, ranks)
            factor = self._factor(op, axis, ranks, alone)
            phase = self._shared(alone, factor) if isinstance(op, Collective) else _delay(alone, factor)
            self._plans[key] = replace(alone, phases=(phase,) if alone.phases else ())
        return self._plans[key]

    def _shared(self, plan: TransferPlan, factor: float) -> Phase:
        """Return *plan*, *factor* times longer, as one phase with one flow."""
        seconds, nbytes = factor * _transferring(plan), sum(phase.nbytes for phase in _contended(plan))
        if not seconds or self.communicator.fidelity == "alpha_beta":
            return _delay(plan, factor)
        bandwidths_of = self.communicator.cluster.bandwidths_of
        shares = (
            float((flow.alone * flow.weights / bandwidths_of(flow.rows)).max(initial=0.0))
            for phase in _contended(plan)
            for flow in phase.flows
        )
        used = max(shares, default=0.0)
        rate = nbytes / seconds
        none, weight = np.zeros(0), min(1.0, factor * used) / rate
        flow = Flow(np.zeros(0, np.int64), none, np.zeros(1, np.int64), np.array([weight]), rate, rate)
        return Phase(_latency(plan), (flow,), nbytes)

    def _factor(self, op: Op, axis: Axis | None, ranks: tuple[int, ...], alone: TransferPlan) -> float:
        """Return how many times longer the transfers of *alone* take when all groups of *axis* communicate.

        Of a copy: when all ranks copy.
        """
        seconds = _transferring(alone)
        if not seconds or self.communicator.fidelity == "alpha_beta":
            return 1.0
        key: Hashable = ("copy", op.source, op.to) if isinstance(op, Copy) else None
        if axis is not None:
            kind = op.kind if isinstance(op, Collective) else ("message", *_ends(axis, ranks))
            key = axis.groups, kind, alone.algorithm, alone.protocol
        if key not in self._factors:
            factor = 1.0
            if not self._undisturbed(op, axis, ranks):
                together = SimulationRun(self._at_once(op, axis, ranks), self.communicator).run().makespan
                factor = max(1.0, (together - (alone.alone - seconds)) / seconds)
            self._factors[key] = factor
        return self._factors[key]

    def _undisturbed(self, op: Op, axis: Axis | None, ranks: tuple[int, ...]) -> bool:
        """Whether no link has less capacity than all groups use that do *op* at once: each takes as long as alone.

        Isomorphic groups are in the same phase at all times, others in any.
        """
        together, cluster = self._together(op, axis, ranks), self.communicator.cluster
        patterns, slots = self.communicator.placement(op, together)
        used = np.zeros(len(cluster.links))
        for pattern in distinct(patterns).tolist():
            own = np.flatnonzero(patterns == pattern)
            plan = self.communicator.plan(op, tuple(together[own[0]].tolist()))
            most = np.zeros(len(used))
            for phase in dict.fromkeys(_contended(plan)):
                links = [rows.ravel() for rows in slots.some(own).everywhere_of([flow.rows for flow in phase.flows])]
                rates = [np.tile(flow.alone * flow.weights, len(own)) for flow in phase.flows]
                np.maximum(most, np.bincount(np.concatenate(links), np.concatenate(rates), len(used)), out=most)
            used += most
        crossed = np.flatnonzero(used)
        return bool((used[crossed] <= cluster.bandwidths_of(crossed) * (1 + NEAR)).all())

    def _together(self, op: Op, axis: Axis | None, ranks: tuple[int, ...]) -> Indices:
        """Return the groups of ranks that do *op* at once with *ranks*, of shape ``(groups, ranks)``."""
        if axis is None:
            return np.arange(len(self.communicator.devices))[:, None]
        if isinstance(op, Collective):
            return np.array([group for group in axis.groups if len(group) == len(ranks)])
        ends = _ends(axis, ranks)
        return np.array([[group[end] for end in ends] for group in axis.groups if len(group) > max(ends)])

    def _at_once(self, op: Op, axis: Axis | None, ranks: tuple[int, ...]) -> Schedule:
        """Return the schedule in which all groups of *axis* as large as that of *ranks* do *op* at once.

        A copy is done by all ranks.
        """
        world = len(self.communicator.devices)
        program_of = [0] * world
        if axis is None:
            return Schedule(Mesh(world, {}), (Program("all", (replace(op, after=()),)),), tuple(program_of))
        assert isinstance(op, Collective | Send | Recv)
        # plans are known by the family of their axis: one that has been made is not made again
        over = family(op.over)
        if isinstance(op, Collective):
            roles = [Program("all", (replace(op, over=over, after=()),))]
        else:
            sender, receiver = _ends(axis, ranks)
            send = Send(name="send", over=over, peer=receiver, nbytes=op.nbytes)
            receive = Recv(name="receive", over=over, peer=sender, nbytes=op.nbytes)
            roles = [Program("sender", (send,)), Program("receiver", (receive,))]
        for group in self._together(op, axis, ranks).tolist():
            for place, rank in enumerate(group):
                program_of[rank] = 1 + min(place, len(roles) - 1)
        return Schedule(Mesh(world, {over: axis}), (Program("idle", ()), *roles), tuple(program_of))


def _contended(plan: TransferPlan) -> list[Phase]:
    """Return the phases of *plan* that transfer bytes on shared links."""
    return [phase for phase in plan.phases if phase.contended and phase.nbytes and phase.flows]


def _transferring(plan: TransferPlan) -> float:
    """Return the seconds of *plan* without its latencies."""
    return sum(max(phase.nbytes / flow.alone for flow in phase.flows) for phase in _contended(plan))


def _latency(plan: TransferPlan) -> float:
    return sum(phase.latency for phase in plan.phases)


def _delay(plan: TransferPlan, factor: float) -> Phase:
    """Return *plan*, *factor* times longer, as a delay."""
    return Phase(_latency(plan) + factor * _transferring(plan), contended=False)


def _ends(axis: Axis, ranks: tuple[int, ...]) -> tuple[int, int]:
    """Return the coordinates of the sender and the receiver *ranks* on *axis*."""
    places = [axis.place(rank) for rank in ranks]
    assert places[0] is not None
    assert places[1] is not None
    return places[0][1], places[1][1]


NEAR = 1e-9
"""Relative rounding of a sum of shares of a link."""

_Place = tuple[Hashable, tuple[int, ...]]


class Representatives:
    """All ranks of a program are equal, and only collectives of an axis share links; see `RankClasses`.

    There is a row for each axis and each program, the first one of those that take part.
    """

    link_multiplicity: Mapping[int, int] = {}

    def __init__(self, schedule: Schedule, transfers: Transfers) -> None:
        self.schedule, self._transfers = schedule, transfers
        self._axes = {name: number for number, name in enumerate(schedule.mesh.axes)}
        self.capacity: Sequence[float] = [1.0] * (len(self._axes) * len(schedule.programs))
        self._plans: dict[tuple[int, int], TransferPlan] = {}
        programs = schedule.program_numbers
        _, first = np.unique(programs, return_index=True)
        self.representative: Indices = first[programs]
        self._known: dict[tuple[int, Hashable], _Place] = {}
        self._ranks: dict[Communication, tuple[int, ...]] = {}

    def row_of(self, link: int) -> int:
        """There is no row."""
        raise AssertionError(link)

    def communication(self, rank: int, op: Op) -> Communication:
        """The axis and the programs that take part, of a message in order: sender, receiver."""
        of = self.schedule.program_of
        if isinstance(op, Copy):
            name: Communication = ("copy", of[rank])
            self._ranks.setdefault(name, (rank,))
            return name
        assert isinstance(op, Collective | Send | Recv)
        peer = None if isinstance(op, Collective) else (op.peer, isinstance(op, Send))
        known = rank, (op.over, peer)
        if known not in self._known:
            axis = self.schedule.mesh.axes[op.over]
            place = axis.place(rank)
            assert place is not None
            group = axis.groups[place[0]]
            if peer is None:
                name, ranks = (op.over, tuple(sorted({of[one] for one in group}))), group
            else:
                ranks = (rank, group[peer[0]]) if peer[1] else (group[peer[0]], rank)
                name = (op.over, of[ranks[0]], of[ranks[1]], "message")
            self._known[known] = name, ranks
            self._ranks.setdefault(name, ranks)
        return self._known[known][0]

    def partners(self, name: Communication, op: Op) -> int:
        """The number of programs that take part."""
        if isinstance(op, Copy):
            return 1
        assert isinstance(name, tuple)
        return len(name[1]) if isinstance(op, Collective) else 2

    def multiplicity(self, name: Communication) -> int:
        """One: traffic is not counted."""
        return 1

    def ranks_on_host(self, rank: int) -> int:
        """One."""
        return 1

    def host(self, name: str) -> Hashable:
        """The host itself."""
        return name

    def plan(self, name: Communication, op: Op) -> TransferPlan:
        """The transfer as one phase."""
        axis = None if isinstance(op, Copy) else self.schedule.mesh.axes[op.over]  # type: ignore[attr-defined]
        plan = self._transfers.plan(op, axis, self._ranks[name])
        if not isinstance(op, Collective) or not any(phase.flows for phase in plan.phases):
            return plan
        assert isinstance(name, tuple)
        row = self._axes[op.over] * len(self.schedule.programs) + name[1][0]
        if (id(plan), row) not in self._plans:
            rows = np.array([row])
            phases = (replace(one, flows=tuple(replace(flow, rows=rows) for flow in one.flows)) for one in plan.phases)
            self._plans[id(plan), row] = replace(plan, phases=tuple(phases))
        return self._plans[id(plan), row]
