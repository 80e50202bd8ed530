"""The time between checkpoints that costs least, where failures are exponentially distributed.

Notation of Daly 2006 ("A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
Computer Systems 22): tau is the time of work between two checkpoints, delta the time to write one, R the time to
restart, M the mean time between failures. All in s.
"""

from __future__ import annotations

from math import exp, expm1, inf, sqrt

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
