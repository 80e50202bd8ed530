"""The regularity of a cluster that is made of servers of a few templates below a tree of switches.

Servers of a template are identical copies. The links that leave the vertices of one server have consecutive numbers, so
a link of one server corresponds to the link at the same distance from the first link in any server of the same
*template*. Above the servers is a tree of switches: each device has a chain of them, from the leaf up to the root.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from clustersim.simulator.hardware.hashing import Indices, Numbers
from clustersim.simulator.hardware.topology import NONE
from clustersim.simulator.reading.dataclass import dataclass


@dataclass(frozen=True, eq=False)
class Chains:
    """The chains of switches in a tree of so many *levels* above the servers.

    By port: *leaf*, its switch on the lowest level, and *plugged*, the link from there down to its NIC. By switch,
    counted from vertex *first* on: the switch *above* it, and the links *down* to it and *up* from it.
    """

    levels: int
    first: int
    leaf: Indices
    plugged: Indices
    above: Indices
    down: Indices
    up: Indices

    def of(self, ports: Indices) -> Iterator[tuple[Indices, Indices, Indices]]:
        """By level, from the leaf up: the switch above each of *ports*, and the links down from it and up to it.

        No link up leads to a leaf, because its number is among those of the server.
        """
        if not self.levels:
            return
        switch = self.leaf[ports]
        yield switch, self.plugged[ports], np.full_like(switch, NONE)
        for _ in range(1, self.levels):
            below = switch - self.first
            switch = self.above[below]
            yield switch, self.down[below], self.up[below]


@dataclass(frozen=True, eq=False)
class Regularity:
    """Servers of a few templates below a tree of switches.

    By device (the cluster's GPUs, then its hosts): *server*, the number of its server, and *part*, its place among the
    devices of all templates. By server: *base*, the number of its first link, and *template*, which is equal for
    servers whose links are equal one by one.

    By part: *local*, its number in a server. *out*, the links from it to the leaf, and *back*, the links from its NIC
    to it, as distances from *base*, of shape ``(parts, links)`` and padded with -1. *port*: of shape ``(parts, 2)``,
    the port of its NIC in server 0, and by how much that grows from server to server.

    *uplink*: by template and part a number, equal for devices whose links out and back have equal classes. *chains*:
    the switches above the ports. *link_class*: by link a number, equal for links of equal kind, bandwidth and latency.
    """

    server: Indices
    part: Indices
    base: Indices
    template: Indices
    local: Indices
    out: Indices
    back: Indices
    port: Indices
    uplink: Indices
    chains: Chains
    link_class: Numbers

    def uplink_of(self, devices: Indices) -> Indices:
        """Return the *uplink* of each of *devices*."""
        return self.uplink[self.template[self.server[devices]], self.part[devices]]

    def starts(self, devices: Indices) -> Iterator[Indices]:
        """The numbers of the links from each of *devices* to its leaf, in order, then of those from its NIC to it."""
        for number in range(self.out.shape[1] + self.back.shape[1]):
            yield self.start(devices, number)

    def start(self, devices: Indices, number: int) -> Indices:
        """Return the links *number* of `starts`."""
        outward = self.out.shape[1]
        column = self.out[:, number] if number < outward else self.back[:, number - outward]
        distance = column[self.part[devices]]
        return np.where(distance == NONE, NONE, self.base[self.server[devices]] + distance)

    def chain(self, devices: Indices) -> Iterator[tuple[Indices, Indices, Indices]]:
        """`Chains.of` the ports of *devices*."""
        return self.chains.of(self._ports[devices])

    def switches(self, devices: Indices) -> Iterator[tuple[Indices, Indices]]:
        """By level, from the leaf up: the switch above each of *devices*, and a number for the classes of its links.

        The links are those of `chain`: down to the device or the switch below, and up from there.
        """
        chains, port = self.chains, self._ports[devices]
        if not chains.levels:
            return
        switch = chains.leaf[port]
        yield switch, self._plug_classes[port]
        for _ in range(1, chains.levels):
            below = switch - chains.first
            switch = chains.above[below]
            yield switch, self._cable_classes[below]

    @cached_property
    def _plug_classes(self) -> Indices:
        """By port the class of the link down to its NIC."""
        return self.link_class[self.chains.plugged].astype(np.int64)

    @cached_property
    def _cable_classes(self) -> Indices:
        """By switch a number for the classes of the links down to it and up from it."""
        down, up = (self.link_class[links].astype(np.int64) for links in (self.chains.down, self.chains.up))
        return down * len(self.link_class) + up

    def leaf(self, devices: Indices) -> Indices:
        """Return the switch on the lowest level that each of *devices* is connected to."""
        return self.chains.leaf[self._ports[devices]]

    @cached_property
    def _ports(self) -> Indices:
        """By device the port of its NIC."""
        first, growth = self.port[self.part].T
        return np.asarray(first + growth * self.server)

    def routes(self, sources: Indices, targets: Indices) -> Indices:
        """Return the links from each of *sources* to the one of *targets*, a device of another server.

        One row for each pair, in order, with -1 between links.
        """
        out, back = list(self.starts(sources))[: self.out.shape[1]], list(self.starts(targets))[self.out.shape[1] :]
        # the switch of a level is passed if the two have none below in common
        passed, ups, downs = np.ones(len(sources), np.bool_), [], []
        for (switch, _, up), (other, down, _) in zip(self.chain(sources), self.chain(targets), strict=True):
            ups.append(np.where(passed, up, -1))
            downs.append(np.where(passed, down, -1))
            passed = passed & (switch != other)
        columns = [*out, *ups, *reversed(downs), *back]
        return np.stack(columns, axis=1) if columns else np.zeros((len(sources), 0), np.int64)
