"""The load of the cables between switches: how unevenly the routing spreads traffic over equal-cost paths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.timeline import Floats, Timeline


@dataclass(frozen=True)
class CableLoad:
    """Bytes on the cables between switches that carry any, one direction each, most first.

    *count*: all cables of the cluster, idle ones included. *busiest*: the (source, target) of the fullest.
    """

    nbytes: Floats
    count: int
    busiest: tuple[str, str]

    @property
    def over_mean(self) -> float:
        """The load of the fullest cable over the mean of those that carry any; 1 if all are equal."""
        return float(self.nbytes[0] / self.nbytes.mean())

    def summary(self) -> dict[str, float]:
        """Return the numbers as `run --json` prints them."""
        return {
            "cables": self.count,
            "used": len(self.nbytes),
            "mean_bytes": float(self.nbytes.mean()),
            "max_bytes": float(self.nbytes[0]),
            "max_over_mean": self.over_mean,
        }

    def told(self) -> str:
        """Return the numbers in a sentence."""
        source, target = self.busiest
        return (
            f"cables between switches: {len(self.nbytes):,} of {self.count:,} carry bytes; the fullest, {source} to "
            f"{target}, has {self.over_mean:.2f} times their mean"
        )


def cable_load(timeline: Timeline) -> CableLoad | None:
    """Return the load of the cables of *timeline*. None if its cluster leaves no choice among paths, or all are idle.

    Bytes are those of all steps.
    """
    cluster = timeline.cluster
    if cluster is None or not cluster.chooses:
        return None
    carrying = {n: nbytes for n, nbytes in timeline.link_bytes.items() if n in cluster.cables and nbytes > 0}
    if not carrying:
        return None
    numbers = sorted(carrying, key=lambda number: (-carrying[number], number))
    counts = [timeline.multiplicity.get(number, 1) for number in numbers]
    nbytes = np.repeat([carrying[number] for number in numbers], counts)
    return CableLoad(nbytes, len(cluster.cables), cluster.ends[numbers[0]])
