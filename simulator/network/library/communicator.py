"""A communicator turns each communication into a transfer plan: steps placed on links, at a given fidelity."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from math import inf
from operator import attrgetter

import numpy as np

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import Indices
from clustersim.simulator.hardware.kernel import memory_bound
from clustersim.simulator.hardware.topology import unchanging
from clustersim.simulator.network.candidates import (
    AlgorithmCandidate,
    GroupTopology,
    PlacedStep,
    candidate,
    candidates,
)
from clustersim.simulator.network.isomorphic_groups import Placement, Placements, Shape, Slots, relabelled_plan
from clustersim.simulator.network.library import tuner
from clustersim.simulator.network.library.tuner import unequal
from clustersim.simulator.network.plan import Flow, Phase, TransferPlan
from clustersim.simulator.network.step import Group, Step, Transfer
from clustersim.simulator.network.transport import Transport
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.schedule.mesh import family
from clustersim.simulator.schedule.ops import Collective, Copy, Op, PerPeer, Recv, Send

FIDELITIES = ("alpha_beta", "flow", "chunk")

_Request = tuple[str, str, float, int, str, PerPeer | None]
"""A collective: kind, axis, bytes, root, algorithm, bytes per peer."""

_MESSAGE: tuple[Transfer, ...] = ((0, 1),)

EMPTY = TransferPlan("none", "none", (), 0.0)
"""The plan of a communication without transfers: one rank, or no bytes."""


class Communicator:
    """The ranks on *devices* of *cluster*, which communicate by *transport*.

    *fidelity* says how steps become phases. ``alpha_beta``: one delay without contention. ``flow``: one phase for each
    step. ``chunk``: one phase for each repetition. *algorithms* fixes the algorithm of a collective or an
    ``axis.collective``. Each plan and its flows are made once and reused. Raises `SimulatorError` for unknown names.

    *placements*: those of groups of devices on the cluster, found once for equal groups.
    """

    def __init__(
        self,
        cluster: Cluster,
        devices: Sequence[str],
        transport: Transport,
        fidelity: str = "flow",
        algorithms: Mapping[str, str] | None = None,
    ) -> None:
        if fidelity not in FIDELITIES:
            raise SimulatorError(f'fidelity "{fidelity}" must be one of {", ".join(FIDELITIES)}')
        self.algorithms: Mapping[str, str] = algorithms or {}
        tuner.check(self.algorithms)
        self.cluster, self.transport, self.fidelity = cluster, transport, fidelity
        self.devices = unchanging(devices)
        self._like: Communicator | None = None
        self._topologies: dict[tuple[int, ...], GroupTopology] = {}
        self._plans: dict[tuple[object, ...], TransferPlan] = {}
        self._models: dict[tuple[Hashable, int], TransferPlan] = {}
        self._firsts: dict[tuple[int, Hashable], tuple[tuple[int, ...], Slots]] = {}
        self._placed: dict[Hashable, Placement] = {}
        self._shapes: dict[tuple[_Request, Group], Shape] = {}
        self._steps: dict[tuple[_Request, Group], dict[str, list[Step]]] = {}
        self._tuned: dict[Hashable, tuple[str, str]] = {}
        self.placements = Placements(cluster)

    def by(self, transport: Transport) -> Communicator:
        """The same ranks by *transport*, which differs from this one in costs: with all that does not depend on them.

        That is the rings, routes, placements and steps, and the choices of the same tuning model.
        """
        other = copy(self)
        other.transport, other._like, other._topologies, other._plans, other._models = transport, self, {}, {}, {}
        return other

    @property
    def regular(self) -> bool:
        """Whether the isomorphism of groups does not depend on the request."""
        return self.cluster.regularity is not None

    @cached_property
    def device(self) -> Indices:
        """The number of the device of each rank, of shape ``(ranks,)``."""
        return self.cluster.numbers(self.devices)

    def plan(self, op: Op, ranks: tuple[int, ...]) -> TransferPlan:
        """Return the plan of *op* between *ranks*; of a message the sender, then the receiver."""
        if isinstance(op, Copy):
            return self.copy(ranks[0], op.nbytes, op.source, op.to)
        if isinstance(op, Collective):
            return self.collective(op.kind, family(op.over), ranks, op.nbytes, op.root, op.algorithm, op.per_peer)
        assert isinstance(op, Send | Recv)
        sender, receiver = ranks
        return self.send(sender, receiver, op.nbytes)

    def placement(self, op: Op, groups: Indices) -> Placement:
        """Return the placement of *groups*, each the partners of one communication, for *op*.

        Isomorphic groups have equal plans up to link numbers. *groups* has the shape ``(communications, partners)``.
        """
        if isinstance(op, Copy):
            return self.copies(groups[:, 0], op.source, op.to)
        if isinstance(op, Collective):
            return self.collectives(op.kind, family(op.over), op.nbytes, op.root, op.algorithm, groups, op.per_peer)
        assert isinstance(op, Send | Recv)
        return self.sends(groups)

    def collective(
        self,
        kind: str,
        axis: str,
        ranks: tuple[int, ...],
        nbytes: float,
        root: int = 0,
        algorithm: str = "auto",
        per_peer: PerPeer | None = None,
    ) -> TransferPlan:
        """Return the plan of the collective *kind* over *ranks* of an axis of the family *axis*.

        *nbytes*: the full vector. *root*: a position in *ranks*. *algorithm*: the request of the op itself. *per_peer*:
        for an all-to-all, the bytes for each position, or of each.
        """
        if per_peer is not None and len(per_peer) != len(ranks):
            raise SimulatorError(
                f"{kind} over {axis}: bytes for {len(per_peer)} peers in a group of {len(ranks)} ranks"
            )
        if len(ranks) < 2 or not nbytes:
            return EMPTY
        key = kind, axis, ranks, nbytes, root, algorithm, per_peer
        if key not in self._plans:
            request = kind, axis, nbytes, root, algorithm, per_peer
            placement = self._placement(key, lambda: self.collectives(*request[:5], np.array([ranks]), per_peer))
            self._plans[key] = self._relabelled(
                request, placement, ranks, lambda first: self._chosen(request, self.topology(first))
            )
        return self._plans[key]

    def collectives(
        self,
        kind: str,
        axis: str,
        nbytes: float,
        root: int,
        algorithm: str,
        groups: Indices,
        per_peer: PerPeer | None = None,
    ) -> Placement:
        """Return the placement of *groups* of ranks for a `collective`.

        Isomorphic groups have equal plans up to link numbers.
        """
        request = kind, axis, nbytes, root, algorithm, per_peer
        return self.placements.of(
            self.device[groups], lambda number: self._shape(request, self.topology(tuple(groups[number].tolist())))
        )

    def _placement(self, key: Hashable, found: Callable[[], Placement]) -> Placement:
        """The placement of one group, *found* once for all communicators `by` other transports."""
        if key not in self._placed:
            self._placed[key] = found()
        return self._placed[key]

    def _relabelled(
        self,
        request: Hashable,
        placement: Placement,
        ranks: tuple[int, ...],
        plan: Callable[[tuple[int, ...]], TransferPlan],
    ) -> TransferPlan:
        """The *plan* of *ranks* at this *placement*: that of the first isomorphic group, relabelled.

        All plans are made for one group of a class, so that its rings and routes are found once. The slots of a copy,
        by one rank, depend on the request.
        """
        pattern, slots = int(placement.patterns[0]), placement.slots
        first, before = self._firsts.setdefault((pattern, request if len(ranks) < 2 else None), (ranks, slots))
        key = request, pattern
        if key not in self._models:
            self._models[key] = plan(first)
        model = self._models[key]
        return model if first == ranks else relabelled_plan(model, before, slots)

    def _shape(self, request: _Request, topology: GroupTopology) -> Shape:
        """The group and its transfers under all candidate algorithms.

        All candidates count: groups that are isomorphic under the best one of the first group may differ under another.
        """
        key = request, topology.group
        if key not in self._shapes:
            every = (step for steps in self._choices(request, topology).values() for step in steps)
            self._shapes[key] = topology.group, tuple(dict.fromkeys(t for step in every for t in step.transfers))
        return self._shapes[key]

    def _choices(self, request: _Request, topology: GroupTopology) -> dict[str, list[Step]]:
        """The steps of each usable algorithm. They may be large: only communicators `by` other transports keep them."""
        if self._like is None:
            return self._made(request, topology)
        key = request, topology.group
        if key not in self._steps:
            self._steps[key] = self._made(request, topology)
        return self._steps[key]

    def _made(self, request: _Request, topology: GroupTopology) -> dict[str, list[Step]]:
        kind, axis, nbytes, root, algorithm, per_peer = request
        names = tuner.usable_algorithms(self.transport, self.algorithms, axis, kind, algorithm, topology.properties)
        made = {name: tuner.steps(name, kind, topology.group, nbytes, root) for name in names}
        return made if per_peer is None else {name: unequal(steps, per_peer) for name, steps in made.items()}

    def _chosen(self, request: _Request, topology: GroupTopology) -> TransferPlan:
        choices, nbytes = self._choices(request, topology), request[2]
        best = self._best(request[0], topology, choices, nbytes, request)
        return EMPTY if best is None else self._plan(best, topology, nbytes, topology.channels)

    def send(self, sender: int, receiver: int, nbytes: float) -> TransferPlan:
        """Return the plan of a message between two ranks. The one or two SMs that it occupies are not counted."""
        if not nbytes:
            return EMPTY
        key = "send", sender, receiver, nbytes
        if key not in self._plans:
            placement = self._placement(key[:3], lambda: self.sends(np.array([(sender, receiver)])))
            self._plans[key] = self._relabelled(
                ("send", nbytes),
                placement,
                (sender, receiver),
                lambda first: self._message(self.topology(first), nbytes),
            )
        return self._plans[key]

    def sends(self, pairs: Indices) -> Placement:
        """Return the placement of *pairs* (sender, receiver) of ranks for messages of any size."""
        return self.placements.of(self.device[pairs], lambda _: ("send", _MESSAGE))

    def _message(self, topology: GroupTopology, nbytes: float) -> TransferPlan:
        best = self._best("send", topology, {"direct": [Step(_MESSAGE, nbytes)]}, nbytes, "send")
        if best is None:
            return EMPTY
        plan = self._plan(best, topology, nbytes, self.transport.blocks)
        # the latency of the links does not occupy the sender
        first, *others = plan.phases
        wire = min(first.latency, topology.wire)
        phases = (Phase(first.latency - wire, first.flows, first.nbytes, first.contended), *others)
        return TransferPlan(plan.algorithm, plan.protocol, phases, plan.sent_bytes, delivery=wire)

    def copy(self, rank: int, nbytes: float, source: str, to: str) -> TransferPlan:
        """Return the plan of a copy by *rank* from *source* to *to* (`Cluster.copy_path`). Only the links count."""
        if not nbytes or self.devices[rank] in self._host_number:
            return EMPTY
        key = "copy", rank, nbytes, source, to
        if key not in self._plans:
            request, placement = ("copy", nbytes, source, to), self.copies(np.array([rank]), source, to)
            self._plans[key] = self._relabelled(
                request, placement, (rank,), lambda first: self._copied(first[0], nbytes, source, to)
            )
        return self._plans[key]

    def copies(self, ranks: Indices, source: str, to: str) -> Placement:
        """Return the placement of *ranks* for copies by each rank from *source* to *to*."""
        names, host_of = [self.devices[rank] for rank in ranks.tolist()], self.cluster.host_of
        if not self.regular:
            return self.placements.of_paths([self._copy_path(name, source, to) for name in names])
        hosts = [name if name in self._host_number else host_of(name) for name in names]
        pairs = np.array([self.device[ranks], [self._host_number[host] for host in hosts]]).T
        return self.placements.of(pairs, lambda _: ("copy", _MESSAGE))

    def _copy_path(self, device: str, source: str, to: str) -> tuple[int, ...]:
        return () if device in self._host_number else self.cluster.copy_path(device, source, to)

    @cached_property
    def _host_number(self) -> Mapping[str, int]:
        return {host: number for number, host in enumerate(self.cluster.hosts, len(self.cluster.gpus))}

    def _copied(self, rank: int, nbytes: float, source: str, to: str) -> TransferPlan:
        path = self._copy_path(self.devices[rank], source, to)
        if not path:
            return self._in_memory(self.cluster.host_of(self.devices[rank]), nbytes)
        links = [self.cluster.links[number] for number in path]
        weights = np.array([1.0 / self.transport.link_efficiency(link) for link in links])
        numbers = np.array(path, np.int64)
        alone = float((self.cluster.bandwidths_of(numbers) / weights).min(initial=inf))
        flow = Flow(numbers, np.ones(len(path)), numbers, weights, alone)
        step, wire = Step(_MESSAGE, nbytes), self.cluster.latency(path)
        bare = AlgorithmCandidate("copy", "copy", (PlacedStep(step, wire, (flow,), nbytes / alone),), 0.0, 1.0)
        return TransferPlan("copy", "copy", tuple(self._phases(bare)), nbytes)

    def _in_memory(self, host: str, nbytes: float) -> TransferPlan:
        """The plan of *nbytes* in the memory of *host*, which has no link of its own: nothing shares it."""
        seconds = self.cluster.accelerator(host).kernel_seconds(memory_bound(nbytes))
        return TransferPlan("copy", "copy", (Phase(seconds, (), 0.0, contended=False),), nbytes)

    def buffer_bytes(self, ranks: tuple[int, ...]) -> float:
        """Return the bytes that the library holds on each GPU of the group *ranks* for its channels."""
        if len(ranks) < 2:
            return 0.0
        return self.topology(ranks).channels * self.transport.buffer_bytes

    def topology(self, ranks: tuple[int, ...]) -> GroupTopology:
        """Return the topology of the group *ranks*, which is made once."""
        if ranks not in self._topologies:
            self._topologies[ranks] = self._found(ranks)
        return self._topologies[ranks]

    def _found(self, ranks: tuple[int, ...]) -> GroupTopology:
        if self._like is not None:
            return self._like.topology(ranks).by(self.transport)
        numbers = self.device[list(ranks)]
        return GroupTopology(self.cluster, self.cluster.devices_of(numbers), self.transport, numbers=numbers)

    def _best(
        self,
        kind: str,
        topology: GroupTopology,
        choices: Mapping[str, Sequence[Step]],
        nbytes: float,
        request: Hashable,
    ) -> AlgorithmCandidate | None:
        """The candidate for *request* that is fastest by the tuning model on idle links; None if there is none."""
        model = self.transport.tuning_model
        if model is None:
            every = candidates(self.transport, topology, kind, choices, nbytes)
            return min(every, key=attrgetter("seconds"), default=None)
        key = model, request, nbytes, topology.devices
        if key not in self._tuned:
            # a library does not see collisions on the cables of a fabric
            judged = topology.without_cables if self.cluster.chooses else topology
            best = min(candidates(model, judged, kind, choices, nbytes), key=attrgetter("seconds"), default=None)
            if best is None:
                return None
            self._tuned[key] = best.algorithm, best.protocol
        algorithm, protocol = self._tuned[key]
        return candidate(self.transport, topology, kind, algorithm, protocol, choices[algorithm], nbytes)

    def _plan(self, best: AlgorithmCandidate, topology: GroupTopology, nbytes: float, channels: int) -> TransferPlan:
        """The plan of the candidate *best* with at most *channels* channels."""
        channels_open = tuner.thread_blocks(best.algorithm) or self.transport.channels_used(
            best.algorithm, best.protocol, nbytes, topology.properties.ranks, channels
        )
        sms = channels_open / (topology.multiprocessors or inf)
        return TransferPlan(best.algorithm, best.protocol, tuple(self._phases(best)), best.sent_bytes, sms)

    def _phases(self, chosen: AlgorithmCandidate) -> Iterator[Phase]:
        """The phases of the candidate *chosen*, at the communicator's fidelity."""
        placed, base, latency_factor = chosen.placed, chosen.base, chosen.latency_factor
        if self.fidelity == "chunk":
            for one in placed:
                repeat = one.step.repeat
                latency = latency_factor * one.latency / repeat
                yield Phase(latency + latency_factor * base, one.flows, one.step.nbytes)
                yield from [Phase(latency, one.flows, one.step.nbytes)] * (repeat - 1)
                base = 0.0
            return
        for run in _merged(placed):
            seconds = latency_factor * (base + sum(one.latency for one in run))
            nbytes = sum(one.step.nbytes * one.step.repeat for one in run)
            if self.fidelity == "flow":
                yield Phase(seconds, run[0].flows, nbytes)
            else:
                yield Phase(seconds + sum(one.busy for one in run), run[0].flows, nbytes, contended=False)
            base = 0.0


def _merged(placed: Sequence[PlacedStep]) -> list[list[PlacedStep]]:
    """Successive steps with the same flows, merged into runs."""
    runs: list[list[PlacedStep]] = []
    for one in placed:
        if runs and runs[-1][0].flows is one.flows:
            runs[-1].append(one)
        else:
            runs.append([one])
    return runs
