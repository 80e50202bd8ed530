"""Regularity is the common structure of servers of one template: the places of devices and the numbers of their links.

Servers of a template are identical copies. The links that leave the vertices of one server have consecutive numbers, so
a link of one server corresponds to the link at the same distance from the first link in any server of the same
*template*. Above the servers is a tree of switches: each device has a chain of them, from the leaf up to the root.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.hashing import Indices


@dataclass(frozen=True)
class Regularity:
    """Arrays over devices (the cluster's GPUs, then its hosts), over servers, and over links.

    By device: *server*, the number of its server; *local*, its number in that server. *out*, the links from it to the
    leaf, and *back*, the links from its NIC to it, both of shape ``(devices, links)`` and padded with -1. *uplink*, a
    number that is equal for devices whose links out and back have equal classes. By level of the tree, from the leaf
    up, each of shape ``(devices, levels)``: the *switch* above it, and the links *down* from that switch and *up* to
    it. *up* is -1 for the leaf, because that link is in *out*.

    By server: *base*, the number of its first link; *template*, which is equal for servers whose links are equal one by
    one. By link: *link_class*, which is equal for links of equal kind, bandwidth and latency.
    """

    server: Indices
    local: Indices
    out: Indices
    back: Indices
    uplink: Indices
    switch: Indices
    down: Indices
    up: Indices
    base: Indices
    template: Indices
    link_class: Indices

    def routes(self, sources: Indices, targets: Indices) -> Indices:
        """Return the links from each of *sources* to the one of *targets*, a device of another server.

        One row for each pair, in order, with -1 between links.
        """
        levels = self.switch.shape[1]
        met = np.logical_or.accumulate(self.switch[sources] == self.switch[targets], axis=1)
        # the switch of a level is passed if the two have none below in common
        passed = np.insert(~met[:, : levels - 1], 0, True, axis=1)
        up = np.where(passed, self.up[sources], -1)
        down = np.where(passed, self.down[targets], -1)[:, ::-1]
        return np.concatenate([self.out[sources], up, down, self.back[targets]], axis=1)
