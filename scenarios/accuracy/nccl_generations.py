"""What NCCL takes on a generation of GPUs: latencies by protocol, and what channels carry, as parameters of its fit.

NCCL's tables have one latency for all GPUs with NVLink. Measured ones differ by generation: the start of a kernel with
the clocks of GPU and host, and a hop with the memory through which GPUs signal. Within a generation GPUs and servers
agree (B200 and GB200 to a few per cent), so the kind of NVLink stands for the generation. Not part of `nccl_tests`,
which has the rows and the parameters that all generations share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from statistics import geometric_mean
from typing import Any

from clustersim.scenarios.accuracy.robust_fit import FitRow, Parameter, Values
from clustersim.simulator.network.library.nccl import NVLS_CEILINGS
from clustersim.simulator.network.transport import Transport
from clustersim.simulator.reading.dataclass import dataclass

LANDS = "clustersim.simulator.network.library.nccl_fitted:transport."

GENERATIONS = {"nvlink3": "ampere", "nvlink4": "hopper", "nvlink5": "blackwell", "pcie4": "ada"}
"""By kind of link the generation of its GPUs; of those joined by PCIe only Ada is measured. All figures are of releases
with NCCL's newest tables, which start LL in 6.6 us; those of 2.10 do so in 3.6 (`NEWER_LINKS`).
"""

ALL = tuple(GENERATIONS)

NVLINKS = ALL[:3]

ALIKE = {"pcie4": ("pcie3", "pcie4", "pcie5", "pcie6")}
"""Kinds of link that have the latencies of one of them."""

LATER = "nvlink4", "nvlink5"
"""Those of GPUs whose channels have rates of their own; that of an A100 all versions share."""

CLOCKS = {"ampere": 1.41e9, "hopper": 1.83e9, "blackwell": 1.856e9, "ada": 2.52e9}
"""Hz of the data sheets' peaks of A100, H100, B200 and L40S: a kernel's start and a hop take so many of a GPU's
cycles."""

SIMILAR = 0.2
"""Spread of what generations have in common. Latencies of Ampere, Hopper and Blackwell take 10, 8 and 12 thousand
cycles in the mean; starts of Hopper and of Blackwell differ by factors of 1.5 to 1.9.
"""

OTHER_LINK = 0.5
"""Spread of the cycles of a latency over PCIe about those over NVLink: a start and a hop by LL on L40S differ from them
by factors of 0.7 and 1.8."""


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
    kinds: tuple[str, ...] = LATER
    spread: float = 1.5


def _latencies(protocol: str, start: float, hop: float) -> Iterator[GenerationQuantity]:
    """The start and the hop of *protocol*, whose figures in NCCL's tables ("2.30") are *start* and *hop*, s."""
    name, rings = protocol.lower(), (("ring", protocol), ("tree", protocol))
    places = [f"{{link}}.{algorithm}.{protocol}" for algorithm, _ in rings]
    starts, hops = (tuple(f"{table}_latency.{place}" for place in places) for table in ("start", "hop"))
    kinds = NVLINKS if protocol == "LL128" else ALL
    words = f"collective by {protocol} takes beside its hops", f"hop by {protocol} takes in a server"
    yield GenerationQuantity(f"{name}_start", start, 1e-6, 60e-6, "s", f"what a {words[0]}", starts, rings, kinds)
    yield GenerationQuantity(f"{name}_hop", hop, 0.2e-6, 20e-6, "s", f"what a {words[1]}", hops, rings, kinds)


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
            ALL,
        )
        for protocol, start in (("LL", 6.6e-6), ("Simple", 8.4e-6))
    ),
    GenerationQuantity(
        "copy_rate",
        1020e9,
        100e9,
        5000e9,
        "bytes/s",
        "grouped sends copy in a rank's memory: its block to itself, and the first chunks out of the buffers",
        ("copy_rate.direct.Simple.{link}",),
        (("direct", "Simple"),),
        NVLINKS,
        0.7,
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
            0.05,
        )
        for link, rate in (("nvlink4", 18 * 20.6e9), ("nvlink5", 18 * 40.1e9))
    ),
    GenerationQuantity(
        "ll_rate",
        282e9,
        100e9,
        500e9,
        "bytes/s",
        "what the channels of rings by LL carry in a server",
        ("ceilings.any.LL.{link}",),
        (("ring", "LL"),),
        ("nvlink5",),
        0.2,
    ),
    GenerationQuantity(
        "nvls_rate",
        NVLS_CEILINGS["nvls", "Simple", "nvlink5"],
        300e9,
        800e9,
        "bytes/s",
        "what a link carries of all-reduces in the NVSwitches",
        ("ceilings.nvls.Simple.{link}", "ceilings.nvls_tree.Simple.{link}"),
        (("nvls", "Simple"),),
        ("nvlink5",),
        0.1,
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
where channels carry less than links. That of copies starts at half of what the memory of an A100 carries, since a copy
reads and writes it (2,039 GB/s, data sheet). Those of rings start at NCCL's bandwidth of 18 links (SM90_NVLINK_BW,
SM100_NVLINK_BW, topo.h).
"""


def _parameter(quantity: GenerationQuantity, link: str) -> Parameter:
    return Parameter(
        f"{GENERATIONS[link]}_{quantity.name}",
        quantity.start,
        quantity.low,
        quantity.high,
        quantity.unit,
        f"{GENERATIONS[link].title()}: {quantity.meaning}",
        tuple(LANDS + place.format(link=kind) for place in quantity.places for kind in ALIKE.get(link, (link,))),
        spread=quantity.spread,
    )


PARAMETERS = tuple(_parameter(quantity, link) for quantity in QUANTITIES for link in quantity.kinds)


LATENCIES = tuple(one.name for one in QUANTITIES if one.kinds == ALL)
"""Names of the quantities whose ratios are similar in all generations; not those of LL128, of which Blackwell takes
several times as much as others, and which few sizes of vectors tell."""


def couplings() -> Iterator[FitRow]:
    """Yield what is known beside measurements, to `SIMILAR`: each of `LATENCIES` is the product of a factor of the
    generation and one of the quantity, and the generation's factor is as one over its clock. So GPUs whose small or
    two-GPU collectives nobody measured have them in proportion to those that somebody did. Over PCIe each takes as many
    cycles as over NVLink, to `OTHER_LINK`.
    """
    joined = [GENERATIONS[link] for link in NVLINKS]
    names = {(g, q): f"{g}_{q}" for g in joined for q in LATENCIES}
    for generation, quantity in names:
        yield _coupling(f"{generation} {quantity}", names, partial(_proportion, own=(generation, quantity)))
    for generation in joined:
        yield _coupling(f"{generation} in cycles", names, partial(_cycles, own=generation))
    for one in LATENCIES:
        of_one = {(g, one): f"{g}_{one}" for g in GENERATIONS.values()}
        yield _coupling(f"ada {one} in cycles", of_one, partial(_cycles, own="ada"), OTHER_LINK)


Latencies = Mapping[tuple[str, str], float]
"""By generation and quantity."""


def _coupling(
    title: str,
    names: Mapping[tuple[str, str], str],
    ratio: Callable[[Latencies], float],
    spread: float = SIMILAR,
) -> FitRow:
    """What makes the *ratio* of latencies 1, to *spread*; *names*: those of their parameters."""

    def predicted(values: Values) -> float:
        return ratio({key: values[name] for key, name in names.items()})

    return FitRow(title, 1.0, predicted, uses=frozenset(names.values()), noise=spread, known=True)


def _cycles(values: Latencies, own: str) -> float:
    """The mean cycles of all quantities of the generation *own* over those of all generations."""
    cycles = {key: value * CLOCKS[key[0]] for key, value in values.items()}
    return geometric_mean(value for (one, _), value in cycles.items() if one == own) / geometric_mean(cycles.values())


def _proportion(values: Latencies, own: tuple[str, str]) -> float:
    """The value of *own* (generation, quantity) over the product of its generation's and its quantity's means."""
    of_generation = geometric_mean(value for (generation, _), value in values.items() if generation == own[0])
    of_quantity = geometric_mean(value for (_, quantity), value in values.items() if quantity == own[1])
    return values[own] * geometric_mean(values.values()) / (of_generation * of_quantity)


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
