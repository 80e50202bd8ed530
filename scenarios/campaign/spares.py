"""Spare nodes: how long a job waits for a node, by the birth-death chain of machine repair.

State k is the number of broken nodes. A job on n nodes breaks them at the rate n / M while it runs, and each is
repaired at the rate 1 / r. With s spares the job stops in state s + 1, and nodes that do not run do not break. The
probability of that state is Erlang's loss formula with s + 1 servers (Kleinrock, "Queueing Systems", volume 1); it
depends on the repair times by their mean alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

MOST_SPARES = 10_000


def waiting_share(spares: int, load: float) -> float:
    """Return the share of the time in which a job with *spares* waits for a node.

    *load*: mean number of nodes in repair if there were always a spare, n r / M.

    >>> waiting_share(0, 1.0), waiting_share(1, 1.0)
    (0.5, 0.2)
    """
    share = 1.0
    for servers in range(1, spares + 2):
        share = load * share / (servers + load * share)
    return share


class Choice(NamedTuple):
    """With so many *spares* the job waits for *waiting* of the time; *cost*: node time paid for each of work."""

    spares: int
    waiting: float
    cost: float


def choices(nodes: int, load: float) -> Iterator[Choice]:
    """Yield the choices from no spare on, for a job on *nodes*."""
    for spares in range(MOST_SPARES):
        waiting = waiting_share(spares, load)
        yield Choice(spares, waiting, (nodes + spares) / nodes / (1.0 - waiting))


def cheapest(nodes: int, load: float) -> Choice:
    """Return the number of spares with the least node time for each of work: one more costs more than it saves."""
    best: Choice | None = None
    for choice in choices(nodes, load):
        if best is not None and choice.cost >= best.cost:
            return best
        best = choice
    assert best is not None
    return best
