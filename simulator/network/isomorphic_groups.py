"""Isomorphic groups share their plans: the plan of one is relabelled to the links of another.

Two groups are isomorphic if the links that their transfers may cross have the same classes, and two transfers share a
link in one group exactly if they do in the other. Then latencies, weights and rates are equal, and only the link
numbers differ. Isomorphic groups number their links by common coordinates: a *slot*, the place of the first link of a
set, and the distance from it. So thousands of isomorphic groups cost one search and a few sums over arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import Colours, Indices, mixed
from clustersim.simulator.hardware.topology import Regularity
from clustersim.simulator.network.plan import TransferPlan
from clustersim.simulator.network.routes import connection, paths
from clustersim.simulator.network.step import Transfer

Shape = tuple[Hashable, tuple[Transfer, ...]]
"""What distinguishes groups apart from their place on the cluster, and the possible transfers between their positions.
"""


AT_ONCE = 1 << 14
"""Devices of groups that are looked at together: their temporary arrays stay in the cache."""


class Placement(NamedTuple):
    """The placement of groups: *patterns*, the number of each group's isomorphism class, and *slots*, its first links.

    Of shapes ``(groups,)`` and ``(groups, slots)``; -1 where a group lacks the slot.
    """

    patterns: Indices
    slots: Indices


class Placements:
    """Placements of groups of devices of *cluster*. A device is its number in `Cluster.devices`.

    On a regular cluster the placement of equal arrays of groups is found once.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._regular: dict[tuple[bool, tuple[int, ...], bytes], tuple[Colours, Indices]] = {}
        self._patterns: dict[Hashable, int] = {}
        self._found: dict[tuple[Shape, tuple[int, ...]], tuple[int, tuple[int, ...]]] = {}

    def of(self, groups: Indices, shape: Callable[[int], Shape]) -> Placement:
        """Return the placement of *groups*, of shape ``(groups, devices)``.

        *shape* matters only on an irregular cluster.
        """
        if groups.shape[1] < 2:
            return Placement(np.zeros(len(groups), np.int64), np.zeros((len(groups), 0), np.int64))
        if self.cluster.regularity is not None:
            hashes, slots = self._hashes(self.cluster.regularity, groups)
            distinct, which = np.unique(hashes, return_inverse=True)
            numbers = [self._number((groups.shape[1], one)) for one in distinct.tolist()]
            return Placement(np.array(numbers, np.int64)[which], slots)
        found = [self._isomorphism(shape(number), tuple(group)) for number, group in enumerate(groups.tolist())]
        most = max((len(links) for _, links in found), default=0)
        slots = np.array([[*links, *[-1] * (most - len(links))] for _, links in found], np.int64)
        return Placement(np.array([pattern for pattern, _ in found], np.int64), slots.reshape(len(found), most))

    def of_paths(self, paths: Sequence[tuple[int, ...]]) -> Placement:
        """Return the placement of transfers by the links of each, on a cluster of any structure."""
        classes = [tuple([self.cluster.link_class(link) for link in path]) for path in paths]
        most = max(map(len, paths), default=0)
        slots = np.array([[*path, *[-1] * (most - len(path))] for path in paths], np.int64).reshape(len(paths), most)
        return Placement(np.array([self._number(("path", one)) for one in classes], np.int64), slots)

    def whole(self, groups: Indices) -> Placement:
        """Return the placement of *groups* that have their servers to themselves: slots for all links of these servers.

        *groups*: numbers of devices of a regular cluster, of shape ``(groups, devices)``. Of the links above only those
        up to the first common switch have slots. Devices of one pattern lie on corresponding servers, one by one.
        """
        assert self.cluster.regularity is not None
        hashes, slots = self._hashes(self.cluster.regularity, groups, whole=True)
        return Placement(np.unique(hashes, return_inverse=True)[1], slots)

    def _hashes(self, regularity: Regularity, groups: Indices, *, whole: bool = False) -> tuple[Colours, Indices]:
        # a digest of 128 bits is as good as equal
        key = whole, groups.shape, blake2b(groups.tobytes(), digest_size=16).digest()
        if key not in self._regular:
            self._regular[key] = _position_hashes(regularity, groups, whole=whole)
        return self._regular[key]

    def _number(self, pattern: Hashable) -> int:
        return self._patterns.setdefault(pattern, len(self._patterns))

    def _isomorphism(self, shape: Shape, group: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """The isomorphism class of *group* under its transfers, and its links in order of first use."""
        key = shape, group
        if key not in self._found:
            number: dict[int, int] = {}
            nodes: dict[int | str, int] = {}
            devices = [self.cluster.devices[device] for device in group]
            servers = tuple(nodes.setdefault(self.cluster.node_of(device), len(nodes)) for device in devices)
            own = connection(devices)
            rows = tuple(
                tuple(
                    tuple((number.setdefault(link, len(number)), self.cluster.link_class(link)) for link in path)
                    for path in paths(self.cluster, devices[a], devices[b], own)
                )
                for a, b in shape[1]
            )
            self._found[key] = self._number((self._number(shape), servers, rows)), tuple(number)
        return self._found[key]


def _position_hashes(regularity: Regularity, groups: Indices, *, whole: bool = False) -> tuple[Colours, Indices]:
    """For each of *groups* a hash of the positions of its devices, and its slots.

    Groups have equal hashes under three conditions: their devices are the same ones in servers of the same templates;
    the same pairs share a server or a switch; the links from the devices up to the first common switch have the same
    classes. In a group with one device on each server the device's number does not matter, only the class of its
    uplink, unless *whole* servers count.
    """
    if groups.size > AT_ONCE and len(groups) > 1:
        rows = max(1, AT_ONCE // groups.shape[1])
        found = [
            _position_hashes(regularity, groups[at : at + rows], whole=whole) for at in range(0, len(groups), rows)
        ]
        return np.concatenate([hashes for hashes, _ in found]), np.concatenate([slots for _, slots in found])
    server = regularity.server[groups]
    together = first_equal(server)
    spread = (together == np.arange(groups.shape[1])).all(axis=1, keepdims=True) & (not whole)
    parts = [
        together,
        np.where(spread, -1, regularity.template[server]),
        np.where(spread, regularity.uplink[groups], regularity.local[groups]),
    ]
    slots = [np.where(spread, -1, regularity.base[server])]
    slots += [np.where(spread, links[groups], -1) for links in (*regularity.out.T, *regularity.back.T)]
    met = _all_equal(server)
    for level in range(regularity.switch.shape[1]):
        links = [regularity.down[groups, level]] + ([regularity.up[groups, level]] if level else [])
        switch = regularity.switch[groups, level]
        beyond = met & (level > 0) if whole else met
        parts.append(first_equal(np.where(met, 0, switch)))
        parts += [np.where(beyond, 0, regularity.link_class[one]) for one in links]
        slots += [np.where(beyond, -1, one) for one in links]
        met = met | _all_equal(switch)
    columns = np.concatenate(parts, axis=1).astype(np.uint64)
    salt = mixed(np.arange(columns.shape[1], dtype=np.uint64))
    return mixed(columns ^ salt).sum(axis=1), np.concatenate(slots, axis=1)


def _all_equal(values: Indices) -> Indices:
    """Whether all values of a row are equal, as a column."""
    same: Indices = (values == values[:, :1]).all(axis=1, keepdims=True)
    return same


def first_equal(values: Indices) -> Indices:
    """Replace each value by the place of the first equal value in its row.

    >>> first_equal(np.array([[7, 9, 7, 9, 4]])).tolist()
    [[0, 1, 0, 1, 4]]
    """
    if _all_equal(values).all():
        return np.zeros_like(values)
    order = np.argsort(values, axis=1, kind="stable")
    ascending = np.take_along_axis(values, order, axis=1)
    begins = np.ones(values.shape, np.bool_)
    begins[:, 1:] = ascending[:, 1:] != ascending[:, :-1]
    begin = np.maximum.accumulate(np.where(begins, np.arange(values.shape[1]), 0), axis=1)
    first = np.empty_like(order)
    np.put_along_axis(first, order, np.take_along_axis(order, begin, axis=1), axis=1)
    return first


def relabelled_links(links: Sequence[int] | Indices, here: Indices, there: Indices) -> Indices:
    """Return the *links* of a group with slots *here* as links of isomorphic groups with slots *there*.

    *here*: of shape ``(slots,)``. *there*: of shape ``(groups, slots)``. The result: of shape ``(groups, links)``.
    """
    slot, distance = slots_of(np.asarray(links, np.int64), here)
    return there[:, slot] + distance


def slots_of(links: Indices, slots: Indices) -> tuple[Indices, Indices]:
    """Return for each of *links* the index of its slot in *slots*, of which several may be equal, and the distance."""
    starts, first = np.unique(slots, return_index=True)
    at = np.searchsorted(starts, links, side="right") - 1
    return first[at], links - starts[at]


def relabelled_plan(plan: TransferPlan, here: Indices, there: Indices) -> TransferPlan:
    """Return *plan* of a group with slots *here* for the links of an isomorphic group with slots *there*."""
    flows = dict.fromkeys(flow for phase in dict.fromkeys(plan.phases) for flow in phase.flows)
    numbers = list(dict.fromkeys(link for flow in flows for link in flow.links))
    links = dict(zip(numbers, relabelled_links(numbers, here, there[None])[0].tolist(), strict=True))
    new = {flow: replace(flow, links=_all(links, flow.links), rows=_all(links, flow.rows)) for flow in flows}
    phases = {phase: replace(phase, flows=tuple(new[flow] for flow in phase.flows)) for phase in set(plan.phases)}
    return replace(plan, phases=tuple(phases[phase] for phase in plan.phases))


def _all(links: dict[int, int], numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(links[number] for number in numbers)
