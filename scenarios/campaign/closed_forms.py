"""Closed forms of a campaign: the best time between checkpoints, and the wait for a spare node.

Failures are exponentially distributed. The wait follows from the birth-death chain of machine repair.

Notation of Daly 2006 ("A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
Computer Systems 22): tau is the time of work between two checkpoints, delta the time to write one, R the time to
restart, M the mean time between failures. All in s.

State k is the number of broken nodes. A job on n nodes breaks them at the rate n / M while it runs, and each is
repaired at the rate 1 / r. With s spares the job stops in state s + 1, and nodes that do not run do not break. The
probability of that state is Erlang's loss formula with s + 1 servers (Kleinrock, "Queueing Systems", volume 1); it
depends on the repair times by their mean alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, expm1, inf, sqrt
from typing import NamedTuple

MOST_EXPONENT = 700.0
"""exp of more does not fit a floating-point number."""


def cost(tau: float, delta: float, restart: float, mtbf: float) -> float:
    """Return the expected time for each second of work: M e^(R/M) (e^((tau + delta)/M) - 1) / tau.

    Failures may also come while a checkpoint is written and during a restart. Infinite if it is beyond any number.

    >>> cost(100.0, 0.0, 0.0, float("inf"))
    1.0
    """
    if mtbf == inf:
        return (tau + delta) / tau
    if (restart + tau + delta) / mtbf > MOST_EXPONENT:
        return inf
    return mtbf * exp(restart / mtbf) * expm1((tau + delta) / mtbf) / tau


def young(delta: float, mtbf: float) -> float:
    """Return Young's interval: sqrt(2 delta M) (Communications of the ACM 17 (9), 1974)."""
    return sqrt(2.0 * delta * mtbf)


def daly(delta: float, mtbf: float) -> float:
    """Return Daly's higher-order interval.

    >>> round(daly(300.0, 86_400.0))
    7001
    """
    if delta >= 2.0 * mtbf:
        return mtbf
    share = delta / (2.0 * mtbf)
    return young(delta, mtbf) * (1.0 + sqrt(share) / 3.0 + share / 9.0) - delta


def optimal(delta: float, mtbf: float) -> float:
    """Return the interval with the least `cost`, which does not depend on the restart.

    The derivative of the cost is 0 where (tau/M - 1) e^(tau/M - 1) = -e^(-1 - delta/M), Lambert's function W.
    """
    from scipy.special import lambertw

    return mtbf * (1.0 + float(lambertw(-exp(-1.0 - delta / mtbf)).real))


ESTIMATES = {"young": young, "daly": daly, "optimal": optimal}
"""The rules by the words of a scenario."""

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


class SpareChoice(NamedTuple):
    """With so many *spares* the job waits for *waiting* of the time; *cost*: node time paid for each of work."""

    spares: int
    waiting: float
    cost: float


def choices(nodes: int, load: float) -> Iterator[SpareChoice]:
    """Yield the choices from no spare on, for a job on *nodes*."""
    for spares in range(MOST_SPARES):
        waiting = waiting_share(spares, load)
        yield SpareChoice(spares, waiting, (nodes + spares) / nodes / (1.0 - waiting))


def cheapest(nodes: int, load: float) -> SpareChoice:
    """Return the number of spares with the least node time for each of work: one more costs more than it saves."""
    best: SpareChoice | None = None
    for choice in choices(nodes, load):
        if best is not None and choice.cost >= best.cost:
            return best
        best = choice
    assert best is not None
    return best
