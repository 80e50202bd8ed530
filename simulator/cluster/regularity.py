"""Regularity is what servers of one template have in common, by number: where devices stand, which links are theirs.

Servers are stamped, so the links that leave the vertices of one server are numbered without a gap, and a link of one
server is found in another of the same *template* by its distance from the first. Above the servers stands a tree of
switches: each device has a chain of them, from the leaf up to the root.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.hashing import Indices


@dataclass(frozen=True)
class Regularity:
    """Arrays over devices (the cluster's GPUs, then its hosts), over servers, and over links.

    By device: the number of its *server*, and which one it is in there, *local*; the links by which it leaves its
    server, *out*, as far as to the leaf, and those by which it is reached from its NIC, *back*, both of shape
    ``(devices, links)``, with -1 where they are fewer. The number of its *uplink* is the same for devices that leave
    and are reached by links of the same classes. Level by level of the tree, from the leaf up, the number of the
    *switch* above it, and of the links *down* from there and *up* to there, each of shape ``(devices, levels)``; up to
    the leaf there is -1, for that link stands in *out*.

    By server: the first of its links, *base*, and its *template*, which two servers have in common if all links are
    the same, one for one. By link: *link_class*, the same for links of equal kind, bandwidth and latency.
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
