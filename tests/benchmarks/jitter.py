"""What it costs when every rank is simulated for itself, and how a step's time is spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from os import cpu_count
from time import perf_counter
from typing import NamedTuple

import numpy as np

from scenarios import Scenario
from tests.benchmarks.claims import run
from tests.benchmarks.processes import Usage, measured

JITTER = {"simulation.jitter": 0.02}
REPLICAS = (2, 4)
"""Of MegaScale's pipeline, 64 ranks each: a few, from which the cost of all is told."""

ALL = 192

ALL_RANKS = 64 * ALL


class Seeds(NamedTuple):
    """The *step_times* (s) of as many seeds, and the *seconds* that all took side by side."""

    step_times: Sequence[float]
    seconds: float


class Growth(NamedTuple):
    """What runs of so many *ranks* took, and what *ALL_RANKS* take if each adds what the last of these added."""

    usages: Mapping[int, Usage]
    seconds: float
    peak_bytes: float


def all_ranks() -> Usage | None:
    """What all of them take, every rank jittered."""
    return measured(run("megascale_175b_12288a100", few(ALL) | JITTER))


def growth() -> Growth:
    """Every rank jittered; the step on a line through the two greatest runs."""
    found = {64 * replicas: measured(run("megascale_175b_12288a100", few(replicas) | JITTER)) for replicas in REPLICAS}
    usages = {ranks: usage for ranks, usage in found.items() if usage}
    ranks = sorted(usages)[-2:]

    def at_all(values: Sequence[float]) -> float:
        return float(np.polyval(np.polyfit(ranks, values, 1), ALL_RANKS))

    seconds = at_all([usages[n].processor for n in ranks])
    return Growth(usages, seconds, at_all([usages[n].peak_bytes for n in ranks]))


def few(replicas: int) -> dict[str, object]:
    """MegaScale's model on so many replicas."""
    return {
        "cluster.nodes": 8 * replicas,
        "parallelism.dp": replicas,
        "training.global_batch_size": 32 * replicas,
    }


def seeds(count: int, scenario: str, changes: Mapping[str, object]) -> Seeds:
    """*scenario* with *changes* and jitter, under *count* seeds, on all processors."""
    begin = perf_counter()
    with ProcessPoolExecutor(cpu_count(), mp_context=get_context("spawn")) as pool:
        asked = [(scenario, {**changes, **JITTER, "simulation.seed": seed}) for seed in range(count)]
        times = list(pool.map(_step_time, asked))
    return Seeds(times, perf_counter() - begin)


def _step_time(asked: tuple[str, Mapping[str, object]]) -> float:
    return Scenario.load(*asked).run().timeline.step_time
