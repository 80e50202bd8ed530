"""The topology of one group on a cluster: its rings, and its transfers placed on links as flows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf

from simulator.cluster import Cluster
from simulator.network.plan import Flow
from simulator.network.step import Group, Step
from simulator.network.transport.channels import group_of
from simulator.network.transport.group_properties import GroupProperties
from simulator.network.transport.networks.tcp import connection_limit
from simulator.network.transport.routing import MOST_CHANNELS, LinkLoad, group_properties, link_load, nvlinks, route
from simulator.network.transport.torus import torus_of
from simulator.network.transport.transport import Transport


class GroupTopology:
    """A group of *devices* that communicates by *transport*. Routes, link loads and flows are found once and kept.

    Without *cables* no transfer loads the cables between switches, of which a library knows nothing.
    """

    def __init__(self, cluster: Cluster, devices: Sequence[str], transport: Transport, *, cables: bool = True) -> None:
        self.cluster, self.devices, self.transport, self.cables = cluster, tuple(devices), transport, cables
        self._loads: dict[Hashable, LinkLoad] = {}
        self._flows: dict[tuple[Hashable, ...], tuple[Flow, ...]] = {}
        self._wholes: dict[tuple[Transport, int], tuple[list[float], float]] = {}
        self._seconds_per_byte: dict[Flow, tuple[float, ...]] = {}

    @cached_property
    def group(self) -> Group:
        """The servers, and the rings if the transport finds them."""
        if self.transport.torus:
            return torus_of(self.cluster, self.devices)
        return group_of(self.cluster, self.devices, reorders=self.transport.reorders)

    @cached_property
    def properties(self) -> GroupProperties:
        """The properties of the group on which the library's choice depends."""
        return group_properties(self.cluster, self.devices, self.group.servers, self.rings)

    @cached_property
    def rings(self) -> int:
        """The number of rings. Through a switch one ring stands for as many as the port has NVLinks."""
        found, devices = self.group.channels, self.devices
        if len(found) > 1 or len(self.group.servers) > 1 or self.group.dims:
            return len(found)
        path = route(self.cluster, devices[found[0][0]], devices[found[0][1]])
        return nvlinks(self.cluster.links[path[0]]) if path else 1

    @property
    def channels(self) -> int:
        """The number of channels that a collective may open. Each has a multiprocessor of its own."""
        return min(self.transport.blocks * self.rings, MOST_CHANNELS)

    def link_load(self, step: Step) -> LinkLoad:
        """Return the load of *step* on the links, found once for all steps with the same transfers."""
        key = step.transfers, step.in_switch
        if key not in self._loads:
            load = link_load(self.cluster, self.devices, step)
            self._loads[key] = load if self.cables else load.without(self.cluster.cables)
        return self._loads[key]

    def flows(self, transport: Transport, step: Step, share: float, ceiling: float) -> tuple[Flow, ...]:
        """Return the flows of *step*: one for all its transfers if they are coupled, else one each. The same objects
        every time.

        *share*: the part of the bandwidth available to *transport* that carries data. *ceiling*: the limit (bytes/s) of
        all channels of a rank together.
        """
        key = transport, step.transfers, step.coupled, step.in_switch, share, ceiling
        if key not in self._flows:
            limit = min(ceiling / self.most(step), self._connections_limit(transport, step))
            parts = [step] if step.coupled else [replace(step, transfers=(transfer,)) for transfer in step.transfers]
            self._flows[key] = tuple(self._flow(transport, self.link_load(part), share, limit) for part in parts)
        return self._flows[key]

    def _connections_limit(self, transport: Transport, step: Step) -> float:
        """The most (bytes/s) that the TCP connections of one transfer of *step* carry; infinite without TCP."""
        if not self.properties.tcp or transport.blind:
            return inf
        load = self.link_load(step)
        latencies = [latency for latency, _ in load.hops]
        connections = transport.tcp_sockets * max(1, transport.blocks)
        return connections * connection_limit(self.cluster, load.paths, latencies)

    def most(self, step: Step) -> int:
        """Return the most concurrent transfers that one position sends or receives.

        Through a switch: the most copies on its link.

        In a pipeline each lane counts once for what is added and once for what is passed on, however many the
        receivers.
        """
        if step.in_switch:
            return round(max(self.link_load(step).crossings, default=1))
        if step.pipelined:
            streams = {
                (end, position, step.lane(place), step.adds(place))
                for place, transfer in enumerate(step.transfers)
                for end, position in enumerate(transfer)
            }
            return max(Counter(stream[:2] for stream in streams).values())
        sends, receives = Counter(s for s, _ in step.transfers), Counter(r for _, r in step.transfers)
        return max(*sends.values(), *receives.values())

    def _flow(self, transport: Transport, on: LinkLoad, share: float, limit: float) -> Flow:
        weights, alone = self._whole(transport, on)
        return Flow(
            on.links, on.crossings, on.links, tuple([w / share for w in weights]), min(alone * share, limit), limit
        )

    def _whole(self, transport: Transport, on: LinkLoad) -> tuple[list[float], float]:
        """The weights and the rate of a flow if the whole bandwidth available to *transport* carries data."""
        key = transport, id(on)
        if key not in self._wholes:
            distinct, places = self.cluster.links.distinct, self.cluster.links.which[list(on.links)].tolist()
            each = {place: transport.link_efficiency(distinct[place]) for place in dict.fromkeys(places)}
            weights = [crossings / each[place] for crossings, place in zip(on.crossings, places, strict=True)]
            rates = (distinct[place].bandwidth / w for place, w in zip(places, weights, strict=True))
            alone = min(rates, default=inf)
            self._wholes[key] = weights, alone
        return self._wholes[key]

    def seconds_per_byte(self, step: Step, flow: Flow) -> tuple[float, ...]:
        """Return the seconds for 1 byte of each transfer of *step*, on links that carry all of them as *flow*."""
        if flow not in self._seconds_per_byte:
            bandwidths = self.cluster.bandwidths[list(flow.links)].tolist()
            taken = {n: w / bandwidth for n, w, bandwidth in zip(flow.links, flow.weights, bandwidths, strict=True)}
            paths = self.link_load(step).paths
            self._seconds_per_byte[flow] = tuple(
                max([1 / flow.bound, *(taken[number] for number in path)]) for path in paths
            )
        return self._seconds_per_byte[flow]

    def busy(self, flows: Sequence[Flow]) -> float:
        """Return the seconds for 1 byte of every transfer if only these flows use the links."""
        slowest = 1.0 / min(flow.alone for flow in flows)
        if len(flows) == 1:
            return slowest
        taken: dict[int, float] = {}
        for flow in flows:
            for link, weight in zip(flow.links, flow.weights, strict=True):
                taken[link] = taken.get(link, 0.0) + weight
        return max([slowest, *(weight / self.cluster.links[link].bandwidth for link, weight in taken.items())])
