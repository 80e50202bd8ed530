"""Groups that lie alike on the cluster share their plans: what was planned for one is moved to the links of another.

Two groups lie alike if the links that their transfers may cross are of the same classes, and two are one link in one
group where they are in the other. Then latencies, weights and rates are the same, and only the numbers of the links
differ. A link of a group has coordinates that those who lie alike have in common: a *slot*, where the group's own links
begin, and how far from there it is. So thousands of sibling groups cost one search and a few sums over arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simulator.cluster import Cluster
from simulator.cluster.regularity import Regularity
from simulator.hashing import Colours, Indices, mixed
from simulator.network.plan import Plan
from simulator.network.step import Transfer
from simulator.network.transport.wires import route

Shape = tuple[Hashable, tuple[Transfer, ...]]
"""What there is to know of a group whatever it lies on, and the transfers that there may be between its places."""


class Placement(NamedTuple):
    """How groups lie: by group the number of its *pattern*, the same for all that lie alike, and its *slots*.

    Of shapes ``(groups,)`` and ``(groups, slots)``; -1 stands where a group has no such slot.
    """

    patterns: Indices
    slots: Indices


class Placements:
    """How groups of devices of *cluster* lie, who are named by their numbers in its `devices`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._patterns: dict[Hashable, int] = {}
        self._found: dict[tuple[Shape, tuple[int, ...]], tuple[int, tuple[int, ...]]] = {}

    def of(self, groups: Indices, shape: Callable[[int], Shape]) -> Placement:
        """That of *groups*, of shape ``(groups, devices)``; of an irregular cluster the *shape* of each counts."""
        if groups.shape[1] < 2:
            return Placement(np.zeros(len(groups), np.int64), np.zeros((len(groups), 0), np.int64))
        if self.cluster.regularity is not None:
            hashes, slots = _standing(self.cluster.regularity, groups)
            distinct, which = np.unique(hashes, return_inverse=True)
            numbers = [self._number((groups.shape[1], one)) for one in distinct.tolist()]
            return Placement(np.array(numbers, np.int64)[which], slots)
        found = [self._lie(shape(number), tuple(group)) for number, group in enumerate(groups.tolist())]
        most = max((len(links) for _, links in found), default=0)
        slots = np.array([[*links, *[-1] * (most - len(links))] for _, links in found], np.int64)
        return Placement(np.array([pattern for pattern, _ in found], np.int64), slots.reshape(len(found), most))

    def _number(self, pattern: Hashable) -> int:
        return self._patterns.setdefault(pattern, len(self._patterns))

    def _lie(self, shape: Shape, group: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """The pattern in which *group* lies under its transfers, and its links: these in order of first use."""
        key = shape, group
        if key not in self._found:
            number: dict[int, int] = {}
            nodes: dict[int | str, int] = {}
            devices = [self.cluster.devices[device] for device in group]
            servers = tuple(nodes.setdefault(self.cluster.node_of(device), len(nodes)) for device in devices)
            rows = tuple(
                tuple((number.setdefault(link, len(number)), self.cluster.link_class(link)) for link in path)
                for path in (route(self.cluster, devices[a], devices[b]) for a, b in shape[1])
            )
            self._found[key] = self._number((self._number(shape), servers, rows)), tuple(number)
        return self._found[key]


def _standing(regularity: Regularity, groups: Indices) -> tuple[Colours, Indices]:
    """Of each of *groups* a hash of where its devices stand, and its slots.

    They stand alike if they are the same devices in servers of the same templates, in one server or below one switch
    where the others are, and the links on their chains of switches are of the same classes, up to where all meet. Of a
    group that is spread, one device a server, it does not count which device it is, but what its uplink is like.
    """
    server = regularity.server[groups]
    together = first_alike(server)
    spread = (together == np.arange(groups.shape[1])).all(axis=1, keepdims=True)
    told = [
        together,
        np.where(spread, -1, regularity.template[server]),
        np.where(spread, regularity.uplink[groups], regularity.local[groups]),
    ]
    slots = [np.where(spread, -1, regularity.base[server])]
    slots += [np.where(spread, links[groups], -1) for links in (*regularity.out.T, *regularity.back.T)]
    met = _all_alike(server)
    for level in range(regularity.switch.shape[1]):
        links = [regularity.down[groups, level]] + ([regularity.up[groups, level]] if level else [])
        switch = regularity.switch[groups, level]
        told += [
            np.where(met, 0, what) for what in (first_alike(switch), *(regularity.link_class[one] for one in links))
        ]
        slots += [np.where(met, -1, one) for one in links]
        met = met | _all_alike(switch)
    values = np.concatenate(told, axis=1).astype(np.uint64)
    salt = mixed(np.arange(values.shape[1], dtype=np.uint64))
    return mixed(values ^ salt).sum(axis=1), np.concatenate(slots, axis=1)


def _all_alike(values: Indices) -> Indices:
    """By row, as a column: whether all values are the same."""
    same: Indices = (values == values[:, :1]).all(axis=1, keepdims=True)
    return same


def first_alike(values: Indices) -> Indices:
    """In place of each value the place of the first in its row that is the same.

    >>> first_alike(np.array([[7, 9, 7, 9, 4]])).tolist()
    [[0, 1, 0, 1, 4]]
    """
    order = np.argsort(values, axis=1, kind="stable")
    ascending = np.take_along_axis(values, order, axis=1)
    begins = np.ones(values.shape, np.bool_)
    begins[:, 1:] = ascending[:, 1:] != ascending[:, :-1]
    begin = np.maximum.accumulate(np.where(begins, np.arange(values.shape[1]), 0), axis=1)
    first = np.empty_like(order)
    np.put_along_axis(first, order, np.take_along_axis(order, begin, axis=1), axis=1)
    return first


def relabelled_links(links: Sequence[int], here: Indices, there: Indices) -> Indices:
    """What *links* of a group whose slots are *here* are in groups that lie alike.

    *here* is of shape ``(slots,)``, *there* of ``(groups, slots)``, and what is returned of ``(groups, links)``.
    """
    starts, first = np.unique(here, return_index=True)
    numbers = np.asarray(links, np.int64)
    at = np.searchsorted(starts, numbers, side="right") - 1
    return there[:, first[at]] + (numbers - starts[at])


def moved(plan: Plan, here: Indices, there: Indices) -> Plan:
    """*plan* of a group whose slots are *here*, on the links of one that lies alike, whose slots are *there*."""
    flows = dict.fromkeys(flow for phase in dict.fromkeys(plan.phases) for flow in phase.flows)
    numbers = list(dict.fromkeys(link for flow in flows for link in flow.links))
    links = dict(zip(numbers, relabelled_links(numbers, here, there[None])[0].tolist(), strict=True))
    new = {flow: replace(flow, links=_all(links, flow.links), rows=_all(links, flow.rows)) for flow in flows}
    phases = {phase: replace(phase, flows=tuple(new[flow] for flow in phase.flows)) for phase in set(plan.phases)}
    return replace(plan, phases=tuple(phases[phase] for phase in plan.phases))


def _all(links: dict[int, int], numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(links[number] for number in numbers)
