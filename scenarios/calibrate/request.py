"""What a command line asks of a calibration: where its ranks stand, and what they measure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from scenarios.calibrate.rank_placement import Ground
from scenarios.scenario import Scenario
from simulator.document.validation import listed, near
from simulator.errors import ScenarioError
from simulator.replay.calibration.measurement import MEASURED, SEND, sizes
from simulator.replay.launch import under_torchrun
from simulator.replay.place import Place
from simulator.schedule import COLLECTIVES

FACTORS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
"""What the letter after a number of bytes means, as in nccl-tests (parsesize, src/common.cu)."""


def ground(scenarios: Sequence[str], ranks: int | None, settings: list[str] | None) -> Ground:
    """Where the ranks stand: on the cluster of the one of *scenarios*, or where nothing is known of."""
    if len(scenarios) > 1:
        raise ScenarioError(f"calibrate takes one scenario, not {len(scenarios)}; files follow --from")
    if not scenarios:
        return Ground(int(os.environ["WORLD_SIZE"]) if under_torchrun() else ranks or 2)
    whole = Ground.of(Scenario.load(scenarios[0], options=settings))
    if ranks is not None and ranks > whole.ranks:
        raise ScenarioError(f"--ranks {ranks}: the scenario has {whole.ranks}")
    return whole.of_ranks(ranks or whole.ranks)


def span(begin: str, end: str, factor: int) -> tuple[int, ...]:
    """The sizes from *begin* to *end*, in bytes."""
    least, largest = _bytes("--begin", begin), _bytes("--end", end)
    if largest < least:
        raise ScenarioError(f"--end {end}: must be at least --begin, {begin}")
    return sizes(least, largest, factor)


def _bytes(option: str, text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)B?", text.upper())
    if not match or not int(match[1]):
        raise ScenarioError(f"{option} {text}: must be bytes, e.g. 8, 64K or 128M (powers of two, as in nccl-tests)")
    return int(match[1]) * FACTORS[match[2]]


def kinds(names: Sequence[str] | None) -> tuple[str, ...]:
    """*names* of collectives and ``send``; the usual ones where none is given."""
    known = (SEND, *COLLECTIVES)
    for name in names or ():
        if name not in known:
            hint = near(name, known)
            raise ScenarioError(f"--kind {name}: must be {listed(known)}" + (f"; {hint}" if hint else ""))
    return tuple(names or MEASURED)


@contextmanager
def places(standing: Ground, testbed: bool) -> Iterator[tuple[Ground, tuple[Place, ...] | None]]:
    """The ground as it is built, and the places of its ranks; None where they stand on the loopback interface."""
    if not testbed:
        yield standing, None
        return
    if standing.cluster is None:
        raise ScenarioError("--testbed builds the cluster of a scenario; name one")
    from simulator.replay.testbed.testbed import build

    with build(standing.cluster, standing.devices) as bed:
        yield replace(standing, cluster=bed.cluster), bed.places
