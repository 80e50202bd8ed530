"""What NCCL takes on a generation of GPUs: latencies by protocol, and what channels carry, as parameters of its fit.

NCCL's tables have one latency for all GPUs with NVLink. Measured ones differ by generation: the start of a kernel with
the clocks of GPU and host, and a hop with the memory through which GPUs signal. Within a generation GPUs and servers
agree (B200 and GB200 to a few per cent), so the kind of NVLink stands for the generation. Not part of `nccl_tests`,
which has the rows and the parameters that all generations share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from clustersim.scenarios.fitting.robust_fit import Parameter, Values
from clustersim.simulator.network.transport import Transport

LANDS = "clustersim.simulator.network.library.nccl_fitted:transport."

GENERATIONS = {"nvlink4": "hopper", "nvlink5": "blackwell"}
"""By kind of NVLink the generation of its GPUs: those that only NCCL's newest tables know. What collectives take on an
A100 depends on the release (the tables of 2.10 start LL in 3.6 us, those of 2.30 in 6.6), so it keeps the figures of
the tables.
"""


@dataclass(frozen=True)
class GenerationQuantity:
    """A quantity that each generation has: the start of its fit, its bounds and its *places* in a calibration file.

    *places*: paths with ``{link}`` for the kind of NVLink. *protocols*: (algorithm, protocol) of the collectives that
    depend on it. *spread*: as of a parameter.
    """

    name: str
    start: float
    low: float
    high: float
    unit: str
    meaning: str
    places: tuple[str, ...]
    protocols: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...] = tuple(GENERATIONS)
    spread: float = 0.7


def _latencies(protocol: str, start: float, hop: float) -> Iterator[GenerationQuantity]:
    """The start and the hop of *protocol*, whose figures in NCCL's tables ("2.30") are *start* and *hop*, s."""
    name, rings = protocol.lower(), (("ring", protocol), ("tree", protocol))
    places = [f"{{link}}.{algorithm}.{protocol}" for algorithm, _ in rings]
    starts, hops = (tuple(f"{table}_latency.{place}" for place in places) for table in ("start", "hop"))
    words = f"collective by {protocol} takes beside its hops", f"hop by {protocol} takes in a server"
    yield GenerationQuantity(f"{name}_start", start, 1e-6, 60e-6, "s", f"what a {words[0]}", starts, rings)
    yield GenerationQuantity(f"{name}_hop", hop, 0.2e-6, 20e-6, "s", f"what a {words[1]}", hops, rings)


QUANTITIES = (
    *_latencies("LL", 6.6e-6, 0.6e-6),
    *_latencies("LL128", 14e-6, 1.9e-6),
    *_latencies("Simple", 8.4e-6, 3.4e-6),
    *(
        GenerationQuantity(
            f"grouped_{protocol.lower()}",
            start,
            1e-6,
            60e-6,
            "s",
            f"what grouped sends by {protocol} take beside their bytes",
            (f"start_latency.{{link}}.direct.{protocol}",),
            (("direct", protocol),),
        )
        for protocol, start in (("LL", 6.6e-6), ("Simple", 8.4e-6))
    ),
    GenerationQuantity(
        "grouped_rate",
        300e9,
        100e9,
        1200e9,
        "bytes/s",
        "what the channels of grouped sends carry to other GPUs of a server",
        ("ceilings.direct.Simple.{link}",),
        (("direct", "Simple"),),
        ("nvlink5",),
    ),
    *(
        GenerationQuantity(
            "ring_rate",
            rate,
            100e9,
            1200e9,
            "bytes/s",
            "what the channels of rings carry in a server",
            ("ceilings.ring.Simple.{link}",),
            (("ring", "Simple"),),
            (link,),
            0.005,
        )
        for link, rate in (("nvlink4", 14.5 / 14 * 367.2e9), ("nvlink5", 14.5 / 14 * 682.2e9))
    ),
    GenerationQuantity(
        "nvls_start",
        25e-6,
        1e-6,
        100e-6,
        "s",
        "what an all-reduce in the NVSwitches takes beside its chunks",
        ("start_latency.{link}.nvls.Simple",),
        (("nvls", "Simple"),),
        ("nvlink5",),
    ),
)
"""Starts of latencies are NCCL's own figures. A hop of a tree is taken to be as long as one of a ring. Rates are there
where channels carry less than links; those of rings start at the bus bandwidth of 16 GiB on eight H200 and of 8 GiB on
eight B200 (stas00/ml-engineering), which is 14 rounds of 14.5, and which such large vectors show to half a per cent.
"""


def _parameter(quantity: GenerationQuantity, link: str) -> Parameter:
    return Parameter(
        f"{GENERATIONS[link]}_{quantity.name}",
        quantity.start,
        quantity.low,
        quantity.high,
        quantity.unit,
        f"{GENERATIONS[link].title()}: {quantity.meaning}",
        tuple(LANDS + place.format(link=link) for place in quantity.places),
        spread=quantity.spread,
        family=quantity.name,
    )


PARAMETERS = tuple(_parameter(quantity, link) for quantity in QUANTITIES for link in quantity.kinds)


def used(link: str, algorithm: str, protocol: str) -> frozenset[str]:
    """Return the names of the parameters on which a collective by *algorithm* and *protocol* over *link* depends."""
    return frozenset(
        f"{GENERATIONS[link]}_{one.name}"
        for one in QUANTITIES
        if link in one.kinds and (algorithm, protocol) in one.protocols
    )


def laid(shipped: Transport, values: Values) -> Transport:
    """Return *shipped* with the *values* of generations; those without a value stay."""
    changes: dict[str, Any] = {}
    for parameter in (one for one in PARAMETERS if one.name in values):
        for place in parameter.lands:
            table, *key = place.removeprefix(LANDS).split(".")
            changes.setdefault(table, {})[tuple(key)] = values[parameter.name]
    tables: dict[str, Any] = {table: {**getattr(shipped, table), **own} for table, own in changes.items()}
    return replace(shipped, **tables)
