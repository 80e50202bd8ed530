"""How many global batches an asynchronous order runs through, so that some of them show its steady state."""

from __future__ import annotations

from math import ceil, gcd
from typing import NamedTuple


class SteadyState(NamedTuple):
    """The first *filling* global batches fill the pipeline, *measured* ones follow, the last *draining* drain it."""

    filling: int
    measured: int
    draining: int

    @property
    def batches(self) -> int:
        """All of them."""
        return self.filling + self.measured + self.draining


def steady_state(stages: int, micro_batches: int, steps: int = 1, replicas: int = 1) -> SteadyState:
    """The batches, of *micro_batches* each, that an order over *stages* runs through to measure at least *steps*.

    The measured micro-batches are a multiple of *stages*: 1F1B has so many in flight, and where messages take time it
    repeats after so many. (Unequal stages with such messages may repeat after fewer; the mean is then a little off,
    less with more *steps*.)

    Until the measured ones are over, every stage must do what it would do in an endless run. Up to *stages* +
    *replicas* - 2 micro-batches are ahead of the one that stage 0 runs backward (*replicas*: the most that share the
    micro-batches of a stage). After the last forward pass, a stage may run as many backward passes early. So at least
    twice as many micro-batches drain the pipeline.

    >>> steady_state(4, 8), steady_state(4, 6, steps=3)
    (SteadyState(filling=2, measured=1, draining=1), SteadyState(filling=2, measured=4, draining=1))
    """
    whole = stages // gcd(stages, micro_batches)
    ahead = ceil(2 * (stages + replicas - 2) / micro_batches)
    return SteadyState(ahead + 1, ceil(steps / whole) * whole, ahead)
