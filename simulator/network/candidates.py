"""A group on a cluster, with its transfers placed on links as flows; and the candidates for a communication of it,
each one algorithm with one protocol: its steps on the links, with their latencies.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from math import inf

import numpy as np

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import Indices, distinct
from clustersim.simulator.hardware.links import Floats, Link, connection_limit
from clustersim.simulator.hardware.topology import unchanging
from clustersim.simulator.network.plan import Flow
from clustersim.simulator.network.rings_and_tori import group_of, torus_of
from clustersim.simulator.network.routes import (
    MOST_CHANNELS,
    LinkLoad,
    group_properties,
    link_load,
    nvlinks,
    route,
)
from clustersim.simulator.network.step import Group, Step
from clustersim.simulator.network.transport import GROUPED, NET, GroupProperties, Transport, link_class
from clustersim.simulator.reading.dataclass import dataclass

TREES = "tree", "nvls_tree"
"""Algorithms that pass chunks up to a root and down from it."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The parts of the bandwidth that carry data: *inside* on links of the class that joins GPUs of a server, *outside*
    on others.
    """

    inside: float
    outside: float


class GroupTopology:
    """A group of *devices* that communicates by *transport*. Routes, link loads and flows are found once and kept.

    Without *cables* no transfer loads the cables between switches, of which a library knows nothing. *numbers*: those
    of the devices in `Cluster.devices`, if they are known.
    """

    def __init__(
        self,
        cluster: Cluster,
        devices: Sequence[str],
        transport: Transport,
        *,
        cables: bool = True,
        numbers: Indices | None = None,
    ) -> None:
        self.cluster, self.transport, self.cables = cluster, transport, cables
        self.devices = unchanging(devices)
        self.numbers = cluster.numbers(self.devices) if numbers is None else numbers
        self._loads: dict[Hashable, LinkLoad] = {}
        self._flows: dict[tuple[Hashable, ...], tuple[Flow, ...]] = {}
        self._wholes: dict[tuple[Transport, int], Floats] = {}
        self._kinds: dict[int, tuple[list[Link], Indices, Floats]] = {}
        self._most: dict[Hashable, int] = {}
        self._seconds_per_byte: dict[Flow, Floats] = {}
        self._like: GroupTopology | None = None

    @cached_property
    def without_cables(self) -> GroupTopology:
        """The same group without the cables between switches."""
        return GroupTopology(self.cluster, self.devices, self.transport, cables=False, numbers=self.numbers)

    def by(self, transport: Transport) -> GroupTopology:
        """The same group by *transport*, which finds the same rings: routes, link loads and properties are shared."""
        other = copy(self)
        other._like = self
        other.transport, other._flows, other._wholes, other._seconds_per_byte = transport, {}, {}, {}
        return other

    @cached_property
    def group(self) -> Group:
        """The servers, and the rings if the transport finds them."""
        if self.transport.torus:
            return torus_of(self.cluster, self.devices, self.numbers)
        return group_of(self.cluster, self.devices, reorders=self.transport.reorders, numbers=self.numbers)

    @cached_property
    def properties(self) -> GroupProperties:
        """The properties of the group on which the library's choice depends."""
        if self._like is not None:
            return self._like.properties
        return group_properties(self.cluster, self.devices, self.group.servers, self.rings)

    @cached_property
    def rings(self) -> int:
        """The number of rings. Through a switch one ring stands for as many as the port has NVLinks."""
        found, devices = self.group.channels, self.devices
        if len(found) > 1 or len(self.group.servers) > 1 or self.group.dims:
            return len(found)
        path = route(self.cluster, devices[found[0][0]], devices[found[0][1]])
        return nvlinks(self.cluster.links[path[0]]) if path else 1

    @cached_property
    def multiprocessors(self) -> int:
        """Those of each GPU; 0 if they are not known."""
        return self._like.multiprocessors if self._like else self.cluster.accelerator(self.devices[0]).sms

    @cached_property
    def wire(self) -> float:
        """The latency of the links from the first device to the second one, s."""
        return self._like.wire if self._like else self.cluster.latency(route(self.cluster, *self.devices[:2]))

    @property
    def channels(self) -> int:
        """The number of channels that a collective may open. Each has a multiprocessor of its own."""
        return min(self.transport.blocks * self.rings, MOST_CHANNELS)

    def link_load(self, step: Step) -> LinkLoad:
        """Return the load of *step* on the links, found once for all steps with the same transfers."""
        key = step.transfers, step.in_switch
        if key not in self._loads:
            load = link_load(self.cluster, self.devices, step, self.numbers)
            self._loads[key] = load if self.cables else load.without(self.cluster.cables)
        return self._loads[key]

    def flows(self, transport: Transport, step: Step, shares: Shares, ceiling: float) -> tuple[Flow, ...]:
        """Return the flows of *step*: one for all its transfers if they are coupled, else one each. The same objects
        every time.

        *shares*: the parts of the bandwidth available to *transport* that carry data. *ceiling*: the limit (bytes/s) of
        all channels of a rank together.
        """
        key = transport, step.transfers, step.coupled, step.in_switch, shares, ceiling
        if key not in self._flows:
            limit = min(ceiling / self.most(step), self._connections_limit(transport, step))
            load = self.link_load(step)
            self._flows[key] = (
                (self._flow(transport, load, shares, limit),)
                if step.coupled
                else tuple(self._separate(transport, load, shares, limit))
            )
        return self._flows[key]

    def _connections_limit(self, transport: Transport, step: Step) -> float:
        """The most (bytes/s) that the TCP connections of one transfer of *step* carry; infinite without TCP."""
        if not self.properties.tcp or transport.blind:
            return inf
        load = self.link_load(step)
        latencies = load.of_hops(lambda hop: hop[0]).tolist()
        connections = transport.tcp_sockets * max(1, transport.blocks)
        return connections * connection_limit(self.cluster.links, load.paths(), latencies)

    def most(self, step: Step) -> int:
        """Return the most concurrent transfers that one position sends or receives.

        Through a switch: the most copies on its link.

        In a pipeline each lane counts once for what is added and once for what is passed on, however many the
        receivers.
        """
        key = step.transfers, step.in_switch, step.pipelined, step.lanes, step.reduces
        if key not in self._most:
            self._most[key] = self._counted_most(step)
        return self._most[key]

    def _counted_most(self, step: Step) -> int:
        if step.in_switch:
            return round(self.link_load(step).crossings.max(initial=0.0)) or 1
        if step.pipelined:
            lane = step.lane(np.arange(len(step.transfers)))
            kinds = 2 * (int(lane.max()) + 1)
            # by end of a transfer its stream: position, lane, and whether the receiver adds
            streams = step.ends.T * kinds + 2 * lane + np.broadcast_to(step.reduces, len(lane))
            return max(int(np.bincount(distinct(end) // kinds).max()) for end in streams)
        return int(max(np.bincount(end).max() for end in step.ends.T))

    def _flow(self, transport: Transport, on: LinkLoad, shares: Shares, limit: float) -> Flow:
        weights, share = self._whole(transport, on), self._shares(on, shares)
        alone = float((self._kinds_of(on)[2] / weights * share).min(initial=inf))
        return Flow(on.links, on.crossings, on.links, weights / share, min(alone, limit), limit)

    def _separate(self, transport: Transport, on: LinkLoad, shares: Shares, limit: float) -> Iterator[Flow]:
        """Yield a flow for each transfer, on its own paths."""
        efficiency, bandwidths = self._efficiency(transport, on), self._kinds_of(on)[2]
        share = self._shares(on, shares)
        for passed in on.shares():
            at, crossings = np.array(list(passed), np.int64), np.array(list(passed.values()))
            links, weights = on.links[at], crossings / efficiency[at]
            alone = float((bandwidths[at] / weights * share[at]).min(initial=inf))
            yield Flow(links, crossings, links, weights / share[at], min(alone, limit), limit)

    def _efficiency(self, transport: Transport, on: LinkLoad) -> Floats:
        """The part of the bandwidth of each link of *on* that is available to *transport*."""
        kinds, kind_of, _ = self._kinds_of(on)
        return np.array([transport.link_efficiency(kind, self.properties.way) for kind in kinds])[kind_of]

    def _shares(self, on: LinkLoad, shares: Shares) -> Floats:
        """The part of that which carries data, of each link of *on*."""
        kinds, kind_of, _ = self._kinds_of(on)
        inside = np.array([link_class(kind.kind) == self.properties.inside for kind in kinds])[kind_of]
        return np.where(inside, shares.inside, shares.outside)

    def _whole(self, transport: Transport, on: LinkLoad) -> Floats:
        """The weights of a flow if the whole bandwidth available to *transport* carries data."""
        key = transport, id(on)
        if key not in self._wholes:
            self._wholes[key] = on.crossings / self._efficiency(transport, on)
        return self._wholes[key]

    def _kinds_of(self, on: LinkLoad) -> tuple[list[Link], Indices, Floats]:
        """The distinct links of *on*, and of each of its links the index there and the bandwidth (bytes/s)."""
        if id(on) not in self._kinds:
            links = self.cluster.links
            which = links.which[on.links]
            used = distinct(which.astype(np.int64))
            kinds = [links.distinct[place] for place in used.tolist()]
            self._kinds[id(on)] = kinds, np.searchsorted(used, which), self.cluster.bandwidths_of(on.links)
        return self._kinds[id(on)]

    def seconds_per_byte(self, step: Step, flow: Flow) -> Floats:
        """Return the seconds for 1 byte of each transfer of *step*, on links that carry all of them as *flow*."""
        if flow not in self._seconds_per_byte:
            load = self.link_load(step)
            taken = flow.weights / self.cluster.bandwidths_of(load.links)
            self._seconds_per_byte[flow] = np.maximum(1 / flow.bound, load.slowest(taken))
        return self._seconds_per_byte[flow]

    def busy(self, flows: Sequence[Flow]) -> float:
        """Return the seconds for 1 byte of every transfer if only these flows use the links."""
        slowest = 1.0 / min(flow.alone for flow in flows)
        if len(flows) == 1:
            return slowest
        taken: dict[int, float] = {}
        for flow in flows:
            for link, weight in zip(flow.links.tolist(), flow.weights.tolist(), strict=True):
                taken[link] = taken.get(link, 0.0) + weight
        return max([slowest, *(weight / self.cluster.links[link].bandwidth for link, weight in taken.items())])


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """A *step* on the links: *latency* seconds, then *flows*, which take *busy* seconds on idle links."""

    step: Step
    latency: float
    flows: tuple[Flow, ...]
    busy: float


@dataclass(frozen=True, slots=True)
class AlgorithmCandidate:
    """The *placed* steps of *algorithm* by *protocol*.

    *base*: seconds paid once. *latency_factor* applies to all latency.
    """

    algorithm: str
    protocol: str
    placed: tuple[PlacedStep, ...]
    base: float
    latency_factor: float

    @property
    def seconds(self) -> float:
        """Duration on idle links."""
        latency = self.base + sum(one.latency for one in self.placed)
        return self.latency_factor * latency + sum(one.busy for one in self.placed)

    @property
    def sent_bytes(self) -> float:
        """Bytes of all transfers together."""
        return sum(one.step.nbytes * one.step.repeat * len(one.step.transfers) for one in self.placed)


def candidates(
    transport: Transport, topology: GroupTopology, kind: str, choices: Mapping[str, Sequence[Step]], nbytes: float
) -> Iterator[AlgorithmCandidate]:
    """Yield each of *choices* (steps by algorithm) with each protocol that *transport* may use."""
    for algorithm, steps in choices.items():
        protocols = transport.usable_protocols(algorithm, topology.properties)
        if algorithm == "direct":
            protocols = transport.sized(protocols, max((step.nbytes for step in steps), default=0.0))
        for protocol in protocols:
            yield candidate(transport, topology, kind, algorithm, protocol, steps, nbytes)


def candidate(
    transport: Transport,
    topology: GroupTopology,
    kind: str,
    algorithm: str,
    protocol: str,
    steps: Sequence[Step],
    nbytes: float,
) -> AlgorithmCandidate:
    """Return the *steps* of a collective of *nbytes* by *algorithm* and *protocol*, with the costs of *transport*."""
    properties = topology.properties
    if transport.chains_by_rank and algorithm == "tree" and properties.servers != 2:
        # NCCL judges a tree by half its bus bandwidth, but for two servers by what they carry inside
        # (ncclTopoTuneModel)
        steps = [part for step in steps for part in step.passes()]
    correction = transport.correction(algorithm, protocol, nbytes)
    share, of_link = transport.share(kind, algorithm, protocol, properties), transport.link_share(kind, properties)
    outside = transport.net_share(algorithm, protocol, share)
    shares = Shares(share * correction * of_link, outside * correction * of_link)
    pipelined = transport.pipeline_share(
        algorithm, sum(step.repeat for step in steps if not (step.pipelined or step.continues))
    )
    ceiling = transport.ceiling(kind, algorithm, protocol, properties) * correction * pipelined

    latencies = transport.latencies_of(algorithm)
    crowded = transport.crowding_factor(latencies, protocol, nbytes, properties.ranks)

    def placed(step: Step) -> PlacedStep:
        flows = topology.flows(transport, step, shares, ceiling)
        round_busy = topology.busy(flows) * step.nbytes
        if transport.chains_by_rank and algorithm == "ring" and step.pipelined:
            return PlacedStep(
                step, transport.chain_estimate(algorithm, protocol, properties), flows, round_busy * step.repeat
            )
        latency = _exposed(transport, topology, algorithm, protocol, step, flows[0], crowded)
        if step.pipelined and transport.fills:
            # the first chunks go up a tree before any comes down, so each way they have the links to themselves
            for part in step.passes() if algorithm in TREES else [step]:
                flow = topology.flows(transport, part, shares, ceiling)[0]
                latency += _filling(transport, topology, algorithm, protocol, part, flow)
            latency += _rounds(transport, topology, algorithm, protocol, step)
        if kind in GROUPED and transport.fills:
            latency += _copied(transport, topology, kind, algorithm, protocol, step, round_busy)
        return PlacedStep(step, latency, flows, round_busy * step.repeat)

    latency_factor = transport.latency_factor(kind, algorithm, protocol, nbytes, properties)
    return AlgorithmCandidate(
        algorithm,
        protocol,
        tuple(map(placed, steps)),
        transport.base(latencies, protocol, properties.link, crowded),
        latency_factor,
    )


def _exposed(
    transport: Transport,
    topology: GroupTopology,
    algorithm: str,
    protocol: str,
    step: Step,
    flow: Flow,
    crowded: float,
) -> float:
    """The seconds of latency of *step*, whose bytes go by *flow*, that the bytes do not overlap.

    Messages inside a server take *crowded* times as long as alone.
    """
    properties, load, latencies = topology.properties, topology.link_load(step), transport.latencies_of(algorithm)
    alphas = load.of_hops(
        lambda hop: transport.message(*hop, latencies, protocol, properties) * (1.0 if hop[1] == NET else crowded)
    )
    segments = transport.segments if properties.tcp else 0
    if step.pipelined or not step.coupled or not (transport.overlapped_latency or segments):
        return step.latency(alphas)
    chunk = transport.round_bytes.get((algorithm, protocol), inf) * max(1, transport.blocks)
    betas = topology.seconds_per_byte(step, flow)
    ready = alphas + load.of_hops(lambda hop: hop[0]) if segments else None
    line = transport.lines.get(protocol, 0.0) if properties.servers == 1 else 0.0
    return step.exposed(alphas, betas, chunk, segments or transport.slices.get(algorithm, 1), ready, line)


def _filling(
    transport: Transport, topology: GroupTopology, algorithm: str, protocol: str, step: Step, flow: Flow
) -> float:
    """The seconds until a pipelined *step* has chunks on all its hops."""
    channels, inside, across = _chunks(transport, topology, algorithm, protocol, step)
    chunk = topology.link_load(step).of_hops(lambda hop: across if hop[1] == NET else inside)
    busy = chunk * topology.seconds_per_byte(step, flow)
    filling = step.fill(busy) + transport.copies.get((algorithm, protocol), 0) * float(busy.max())
    posted = _crossing(topology, step) * step.nbytes * step.repeat * channels / across
    return filling + posted * transport.post_seconds(protocol, topology.properties)


def _rounds(transport: Transport, topology: GroupTopology, algorithm: str, protocol: str, step: Step) -> float:
    """The seconds that the rounds of chunks of a pipelined *step* add. Trees are of different channels, so their rounds
    are at once.
    """
    each = transport.round_latency.get((algorithm, protocol), 0.0)
    if not each:
        return 0.0
    _, chunk, _ = _chunks(transport, topology, algorithm, protocol, step)
    at_once = 2 if algorithm in TREES else 1
    return each * step.nbytes * step.repeat / chunk * step.lanes / at_once


def _chunks(
    transport: Transport, topology: GroupTopology, algorithm: str, protocol: str, step: Step
) -> tuple[int, float, float]:
    """The channels of a lane of a pipelined *step*, and the bytes that they together pass on at once, inside a server
    and between servers.

    A ring of the group stands for all its channels, which fill at once; a tree is one channel.
    """
    key, whole = (algorithm, protocol), step.nbytes * step.repeat
    channels = max(1, transport.blocks * len(topology.group.channels) // step.lanes)
    inside = across = step.nbytes
    nic, link = topology.properties.nic, topology.properties.link
    if key in transport.chunk_bytes:
        inside = across = channels * transport.chunk(*key, whole / channels, step.rounds, nic=nic, link=link)
    if key in transport.net_chunk_bytes:
        across = channels * transport.chunk(*key, whole / channels, topology.properties.tree_steps, net=True)
    return channels, inside, across


def _crossing(topology: GroupTopology, step: Step) -> int:
    """The most transfers of *step* from and to other servers that one position takes part in."""
    across = topology.link_load(step).of_hops(lambda hop: hop[1] == NET) > 0
    return int(np.bincount(step.ends[across].ravel(), minlength=1).max())


def _copied(
    transport: Transport,
    topology: GroupTopology,
    kind: str,
    algorithm: str,
    protocol: str,
    step: Step,
    round_busy: float,
) -> float:
    """The seconds that grouped sends of *step* take for copies in a rank's memory: of its block to itself, and of what
    fills its channels' buffers before the first of it is copied out.

    Without a rate of copies buffers are copied as fast as links fill them, in *round_busy* seconds for all bytes.
    """
    properties, sent = topology.properties, step.nbytes * topology.most(step)
    if not sent:
        return 0.0
    buffered = 0.0 if step.continues else min(sent, _buffers(transport, topology, algorithm, protocol))
    rate = transport.copy_rate.get((algorithm, protocol, properties.link)) if properties.servers == 1 else None
    if rate is None:
        return round_busy * transport.copies.get((algorithm, protocol), 0) * buffered / sent
    own = step.nbytes if kind == "all_to_all" else 0.0
    return (own + buffered) / rate


def _buffers(transport: Transport, topology: GroupTopology, algorithm: str, protocol: str) -> float:
    """The bytes of a chunk of all channels of grouped sends, which have a power of two of them."""
    sizes = transport.net_chunk_bytes if topology.properties.servers > 1 else transport.chunk_bytes
    chunk = sizes.get((algorithm, protocol), (0.0,))[0]
    return chunk * (1 << (topology.channels - 1).bit_length())
