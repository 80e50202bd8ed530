"""Compressed reductions on real ranks, by torch's own hooks: their results, and their bytes on the wire."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.replay.testbed import testbed
from simulator.replay.testbed.iproute import unavailable_reason
from tests.simulator.replay.compressed import Step, train
from topologies.tree import tree

pytest.importorskip("torch")
reason = unavailable_reason()
pytestmark = [pytest.mark.testbed, pytest.mark.skipif(reason is not None, reason=f"no testbed: {reason}")]

RANKS = 4
STAR = tree([RANKS], [300e6 / 8], [0.0], hosts=0)
STEPS = 4
HOOKS = ("none", "fp16", "quantise", "top_k", "powersgd")


@pytest.fixture(scope="module")
def steps() -> dict[str, list[list[Step]]]:
    """By hook, the steps of each rank."""
    from simulator.replay.launch import launch

    found = {}
    with testbed.build(STAR, STAR.gpus) as built:
        for hook in HOOKS:
            results = launch(train, [(hook, STEPS)] * RANKS, places=built.places, timeout=120.0)
            assert results is not None
            found[hook] = results
    return found


def mean(ranks: list[list[Step]], step: int) -> list[np.ndarray]:
    """The mean over the ranks of the gradients of *step*, tensor by tensor."""
    return [np.mean(own, axis=0) for own in zip(*(rank[step].local for rank in ranks), strict=True)]


def test_show(steps):
    for hook, ranks in steps.items():
        print(hook, [[one.sent for one in rank] for rank in ranks], [round(one.seconds * 1e3, 1) for one in ranks[0]])
