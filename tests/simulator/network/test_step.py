"""The latency of a repeated permutation that its slowest hop does not overlap, against rounds simulated one by one."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.network.step import Step

HOPS = st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 10)), min_size=2, max_size=8)
"""Latency and seconds of bytes by hop."""


def ring(size: int, repeat: int) -> Step:
    return Step(tuple((i, (i + 1) % size) for i in range(size)), 1.0, repeat)


def exposed_of(step: Step, alphas: list[float], betas: list[float], chunk: float = inf, slices: int = 1) -> float:
    return step.exposed(np.array(alphas), np.array(betas), chunk, slices)


def simulated(hops: list[tuple[float, float]], rounds: int) -> float:
    """Time at which the last hop of a ring may send: after its own last chunk, and after the previous one arrived."""
    ready = [0.0] * len(hops)
    for _ in range(rounds):
        ready = [max(ready[h] + hops[h][1], ready[h - 1] + hops[h - 1][1] + hops[h - 1][0]) for h in range(len(hops))]
    return max(ready)


@given(HOPS)
def test_a_ring_takes_as_long_as_rounds_simulated_one_by_one(hops: list[tuple[float, float]]) -> None:
    alphas, betas = [alpha for alpha, _ in hops], [beta for _, beta in hops]
    first, rounds = 40 * len(hops), 120 * len(hops)
    turn = (simulated(hops, first + rounds) - simulated(hops, first)) / rounds
    exposed = exposed_of(ring(len(hops), rounds), alphas, betas)
    assert exposed / rounds + max(betas) == pytest.approx(turn, rel=0.02)


@given(st.integers(2, 8), st.floats(0, 10), st.floats(0, 10), st.integers(1, 20))
def test_equal_hops_overlap_no_latency(size: int, alpha: float, beta: float, repeat: int) -> None:
    assert exposed_of(ring(size, repeat), [alpha] * size, [beta] * size) == pytest.approx(repeat * alpha)


def test_the_slack_of_fast_hops_overlaps_latency() -> None:
    """Mean of latency and bytes (1 + 1 + 4) / 3 + 1 is 3; the slowest hop takes 4."""
    assert exposed_of(ring(3, 5), [1.0, 1.0, 1.0], [1.0, 1.0, 4.0]) == 0
    assert exposed_of(ring(3, 5), [4.0, 1.0, 1.0], [1.0, 1.0, 4.0]) == 0
    assert exposed_of(ring(3, 5), [4.0, 2.0, 3.0], [1.0, 1.0, 4.0]) == pytest.approx(5 * 1.0)


def test_the_slowest_lane_counts() -> None:
    lanes = Step(((0, 1), (1, 0), (2, 3), (3, 2)), 1.0, 2, lanes=2)
    assert exposed_of(lanes, [1.0, 1.0, 3.0, 3.0], [1.0] * 4) == pytest.approx(6.0)


def test_chunks_that_travel_longer_than_they_are_sent_wait_for_each_other() -> None:
    """Blocks of 12 bytes are three chunks of two slices. Each of 9 rounds takes 4 s, or 2 s and the latency."""
    step = Step(tuple((i, (i + 1) % 4) for i in range(4)), 12.0, 3)
    for alpha, turn in ((1.0, 4.0), (3.0, 5.0), (50.0, 52.0)):
        whole, chunked = exposed_of(step, [alpha] * 4, [1.0] * 4), exposed_of(step, [alpha] * 4, [1.0] * 4, 4.0, 2)
        assert whole == pytest.approx(3 * alpha)
        assert chunked == pytest.approx(max(whole, 9 * (turn - 4.0)))
    assert exposed_of(step, [50.0] * 4, [1.0] * 4, 12.0, 2) == pytest.approx(150.0)
