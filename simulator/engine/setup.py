"""A setup is what an engine executes: a schedule whose equal ranks, durations, matching and network are known."""

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
"""Arrivals at a server that differ by less than this part of the time since the start are one instant.

Two ways to add the same durations differ by some 1e-16; only at a server would that decide who comes first."""


class CapacityChange(NamedTuple):
    """From *time* (s) on, *row* of the network carries *capacity* bytes/s."""

    time: float
    row: int
    capacity: float


class Background(NamedTuple):
    """A transfer of *flow* that is present from *begin* to *end* (s), at most at the bound of the flow."""

    flow: Flow
    begin: float
    end: float


@dataclass(frozen=True)
class Setup:
    """One simulation of *schedule*.

    *classes* names the representative of each rank, the partners and the plan of each communication, and the rows of
    the network. *capacity_changes* are ascending in time; *background* holds the flows from outside the schedule.
    """

    schedule: Schedule
    classes: RankClasses
    pricing: Pricing
    matching: Matching
    capacity_changes: Sequence[CapacityChange] = ()
    background: Sequence[Background] = ()
