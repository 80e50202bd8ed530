"""Compressed reductions on real ranks, by torch's own hooks: their results, and their bytes on the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clustersim.simulator.replay import testbed
from clustersim.simulator.replay.network_namespaces import unavailable_reason
from tests.extras import require
from tests.simulator.replay.compressed import COMPRESSION, DENSITY, FIRST, GROUP, RANK, STAR, Step, simulated, train

require("torch")
reason = unavailable_reason()
pytestmark = [pytest.mark.testbed, pytest.mark.skipif(reason is not None, reason=f"no testbed: {reason}")]

RANKS = len(STAR.gpus)
STEPS = 6

HEADERS = 0.1
"""More bytes than those of the vectors, at most: headers of TCP and IP (66 bytes of 1,514), and acknowledgements."""

OF_A_COLLECTIVE = 6000
"""Further bytes of each collective, at most: its messages have headers of Gloo, and several packets each."""


@pytest.fixture(scope="module")
def steps() -> dict[str, list[list[Step]]]:
    """By hook, the steps of each rank."""
    from clustersim.simulator.replay.launch import launch

    with testbed.build(STAR, STAR.gpus) as built:
        results = launch(train, [(tuple(COMPRESSION), STEPS)] * RANKS, places=built.places, timeout=600.0)
    assert results is not None
    return {hook: [rank[hook] for rank in results] for hook in COMPRESSION}


@pytest.mark.parametrize("hook", COMPRESSION)
def test_ranks_send_the_bytes_of_the_simulation(steps: dict[str, list[list[Step]]], hook: str) -> None:
    """A step on a busy machine may send some packets again, and more acknowledgements."""
    nbytes, collectives = simulated(hook)
    for rank in steps[hook]:
        sent = [step.sent for step in rank[FIRST:]]
        assert nbytes <= min(sent) <= nbytes * (1 + HEADERS) + OF_A_COLLECTIVE * collectives


@pytest.mark.parametrize("hook", COMPRESSION)
def test_all_ranks_get_the_same(steps: dict[str, list[list[Step]]], hook: str) -> None:
    for several in zip(*steps[hook], strict=True):
        for own in zip(*(step.reduced for step in several), strict=True):
            for other in own[1:]:
                np.testing.assert_array_equal(own[0], other)


@pytest.mark.parametrize(("hook", "error"), [("none", 1e-6), ("fp16", 2**-10), ("quantise", 1 / 127)])
def test_a_sum_in_few_bits_is_near_the_mean(steps: dict[str, list[list[Step]]], hook: str, error: float) -> None:
    """Within half a step of the number format for each rank: *error* of the largest gradient."""
    for number, step in enumerate(steps[hook][0]):
        for total, own in zip(step.reduced, mean(steps[hook], number), strict=True):
            largest = max(np.abs(rank[number].local[0]).max() for rank in steps[hook])
            assert np.abs(total - own).max() <= error * largest


def test_top_k_is_the_mean_of_the_largest(steps: dict[str, list[list[Step]]]) -> None:
    for number, step in enumerate(steps["top_k"][0]):
        kept = [largest(flat(rank[number].local)) for rank in steps["top_k"]]
        np.testing.assert_allclose(flat(step.reduced), np.mean(kept, axis=0), atol=1e-6)


def test_powersgd_projects_the_mean_with_the_error_fed_back(steps: dict[str, list[list[Step]]]) -> None:
    """P Q^T = P P^T M with orthonormal P: the mean of M projected on the columns of the result, which has rank r."""
    ranks = steps["powersgd"]
    errors = [[np.zeros_like(own) for own in rank[0].local] for rank in ranks]
    for number in range(FIRST, STEPS):
        given = [
            [own + error for own, error in zip(rank[number].local, before, strict=True)]
            for rank, before in zip(ranks, errors, strict=True)
        ]
        reduced = ranks[0][number].reduced
        for place, total in enumerate(reduced):
            average = np.mean([own[place] for own in given], axis=0)
            if total.ndim == 1:
                np.testing.assert_allclose(total, average, atol=1e-6)
                continue
            columns, sizes, _ = np.linalg.svd(total, full_matrices=False)
            assert sizes[RANK] <= 1e-4 * sizes[0]
            projected = columns[:, :RANK] @ (columns[:, :RANK].T @ average)
            np.testing.assert_allclose(total, projected, atol=1e-3 * np.abs(average).max())
        errors = [
            [np.zeros_like(own) if own.ndim == 1 else own - total for own, total in zip(rank, reduced, strict=True)]
            for rank in given
        ]


def mean(ranks: list[list[Step]], step: int) -> list[Any]:
    """The mean over the ranks of the gradients of *step*, tensor by tensor."""
    return [np.mean(own, axis=0) for own in zip(*(rank[step].local for rank in ranks), strict=True)]


def flat(tensors: list[Any]) -> Any:
    """All elements, in the order of torch's bucket: the last tensor first."""
    return np.concatenate([own.ravel() for own in tensors[::-1]])


def largest(own: Any) -> Any:
    """*own* with zeros in place of all but the largest elements."""
    count = max(1, int(own.size * DENSITY))
    kept = np.zeros_like(own)
    places = np.argsort(-np.abs(own))[:count]
    kept[places] = own[places]
    return kept


def test_groups_are_quantised_alone() -> None:
    """The formula of the simulated message: 8 bits an element and 4 bytes a group."""
    nbytes, _ = simulated("quantise")
    elements = 384 * 256 + 256 + 256 * 512
    assert nbytes == pytest.approx((RANKS - 1) * (elements + 4 * np.ceil(elements / GROUP)))
