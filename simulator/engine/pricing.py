"""Pricing: how long the ops of a rank take where that is known beforehand, as its accelerator prices them, varied."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.accelerator import Accelerator, Software
from simulator.cluster import Cluster
from simulator.engine.pace import Pace, Price, Prices, Steady, Varied
from simulator.engine.variation import Variation
from simulator.matching import Asked, asked
from simulator.schedule import Collective, Compute, Delay, Op, Program, Schedule

Floats = NDArray[np.float64]


class Pricing:
    """The paces of the ranks of *schedule* on *devices* of *cluster*, whose kernels *software* issues."""

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
        self._on_host = [_computes_on_host(program) for program in schedule.programs]
        self._prices: dict[Hashable, Prices] = {}
        self._columns: dict[Hashable, tuple[Floats, NDArray[np.bool_]]] = {}
        self._slowed: dict[tuple[int, int, float], Floats] = {}
        self._paces: dict[Hashable, Pace] = {}

    def host(self, rank: int) -> str | None:
        """The host that *rank* computes on, where it does."""
        if not self._on_host[self.schedule.program_of[rank]]:
            return None
        device = self.devices[rank]
        return device if self.schedule.program(rank).on == "host" else self.cluster.host_of(device)

    def pace(self, rank: int, known: Mapping[Asked, Price]) -> Pace:
        """How long the ops of *rank* take; collectives of which that is *known* take that."""
        index, on = self.schedule.program_of[rank], self.host(rank)
        program = self.schedule.programs[index]
        device = self.cluster.accelerator(self.devices[rank])
        host = self.cluster.accelerator(on) if on is not None else None
        same = index, device, host, tuple(known.items())
        if same not in self._prices:
            self._prices[same] = {
                id(ops): [self._price(op, device, host, known) for op in ops] for ops, _ in program.templates()
            }
        factors = self.variation.factors(rank, len(program.ops) * self.schedule.steps)
        if factors is not None:
            return Varied(self._prices[same], factors)
        slowdown = self.variation.slowdown(rank)
        return self._paces.setdefault((same, slowdown), Steady(self._prices[same], slowdown))

    def durations(self, rank: int) -> Floats:
        """Seconds of every `Compute` and `Delay` of *rank*, of shape ``(steps, ops)``; 0 for a communication.

        Stragglers and jitter are in them, but for a `Delay`. Where all steps take the same, the array is a read-only
        view of one step.
        """
        program, steps = self.schedule.program(rank), self.schedule.steps
        modelled, steady = self._modelled(rank)
        factors = self.variation.factors(rank, len(program.ops) * steps)
        if factors is not None:
            return np.where(steady, modelled, modelled * factors.reshape(steps, len(program.ops)))
        key = self.schedule.program_of[rank], id(modelled), self.variation.slowdown(rank)
        if key not in self._slowed:
            slowed = np.where(steady, modelled, modelled * self.variation.slowdown(rank))
            self._slowed[key] = np.broadcast_to(slowed, (steps, len(program.ops)))
        return self._slowed[key]

    def _modelled(self, rank: int) -> tuple[Floats, NDArray[np.bool_]]:
        """By op of *rank* its seconds without variation, and whether it keeps to them; once for equal ranks."""
        index, on = self.schedule.program_of[rank], self.host(rank)
        device = self.cluster.accelerator(self.devices[rank])
        host = self.cluster.accelerator(on) if on is not None else None
        if (index, device, host) not in self._columns:
            program = self.schedule.programs[index]
            self._columns[index, device, host] = (
                program.column(
                    lambda op: op.seconds if isinstance(op, Delay) else self._price(op, device, host, {})[0]
                ),
                program.column(lambda op: isinstance(op, Delay), np.bool_),
            )
        return self._columns[index, device, host]

    def _price(self, op: Op, device: Accelerator, host: Accelerator | None, known: Mapping[Asked, Price]) -> Price:
        if isinstance(op, Collective):
            return known.get(asked(op), Price(0.0))
        if not isinstance(op, Compute):
            return Price(0.0)
        if op.on == "host" and host is not None:
            return Price(host.seconds(op.kernels))
        return Price(device.seconds(op.kernels, self.software))


def _computes_on_host(program: Program) -> bool:
    return any(isinstance(op, Compute) and op.on == "host" for op in program.distinct())
