"""Isomorphic groups share their plans: the plan of one is relabelled to the links of another.

Two groups are isomorphic if the links that their transfers may cross have the same classes, and two transfers share a
link in one group exactly if they do in the other. Then latencies, weights and rates are equal, and only the link
numbers differ. Isomorphic groups number their links by common coordinates: a *slot*, the place of the first link of a
set, and the distance from it. So thousands of isomorphic groups cost one search and a few sums over arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import Colours, Indices, distinct, of_positions
from clustersim.simulator.hardware.regularity import Regularity
from clustersim.simulator.network.plan import TransferPlan
from clustersim.simulator.network.routes import connection, paths
from clustersim.simulator.network.step import Transfer

Shape = tuple[Hashable, tuple[Transfer, ...]]
"""What distinguishes groups apart from their place on the cluster, and the possible transfers between their positions.
"""


SPREAD = 0x2545F4914F6CDD1D
"""An odd factor, modulo 2^64, by which one number is added to another before a hash (that of xorshift64*, Vigna, "An
experimental exploration of Marsaglia's xorshift generators, scrambled", 2016)."""

AT_ONCE = 1 << 14
"""Devices of groups that are looked at together: their temporary arrays stay in the cache."""


class Slots:
    """The first links of sets of links that isomorphic groups may cross: *links*, of shape ``(groups, slots)``; -1
    where a group lacks the slot.
    """

    def __init__(self, links: Indices) -> None:
        self._links = links

    def __len__(self) -> int:
        """The number of groups."""
        return len(self._links)

    def of(self, group: int) -> Indices:
        """Return all slots of *group*."""
        return np.asarray(self._links[group])

    def at(self, groups: Indices, slots: Indices) -> Indices:
        """Return for each of *slots*, by index, its link in the group at its place in *groups*."""
        return self._links[groups, slots]

    def each(self, slots: Indices) -> Indices:
        """Return the *slots* of every group, of shape ``(groups, slots)``."""
        return self._links[:, slots]

    def some(self, groups: Indices) -> Slots:
        """Return the slots of *groups* alone."""
        return Slots(self._links[groups])

    @cached_property
    def _ascending(self) -> tuple[Indices, Indices]:
        """The distinct slots of the first group, ascending, and the index of the first slot that equals each."""
        starts, first = np.unique(self.of(0), return_index=True)
        return starts, first

    def places(self, links: Indices) -> tuple[Indices, Indices]:
        """Return for each of *links* of the first group the index of its slot, and the distance from there."""
        starts, first = self._ascending
        at = np.searchsorted(starts, links, side="right") - 1
        return first[at], links - starts[at]

    def everywhere(self, links: Indices) -> Indices:
        """Return the *links* of the first group as links of every group, of shape ``(groups, links)``."""
        slot, distance = self.places(links)
        return self.each(slot) + distance

    def everywhere_of(self, several: Sequence[Indices]) -> Iterator[Indices]:
        """Yield `everywhere` of each of *several* arrays of links; many small ones are found at once."""
        most, begin = max(1, AT_ONCE // max(1, len(self))), 0
        ends = np.cumsum([len(links) for links in several])
        while begin < len(several):
            before = ends[begin - 1] if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + most, side="right")))
            found = self.everywhere(np.concatenate(several[begin:end]))
            yield from np.split(found, ends[begin : end - 1] - before, axis=1)
            begin = end


