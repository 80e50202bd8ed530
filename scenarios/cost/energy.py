"""Power of GPUs and nodes by state, and what energy costs in money and carbon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scenarios.specification.cost import Cost
from simulator.accelerator import Accelerator

SECONDS_PER_DAY = 86_400.0
SECONDS_PER_HOUR = 3600.0
JOULES_PER_MWH = 3.6e9

COMPUTING = ("compute", "recompute", "optimizer")
"""Parts of a breakdown in which a GPU computes. In those named `exposed_*` and `copy` it communicates."""


@dataclass(frozen=True)
class Power:
    """Watts at the meter of all *gpus* of a job and their nodes, PUE included, by state of the GPUs."""

    computing: float
    communicating: float
    idle: float

    def of_step(self, breakdown: Mapping[str, float]) -> float:
        """Return the mean power over a step with this *breakdown* (s by part)."""
        total = sum(breakdown.values())
        if not total:
            return self.computing
        joules = sum(seconds * self._while(part) for part, seconds in breakdown.items())
        return joules / total

    def _while(self, part: str) -> float:
        if part in COMPUTING:
            return self.computing
        return self.idle if part == "bubble" else self.communicating


def power(gpus: Mapping[Accelerator, int], nodes: int, cost: Cost | None) -> Power | None:
    """Return the power of a job on *gpus* (count by type) in *nodes*; None if no GPU's power is known.

    States without a power of their own have that of computing.
    """
    section = cost or Cost()
    count = sum(gpus.values())
    computing = sum(number * (section.gpu_power or gpu.power) for gpu, number in gpus.items())
    if not computing:
        return None
    overhead = nodes * (section.node_power or 0.0)
    states = (section.communicating_power, section.idle_power)
    communicating, idle = (computing if watts is None else count * watts for watts in states)
    return Power(*(section.pue * (watts + overhead) for watts in (computing, communicating, idle)))


def account(seconds: float, gpus: int, joules: float | None, cost: Cost | None) -> dict[str, float | None]:
    """Return what *seconds* of *gpus* GPUs that take *joules* at the meter cost; None for what is not known."""
    hours = gpus * seconds / SECONDS_PER_HOUR
    energy = joules / JOULES_PER_MWH if joules is not None else None
    reserved = cost.reserved_gpu_hour * hours if cost and cost.reserved_gpu_hour is not None else None
    return {
        "days": seconds / SECONDS_PER_DAY,
        "gpu_hours": hours,
        "energy_mwh": energy,
        "cost": cost.gpu_hour * hours if cost else None,
        **({"cost_reserved": reserved} if reserved is not None else {}),
        # kWh x kg/kWh: one MWh at 1 kg/kWh is one tonne
        "co2_t": energy * cost.intensity if cost and energy is not None else None,
    }
