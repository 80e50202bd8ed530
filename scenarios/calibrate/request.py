"""The command line's request for a calibration: the placement of its ranks, and what they measure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from scenarios.calibrate.rank_placement import RankPlacement
from scenarios.scenario import Scenario
from simulator.document.validation import listed, near
from simulator.errors import ScenarioError
from simulator.replay.calibration.measurement import MEASURED, SEND, sizes
from simulator.replay.launch import under_torchrun
from simulator.replay.place import Place
from simulator.schedule import COLLECTIVES

FACTORS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
"""Factors of the letters after a number of bytes, as in nccl-tests (parsesize, src/common.cu)."""


def placement(scenarios: Sequence[str], ranks: int | None, settings: list[str] | None) -> RankPlacement:
    """Return the placement of the ranks: on the cluster of the one of *scenarios*, or on an unknown one."""
    if len(scenarios) > 1:
        raise ScenarioError(f"calibrate takes one scenario, not {len(scenarios)}; files follow --from")
    if not scenarios:
        return RankPlacement(int(os.environ["WORLD_SIZE"]) if under_torchrun() else ranks or 2)
    whole = RankPlacement.of(Scenario.load(scenarios[0], options=settings))
    if ranks is not None and ranks > whole.ranks:
        raise ScenarioError(f"--ranks {ranks}: the scenario has {whole.ranks}")
    return whole.of_ranks(ranks or whole.ranks)


def span(begin: str, end: str, factor: int) -> tuple[int, ...]:
    """Return the sizes from *begin* to *end*, in bytes."""
    least, largest = _bytes("--begin", begin), _bytes("--end", end)
    if largest < least:
        raise ScenarioError(f"--end {end}: must be at least --begin, {begin}")
    return sizes(least, largest, factor)


def _bytes(option: str, text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)B?", text.upper())
    if not match or not int(match[1]):
        raise ScenarioError(f"{option} {text}: must be bytes, e.g. 8, 64K or 128M (powers of two, as in nccl-tests)")
    return int(match[1]) * FACTORS[match[2]]


def check_budget(seconds: float) -> None:
    """Raise `ScenarioError` unless *seconds* are time in which something can be measured."""
    if not 0 < seconds < float("inf"):
        raise ScenarioError(f"--budget {seconds:g}: must be above 0, and finite")


def kinds(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return *names* of collectives and ``send``; the default ones if none is given."""
    known = (SEND, *COLLECTIVES)
    for name in names or ():
        if name not in known:
            hint = near(name, known)
            raise ScenarioError(f"--kind {name}: must be {listed(known)}" + (f"; {hint}" if hint else ""))
    return tuple(names or MEASURED)


@contextmanager
def places(placement: RankPlacement, testbed: bool) -> Iterator[tuple[RankPlacement, tuple[Place, ...] | None]]:
    """Yield the placement as built, and the places of its ranks; None for ranks on the loopback interface."""
    if not testbed:
        yield placement, None
        return
    if placement.cluster is None:
        raise ScenarioError("--testbed builds the cluster of a scenario; name one")
    from simulator.replay.testbed.testbed import build

    with build(placement.cluster, placement.devices) as built:
        yield replace(placement, cluster=built.cluster), built.places
