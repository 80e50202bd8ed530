"""A setup is the input of an engine: a schedule with its rank classes, durations, matching and network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.engine.pricing import Pricing
from simulator.engine.rank_classes import RankClasses
from simulator.network.plan import Flow
from simulator.schedule import Schedule
from simulator.schedule.matching import Matching

ONE_INSTANT = 1e-12
"""Arrivals at a server are simultaneous if they differ by less than this fraction of the simulated time.

Two ways to add the same durations differ by a fraction of some 1e-16. Only at a server would that change the order."""


class CapacityChange(NamedTuple):
    """From *time* (s) on, *row* of the network carries *capacity* bytes/s."""

    time: float
    row: int
    capacity: float


class Background(NamedTuple):
    """A transfer of *flow* from *begin* to *end* (s); its rate is at most the bound of the flow."""

    flow: Flow
    begin: float
    end: float


@dataclass(frozen=True)
class Setup:
    """One simulation of *schedule*.

    *classes*: the representative of each rank, the partners and the plan of each communication, the rows of the
    network. *capacity_changes* are ascending in time. *background*: the flows from outside the schedule.
    """

    schedule: Schedule
    classes: RankClasses
    pricing: Pricing
    matching: Matching
    capacity_changes: Sequence[CapacityChange] = ()
    background: Sequence[Background] = ()
