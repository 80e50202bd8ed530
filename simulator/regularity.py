"""Regularity is what servers of one build have in common, by number: where devices stand, which links are theirs.

Servers are stamped, so the links that leave the vertices of one server are numbered without a gap, and a link of one
server is found in another of the same *build* by its distance from the first. Above the servers stands a tree of
switches: each device has a chain of them, from the leaf up to the root.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.hashing import Indices


@dataclass(frozen=True)
class Regularity:
    """Arrays over devices (the cluster's GPUs, then its hosts), over servers, and over links.

    By device: the number of its *server*, and which one it is in there, *local*; level by level, from the leaf up, the
    number of the *switch* above it, and of the links *down* from there and *up* to there, each of shape
    ``(devices, levels)``; up from a NIC to its leaf is a link of its server, and not named. By server: the first of its
    links, *base*, and its *build*, which two servers have in common if all links are the same, one for one. By link:
    *sort*, the same for links of equal kind, bandwidth and latency.
    """

    server: Indices
    local: Indices
    switch: Indices
    down: Indices
    up: Indices
    base: Indices
    build: Indices
    sort: Indices
