"""The uncertainty of the calibration, propagated to the step time by drawing the fitted parameters and simulating."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import exp
from typing import Any

import numpy as np

from scenarios.results.uncertainty import FITS, Shipped, shipped
from scenarios.running import Watch
from scenarios.sensitivity.machine import Machine
from simulator.accelerator import Accelerator
from simulator.document import read
from simulator.network.transport.nccl import FITTED
from simulator.network.transport.parameters import PLACES
from simulator.network.transport.transport import Transport
from topologies.catalogue import GPUS

SOFTWARE = {
    "launch": "launch_seconds",
    "load": "load_seconds",
    "exchange": "exchange_seconds",
    "slice": "slice_seconds",
}
"""Keys of a software stack's file, and the attributes that hold them."""


def sampled(base: Machine, samples: int, seed: int, watch: Watch | None = None) -> list[float]:
    """Return the step times of *samples* machines with fitted parameters drawn anew; none if nothing is fitted.

    Logarithms of the parameters are normal, with the covariance of the fit. Those of NCCL are independent.
    """
    fits = [fit for fit in map(shipped, FITS) if _used(base, fit)]
    by_nccl = base.scenario.specification.network.transport == "nccl"
    if not fits:
        return []
    random = np.random.default_rng(seed)
    return [drawn(base, fits, by_nccl, random).step_time(watch) for _ in range(samples)]


def _used(base: Machine, fit: Shipped) -> bool:
    return any(fit.keys(f"{GPUS}.{gpu.name}") for gpu in base.cluster.count(base.scenario.derived.devices))


def drawn(base: Machine, fits: list[Shipped], by_nccl: bool, random: np.random.Generator) -> Machine:
    """Return *base* with its fitted parameters multiplied by draws from *random*."""
    for fit in fits:
        normal = random.multivariate_normal(np.zeros(len(fit.lands)), fit.covariance, method="eigh")
        factors = {name: exp(value) for name, value in zip(fit.lands, normal.tolist(), strict=True)}
        base = with_factors(base, fit, factors)
    if not by_nccl:
        return base
    deviations: Mapping[str, float] = read(FITTED).data["uncertainty"]
    factors = {name: exp(random.normal(0.0, deviation)) for name, deviation in deviations.items()}
    return replace(base, transport=with_nccl(base.transport, factors))


def with_factors(base: Machine, fit: Shipped, factors: Mapping[str, float]) -> Machine:
    """Return *base* with the parameters of *fit* multiplied by *factors*, by name."""

    def change(gpu: Accelerator) -> Accelerator:
        keys = fit.keys(f"{GPUS}.{gpu.name}")
        return replace(gpu, **{key: getattr(gpu, key) * factors[name] for key, name in keys.items()})

    keys = fit.keys(f"workloads.software.{base.scenario.stack}")
    changed = {
        SOFTWARE[key]: getattr(base.software, SOFTWARE[key]) * factors[name]
        for key, name in keys.items()
        if key in SOFTWARE
    }
    return replace(base.with_accelerators(change), software=replace(base.software, **changed))


def with_nccl(library: Transport, factors: Mapping[str, float]) -> Transport:
    """Return *library* with values multiplied by *factors*, by dotted key of a calibration file."""
    keys = dict.fromkeys(name.partition(".")[0] for name in factors)
    changed: dict[str, Any] = {key: _scaled(getattr(library, key), dict(_below(key, factors))) for key in keys}
    return replace(library, **changed)


def _below(key: str, factors: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for name, factor in factors.items():
        head, _, rest = name.partition(".")
        if head == key:
            yield rest, factor


def _scaled(value: object, factors: Mapping[str, float]) -> object:
    """Return a number, or a table of numbers, with each entry multiplied by the factor of its dotted key."""
    if isinstance(value, Mapping):
        return {key: number * factors.get(_dotted(key), 1.0) for key, number in value.items()}
    return value * factors[""] if isinstance(value, float) else value


def _dotted(key: object) -> str:
    """Return the key of a table of a transport as a calibration file writes it.

    >>> _dotted(("ring", "LL128", False))
    'ring.LL128.inside'
    """
    if not isinstance(key, tuple):
        return str(key)
    names = {inside: name for name, inside in PLACES.items()}
    return ".".join(names[part] if isinstance(part, bool) else str(part) for part in key)
