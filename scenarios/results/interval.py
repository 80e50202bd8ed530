"""The interval of a step time, from the errors of published runs that were predicted without their own source.

Its width follows the distance of a run from what is known: of known runs that are like it in framework, kind of model,
generation of the GPU, scale and size of kernels there may be those of several sources, of one or two, or of none.
`clustersim accuracy --intervals` writes known runs and limits to ``intervals.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import exp, hypot, log
from pathlib import Path
from statistics import NormalDist
from typing import Any

from clustersim.simulator.reading.dataclass import dataclass

FILE = Path(__file__).with_name("intervals.json")

LEVEL = 0.95
"""The share of runs that an interval is made for."""

SEVERAL = 3
"""Sources from which on a run is like several."""

NEAR = 1.0
"""Runs at a smaller distance are alike."""

DECADE = log(10.0)
"""Logarithm of the ratio of ranks, or of times of a kernel, that is a distance of 1."""

FAMILIES = {
    "aa": "megatron",
    "alpa": "jax",
    "apex": "ddp",
    "hai": "megatron",
    "llama": "huggingface",
    "llm": "fsdp",
    "llm_c": "llm_c",
    "megascale": "megatron",
    "nanotron": "megatron",
    "nemo_automodel": "fsdp",
    "tensorflow": "xla",
    "torchtune": "fsdp",
}
"""Frameworks of software stacks by name or its first word; of other stacks the first word itself is the name.

apex is taken with whole replicas, LLaMA-Factory runs Hugging Face's Trainer, llm-foundry, NeMo Automodel and torchtune
torch's FSDP; aa-scaling, MegaScale, HAI-LLM and nanotron have Megatron-LM's layers."""

GENERATIONS = {
    "p100": "Pascal",
    "v100": "Volta",
    "t4": "Turing",
    "a": "Ampere",
    "rtx_30": "Ampere",
    "rtx_a": "Ampere",
    "l4": "Ada",
    "rtx_40": "Ada",
    "rtx_6000_ada": "Ada",
    "h": "Hopper",
    "gh": "Hopper",
    "b": "Blackwell",
    "gb": "Blackwell",
    "rtx_50": "Blackwell",
    "rtx_pro": "Blackwell",
    "mi2": "CDNA 2",
    "mi3": "CDNA 3",
    "tpu": "TPU",
}
"""Generations by the beginning of a GPU's name in the catalogue; the longest that fits counts."""


def framework_of(stack: str) -> str:
    """Return the framework of a software *stack*.

    >>> framework_of("megatron_2021"), framework_of("llm_foundry"), framework_of("llm_c"), framework_of("internlm")
    ('megatron', 'fsdp', 'llm_c', 'internlm')
    """
    word = stack.partition("_")[0]
    return FAMILIES.get(stack, FAMILIES.get(word, word))


def generation_of(gpu: str) -> str:
    """Return the generation of a *gpu* of the catalogue; its own name if it is of none.

    >>> generation_of("a100_80gb"), generation_of("rtx_6000_ada"), generation_of("t4"), generation_of("mine")
    ('Ampere', 'Ada', 'Turing', 'mine')
    """
    # short ones end or go on with a digit: a100, t4, but not words, such as "mine"
    found = [
        begin
        for begin in GENERATIONS
        if gpu.startswith(begin) and (len(begin) > 2 or gpu[: len(begin) + 1][-1].isdigit())
    ]
    return GENERATIONS[max(found, key=len)] if found else gpu


@dataclass(frozen=True)
class Conditions:
    """What a training step runs on: *ranks*, and *kernel*, the mean s on the GPU of a kernel of the step."""

    framework: str
    model: str
    generation: str
    ranks: int
    kernel: float

    def distance(self, other: Conditions) -> float:
        """Return how far *other* is: 1 for each name that differs, and the decades of scale and size of kernels."""
        names = (self.framework, self.model, self.generation), (other.framework, other.model, other.generation)
        differing = sum(one != another for one, another in zip(*names, strict=True))
        return differing + (abs(log(self.ranks / other.ranks)) + abs(log(self.kernel / other.kernel))) / DECADE


@dataclass(frozen=True)
class Known:
    """A measured run of *source* that was predicted without it: *ratio*, the logarithm of measured over predicted."""

    source: str
    ratio: float
    conditions: Conditions


@dataclass(frozen=True)
class Limits:
    """Logarithms of measured over predicted step time, between which `LEVEL` of the runs lie; *low* <= 0 <= *high*."""

    low: float
    high: float

    def contains(self, ratio: float) -> bool:
        """Return whether the logarithm *ratio* of measured over predicted time lies between them."""
        return self.low <= ratio <= self.high

    @property
    def width(self) -> float:
        """The width of the interval over the predicted step time."""
        return exp(self.high) - exp(self.low)

    def widened(self, deviation: float) -> Limits:
        """Return the limits with a further standard *deviation* of the logarithm, independent of the errors of runs.

        >>> Limits(-0.3, 0.4).widened(0.0)
        Limits(low=-0.3, high=0.4)
        """
        further = NormalDist().inv_cdf((1 + LEVEL) / 2) * deviation
        return Limits(-hypot(self.low, further), hypot(self.high, further))

    def about(self, seconds: float) -> tuple[float, float]:
        """Return the interval about the predicted *seconds*."""
        return seconds * exp(self.low), seconds * exp(self.high)


CLASSES = ("like several sources", "like one or two sources", "like none")
"""Distances from what is known, nearest first."""


@dataclass(frozen=True)
class Alike:
    """The known *runs* that are like a run, of how many *sources*; *framework*: that is known at all."""

    runs: int
    sources: int
    framework: bool

    @property
    def distance(self) -> str:
        """One of `CLASSES`."""
        return CLASSES[0 if self.sources >= SEVERAL else 1 if self.sources else 2]


def alike(run: Conditions, known: Iterable[tuple[str, Conditions, int]]) -> Alike:
    """Return what of *known*, (source, conditions, number of runs), is like *run*."""
    known = list(known)
    near = [(source, number) for source, one, number in known if run.distance(one) < NEAR]
    return Alike(
        sum(number for _, number in near),
        len({source for source, _ in near}),
        any(one.framework == run.framework for _, one, _ in known),
    )


@dataclass(frozen=True)
class Intervals:
    """The *limits* by class of distance, and the *known* runs: (source, conditions, number of runs)."""

    limits: Mapping[str, Limits]
    known: Sequence[tuple[str, Conditions, int]]

    def alike(self, run: Conditions) -> Alike:
        """Return what is known that is like *run*."""
        return alike(run, self.known)

    def of(self, run: Conditions) -> Limits:
        """Return the limits of *run*."""
        return self.limits[self.alike(run).distance]


@lru_cache(maxsize=1)
def shipped() -> Intervals:
    """Return the intervals of the file."""
    data: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    limits = {name: Limits(entry["low"], entry["high"]) for name, entry in data["limits"].items()}
    return Intervals(limits, [(source, *_read(text)) for source, rows in data["known"].items() for text in rows])


def _read(text: str) -> tuple[Conditions, int]:
    """Return the conditions that *text* gives, and how many runs had them.

    >>> _read("jax, transformer, Volta, 8, 0.000977, 2")
    (Conditions(framework='jax', model='transformer', generation='Volta', ranks=8, kernel=0.000977), 2)
    """
    framework, model, generation, ranks, kernel, number = text.split(", ")
    return Conditions(framework, model, generation, int(ranks), float(kernel)), int(number)
