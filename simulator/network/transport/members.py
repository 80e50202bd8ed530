"""The members of one group on a cluster: their rings, and their transfers laid on links as flows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf

from simulator.cluster import Cluster
from simulator.network.plan import Flow
from simulator.network.step import Group, Step, Transfer
from simulator.network.transport.channels import group_of
from simulator.network.transport.transport import Setting, Transport
from simulator.network.transport.wires import MOST_CHANNELS, Load, load, nvlinks, route, setting


class Members:
    """A group of *devices* that talks through *transport*; routes, loads and flows are found once and kept."""

    def __init__(self, cluster: Cluster, devices: Sequence[str], transport: Transport) -> None:
        self.cluster, self.devices, self.transport = cluster, tuple(devices), transport
        self._loads: dict[tuple[tuple[Transfer, ...], bool], Load] = {}
        self._flows: dict[tuple[Hashable, ...], tuple[Flow, ...]] = {}
        self._wholes: dict[tuple[Transport, int], tuple[list[float], float]] = {}
        self._paces: dict[Flow, tuple[float, ...]] = {}

    @cached_property
    def group(self) -> Group:
        """Servers, and rings where the transport finds them."""
        return group_of(self.cluster, self.devices, reorders=self.transport.reorders)

    @cached_property
    def setting(self) -> Setting:
        """What the transport wants to know of the group."""
        return setting(self.cluster, self.devices, self.group.servers, self.rings)

    @cached_property
    def rings(self) -> int:
        """How many rings there are; through a switch one stands for as many as the port has NVLinks."""
        found, devices = self.group.channels, self.devices
        if len(found) > 1 or len(self.group.servers) > 1:
            return len(found)
        path = route(self.cluster, devices[found[0][0]], devices[found[0][1]])
        return nvlinks(self.cluster.links[path[0]]) if path else 1

    @property
    def channels(self) -> int:
        """How many channels a collective may open, each on a multiprocessor of its own."""
        return min(self.transport.blocks * self.rings, MOST_CHANNELS)

    def load(self, step: Step) -> Load:
        """What *step* lays on the links, found once for all steps of its transfers."""
        key = step.transfers, step.in_switch
        if key not in self._loads:
            self._loads[key] = load(self.cluster, self.devices, step)
        return self._loads[key]

    def flows(self, transport: Transport, step: Step, share: float, ceiling: float) -> tuple[Flow, ...]:
        """The flows of *step*: one for all its transfers if they are coupled, else one each; the same every time.

        Of what *transport* gets of every link *share* carries data; a rank's channels together carry at most *ceiling*
        bytes/s.
        """
        key = transport, step.transfers, step.coupled, step.in_switch, share, ceiling
        if key not in self._flows:
            limit = ceiling / self._most(step)
            parts = [step] if step.coupled else [replace(step, transfers=(transfer,)) for transfer in step.transfers]
            self._flows[key] = tuple(self._flow(transport, self.load(part), share, limit) for part in parts)
        return self._flows[key]

    def _most(self, step: Step) -> int:
        """The most that a position sends or receives at once, in transfers; through a switch in copies on its link.

        What passes a pipeline counts once for each lane, to however many it is handed on.
        """
        if step.in_switch:
            return max(self.load(step).crossings, default=1)
        sends, receives = Counter(s for s, _ in step.transfers), Counter(r for _, r in step.transfers)
        most = max(*sends.values(), *receives.values())
        return min(most, step.lanes) if step.pipelined else most

    def _flow(self, transport: Transport, on: Load, share: float, limit: float) -> Flow:
        weights, alone = self._whole(transport, on)
        return Flow(
            on.links, on.crossings, on.links, tuple([w / share for w in weights]), min(alone * share, limit), limit
        )

    def _whole(self, transport: Transport, on: Load) -> tuple[list[float], float]:
        """The weights and the rate of a flow, if all that *transport* gets of a link carries data."""
        key = transport, id(on)
        if key not in self._wholes:
            distinct, places = self.cluster.links.distinct, self.cluster.links.which[list(on.links)].tolist()
            each = {place: transport.link_efficiency(distinct[place]) for place in dict.fromkeys(places)}
            weights = [crossings / each[place] for crossings, place in zip(on.crossings, places, strict=True)]
            rates = (distinct[place].bandwidth / w for place, w in zip(places, weights, strict=True))
            alone = min(rates, default=inf)
            self._wholes[key] = weights, alone
        return self._wholes[key]

    def paces(self, step: Step, flow: Flow) -> tuple[float, ...]:
        """Seconds for 1 byte by each transfer of *step*, on the links that all of them load as *flow*."""
        if flow not in self._paces:
            bandwidths = self.cluster.bandwidths[list(flow.links)].tolist()
            taken = {n: w / bandwidth for n, w, bandwidth in zip(flow.links, flow.weights, bandwidths, strict=True)}
            paths = self.load(step).paths
            self._paces[flow] = tuple(max([1 / flow.bound, *(taken[number] for number in path)]) for path in paths)
        return self._paces[flow]

    def busy(self, flows: Sequence[Flow]) -> float:
        """Seconds for 1 byte by every transfer, if only these flows are on the links: as the busiest link has it."""
        slowest = 1.0 / min(flow.alone for flow in flows)
        if len(flows) == 1:
            return slowest
        taken: dict[int, float] = {}
        for flow in flows:
            for link, weight in zip(flow.links, flow.weights, strict=True):
                taken[link] = taken.get(link, 0.0) + weight
        return max([slowest, *(weight / self.cluster.links[link].bandwidth for link, weight in taken.items())])