class DeviceSlots(Slots):
    """The slots of groups of *devices* of a regular cluster, of shape ``(groups, devices)``, found when they are read.

    The slots of one set of links follow each other, one for each device: the first links of servers, the links to the
    leaves and back, then by level those down from the switch and up to it. *lacking*: by set, which groups lack it.
    """

    def __init__(self, regularity: Regularity, devices: Indices, lacking: NDArray[np.bool_]) -> None:
        self._regularity, self._devices, self._lacking = regularity, devices, lacking

    def __len__(self) -> int:
        return len(self._devices)

    def of(self, group: int) -> Indices:
        """Return all slots of *group*."""
        lacking, devices = self._lacking[:, group].tolist(), self._devices[group]
        none = np.full(len(devices), -1)
        return np.concatenate([none if lacks else self._set(one, devices) for one, lacks in enumerate(lacking)])

    def at(self, groups: Indices, slots: Indices) -> Indices:
        """Return for each of *slots*, by index, its link in the group at its place in *groups*."""
        number, position = np.divmod(slots, self._devices.shape[1])
        found = np.empty_like(slots)
        for one in distinct(number).tolist():
            here = np.flatnonzero(number == one)
            own = self._set(one, self._devices[groups[here], position[here]])
            found[here] = np.where(self._lacking[one][groups[here]], -1, own)
        return found

    def each(self, slots: Indices) -> Indices:
        """Return the *slots* of every group, of shape ``(groups, slots)``."""
        number, position = np.divmod(slots, self._devices.shape[1])
        found = np.empty((len(self._devices), len(slots)), np.int64)
        for one in distinct(number).tolist():
            here = np.flatnonzero(number == one)
            own = self._set(one, self._devices[:, position[here]])
            found[:, here] = np.where(self._lacking[one][:, None], -1, own)
        return found

    def some(self, groups: Indices) -> Slots:
        """Return the slots of *groups* alone."""
        return DeviceSlots(self._regularity, self._devices[groups], self._lacking[:, groups])

    def _set(self, number: int, devices: Indices) -> Indices:
        """The slots of set *number* for *devices*."""
        regularity = self._regularity
        if not number:
            return regularity.base[regularity.server[devices]]
        above = number - regularity.out.shape[1] - regularity.back.shape[1]
        if above <= 0:
            return regularity.start(devices, number - 1)
        # one set of links down from the leaves, then two sets for each level above
        _, down, up = next(islice(regularity.chain(devices), above // 2, None))
        return up if above % 2 and above > 1 else down


class Placement(NamedTuple):
    """The placement of groups: *patterns*, by group the number of its isomorphism class, and its *slots*."""

    patterns: Indices
    slots: Slots


class Placements:
    """Placements of groups of devices of *cluster*. A device is its number in `Cluster.devices`.

    On a regular cluster the placement of equal arrays of groups is found once.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._regular: dict[tuple[bool, tuple[int, ...], bytes], tuple[Colours, Slots]] = {}
        self._patterns: dict[Hashable, int] = {}
        self._found: dict[tuple[Shape, tuple[int, ...]], tuple[int, tuple[int, ...]]] = {}

    def of(self, groups: Indices, shape: Callable[[int], Shape]) -> Placement:
        """Return the placement of *groups*, of shape ``(groups, devices)``.

        *shape* matters only on an irregular cluster.
        """
        if groups.shape[1] < 2:
            return Placement(np.zeros(len(groups), np.int64), Slots(np.zeros((len(groups), 0), np.int64)))
        if self.cluster.regularity is not None:
            hashes, found = self._hashes(self.cluster.regularity, groups)
            different, which = np.unique(hashes, return_inverse=True)
            numbers = [self._number((groups.shape[1], one)) for one in different.tolist()]
            return Placement(np.array(numbers, np.int64)[which], found)
        each = [self._isomorphism(shape(number), tuple(group)) for number, group in enumerate(groups.tolist())]
        most = max((len(links) for _, links in each), default=0)
        slots = np.array([[*links, *[-1] * (most - len(links))] for _, links in each], np.int64)
        return Placement(np.array([pattern for pattern, _ in each], np.int64), Slots(slots.reshape(len(each), most)))

    def of_paths(self, paths: Sequence[tuple[int, ...]]) -> Placement:
        """Return the placement of transfers by the links of each, on a cluster of any structure."""
        classes = [tuple([self.cluster.link_class(link) for link in path]) for path in paths]
        most = max(map(len, paths), default=0)
        slots = np.array([[*path, *[-1] * (most - len(path))] for path in paths], np.int64).reshape(len(paths), most)
        return Placement(np.array([self._number(("path", one)) for one in classes], np.int64), Slots(slots))

    def whole(self, groups: Indices) -> Placement:
        """Return the placement of *groups* that have their servers to themselves: slots for all links of these servers.

        *groups*: numbers of devices of a regular cluster, of shape ``(groups, devices)``. Of the links above only those
        up to the first common switch have slots. Devices of one pattern lie on corresponding servers, one by one.
        """
        assert self.cluster.regularity is not None
        hashes, slots = self._hashes(self.cluster.regularity, groups, whole=True)
        return Placement(np.unique(hashes, return_inverse=True)[1], slots)

    def _hashes(self, regularity: Regularity, groups: Indices, *, whole: bool = False) -> tuple[Colours, Slots]:
        # a digest of 128 bits is as good as equal
        key = whole, groups.shape, blake2b(np.ascontiguousarray(groups).data, digest_size=16).digest()
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


def _position_hashes(regularity: Regularity, groups: Indices, *, whole: bool = False) -> tuple[Colours, Slots]:
    """For each of *groups* a hash of the positions of its devices, and its slots.

    Groups have equal hashes under three conditions: their devices are the same ones in servers of the same templates;
    the same pairs share a server or a switch; the links from the devices up to the first common switch have the same
    classes. In a group with one device on each server the device's number does not matter, only the class of its
    uplink, unless *whole* servers count.
    """
    rows = max(1, AT_ONCE // groups.shape[1])
    parts = [_hashed(regularity, groups[at : at + rows], whole=whole) for at in range(0, max(1, len(groups)), rows)]
    hashes, lacking = [part[0] for part in parts], [part[1] for part in parts]
    return np.concatenate(hashes), DeviceSlots(regularity, groups, np.concatenate(lacking, axis=1))


def _hashed(regularity: Regularity, groups: Indices, *, whole: bool) -> tuple[Colours, NDArray[np.bool_]]:
    """The hashes of `_position_hashes`, and by set of `DeviceSlots` which groups lack it."""
    server, position = regularity.server[groups], np.arange(groups.shape[1])
    together, count = first_equal(server), len(regularity.base) * len(regularity.local) + len(regularity.link_class)
    spread = (together == position).all(axis=1) & (not whole)
    own = np.where(
        spread[:, None],
        regularity.uplink_of(groups),
        regularity.template[server] * len(regularity.local) + regularity.local[regularity.part[groups]],
    )
    hashes = of_positions(together * count + own, 0)
    lacking = [spread, *[~spread] * (regularity.out.shape[1] + regularity.back.shape[1])]
    met = _all_equal(server)
    for level, (switch, known) in enumerate(regularity.switches(groups)):
        beyond = met & (level > 0 or not whole)
        lacking += [beyond] * (1 + (level > 0))
        if not beyond.all():
            alike = np.where(met[:, None], 0, first_equal(switch)) if met.any() else first_equal(switch)
            hashes += np.where(beyond, 0, of_positions(known + alike * SPREAD, level + 1))
            met = met | _all_equal(switch)
    return hashes, np.stack(lacking)


def _all_equal(values: Indices) -> NDArray[np.bool_]:
    """By row: whether all values are equal."""
    same: NDArray[np.bool_] = (values == values[:, :1]).all(axis=1)
    return same


def first_equal(values: Indices) -> Indices:
    """Replace each value by the place of the first equal value in its row.

    >>> first_equal(np.array([[7, 9, 7, 9, 4]])).tolist()
    [[0, 1, 0, 1, 4]]
    """
    begins = np.ones(values.shape, np.bool_)
    np.not_equal(values[:, 1:], values[:, :-1], out=begins[:, 1:])
    if not begins[:, 1:].any():
        return np.zeros_like(values)
    in_order = bool((values[:, 1:] >= values[:, :-1]).all())
    order = np.argsort(values, axis=1, kind="stable") if not in_order else None
    if order is not None:
        ascending = np.take_along_axis(values, order, axis=1)
        np.not_equal(ascending[:, 1:], ascending[:, :-1], out=begins[:, 1:])
    begin = np.maximum.accumulate(np.where(begins, np.arange(values.shape[1]), 0), axis=1)
    if order is None:
        return begin
    first = np.empty_like(order)
    np.put_along_axis(first, order, np.take_along_axis(order, begin, axis=1), axis=1)
    return first


def relabelled_plan(plan: TransferPlan, here: Slots, there: Slots) -> TransferPlan:
    """Return *plan* of a group with slots *here* for the links of an isomorphic group with slots *there*."""
    flows = dict.fromkeys(flow for phase in dict.fromkeys(plan.phases) for flow in phase.flows)
    slot, distance = here.places(np.concatenate([np.zeros(0, np.int64), *(flow.links for flow in flows)]))
    ends = np.cumsum([len(flow.links) for flow in flows])[:-1]
    links = np.split(there.of(0)[slot] + distance, ends)
    new = {flow: replace(flow, links=own, rows=own) for flow, own in zip(flows, links, strict=False)}
    phases = {phase: replace(phase, flows=tuple(new[flow] for flow in phase.flows)) for phase in set(plan.phases)}
    return replace(plan, phases=tuple(phases[phase] for phase in plan.phases))
