"""Pricing: the durations of the computations of a rank, as its accelerator prices them, with their variation; and all
of them at once for a replay that sleeps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from clustersim.simulator.engine.variation import Variation
from clustersim.simulator.hardware.accelerator import Accelerator, Software
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.schedule.ops import Compute, Delay
from clustersim.simulator.schedule.schedule import Schedule

Floats = NDArray[np.float64]


class Pricing:
    """The durations of the ops of *schedule* on *devices* (by rank) of *cluster*; *software* issues the kernels."""

    def __init__(
        self,
        schedule: Schedule,
        cluster: Cluster,
        devices: Sequence[str],
        software: Software | None,
        variation: Variation,
    ) -> None:
        self.schedule, self.cluster, self.devices = schedule, cluster, devices
        self.software, self.variation = software, variation
        self._on_host = [program.computes_on_host for program in schedule.programs]
        self._modelled: dict[Hashable, tuple[Floats, NDArray[np.bool_]]] = {}

    def with_variation(self, variation: Variation) -> Pricing:
        """The pricing of the same ops under another *variation*."""
        other = copy(self)
        other.variation = variation
        return other

    @property
    def hosts(self) -> dict[int, str]:
        """The host of each rank that computes on one."""
        computing = np.flatnonzero(np.array(self._on_host)[self.schedule.program_numbers]).tolist()
        return {rank: host for rank in computing if (host := self.host(rank)) is not None}

    def host(self, rank: int) -> str | None:
        """The host that *rank* computes on; None if it does not compute on a host."""
        if not self._on_host[self.schedule.program_of[rank]]:
            return None
        device = self.devices[rank]
        return device if self.schedule.program(rank).on == "host" else self.cluster.host_of(device)

    def durations(self, rank: int) -> Floats:
        """The duration of each op of *rank*, s, of shape ``(steps, ops)``; 0 for a communication.

        Variation is included; a `Delay` does not vary. If all steps take the same, the array is a
        read-only view of one step.
        """
        program, steps = self.schedule.program(rank), self.schedule.steps
        modelled, constant = self._modelled_durations(rank)
        factors = self.variation.factors(rank, steps, len(program.ops))
        if factors is not None:
            varied = np.where(constant, modelled, modelled * factors)
            pauses = self.variation.paused(rank, steps, np.flatnonzero((modelled > 0) & ~constant), len(program.ops))
            return varied if pauses is None else varied + pauses
        varied = np.where(constant, modelled, modelled * self.variation.slowdown(rank))
        return np.broadcast_to(varied, (steps, len(program.ops)))

    def durations_key(self, rank: int) -> Hashable:
        """A key that is equal for ranks with equal `durations`."""
        if self.variation.changes and self.variation.varies:
            return rank
        return id(self._modelled_durations(rank)), self.variation.slowdown(rank)

    def _modelled_durations(self, rank: int) -> tuple[Floats, NDArray[np.bool_]]:
        """By op of *rank*: its duration without variation (s), and if it never varies. Equal ranks share arrays."""
        index, on = self.schedule.program_of[rank], self.host(rank)
        cluster, software = self._machine(rank)
        device = cluster.accelerator(self.devices[rank])
        host = cluster.accelerator(on) if on is not None else None
        key = index, device, host
        if key not in self._modelled:
            program = self.schedule.programs[index]
            # ops of many micro-batches and layers share their tuple of kernels: it is hashed and priced once, and kept,
            # so that no other one has its identity
            prices: dict[tuple[int, bool], tuple[tuple[Kernel, ...], float]] = {}

            def price(op: Compute | Delay) -> float:
                if not isinstance(op, Compute):
                    return op.seconds
                what = id(op.kernels), op.on == "host"
                if what not in prices:
                    prices[what] = op.kernels, _seconds(op, device, host, software)
                return prices[what][1]

            seconds = program.column(price, only=(Compute, Delay))
            self._modelled[key] = seconds, program.column(lambda _: True, np.bool_, only=(Delay,))
        return self._modelled[key]

    def _machine(self, rank: int) -> tuple[Cluster, Software | None]:
        """The cluster as fast as *rank* has it, and the software of *rank*."""
        return self.cluster, self.software


class PricingByJob(Pricing):
    """The durations of the ops of several jobs. The ranks of job i, from ``first_rank[i]`` on, run on ``machines[i]``:
    the cluster, with GPUs as slow as the slowest of the job, and its software.
    """

    def __init__(
        self,
        schedule: Schedule,
        cluster: Cluster,
        devices: Sequence[str],
        machines: Sequence[tuple[Cluster, Software]],
        first_rank: Sequence[int],
    ) -> None:
        super().__init__(schedule, cluster, devices, None, Variation())
        self._machines, self._first_rank = machines, first_rank

    def _machine(self, rank: int) -> tuple[Cluster, Software | None]:
        return self._machines[bisect_right(self._first_rank, rank) - 1]


def _seconds(op: Compute, device: Accelerator, host: Accelerator | None, software: Software | None) -> float:
    if op.on == "host" and host is not None:
        return host.seconds(op.kernels)
    return device.seconds(op.kernels, software)


def durations(
    schedule: Schedule,
    cluster: Cluster,
    devices: Sequence[str],
    software: Software | None = None,
    variation: Variation | None = None,
) -> list[list[float]]:
    """Return the seconds of the ops of each rank, step after step, as the engine prices them; 0 for communications.

    *devices*: the GPU or host of each rank. Computations that share a processor do not slow each other down.
    """
    pricing = Pricing(schedule, cluster, devices, software, variation or Variation())
    return [pricing.durations(rank).ravel().tolist() for rank in range(len(devices))]
