"""For how many GPUs a step waits, against draws of the speeds of all."""

import numpy as np
import pytest

from clustersim.simulator.hardware.slowest import expected_maximum, waited_for

SPREAD = 0.03


@pytest.mark.parametrize("longer", [1.0, 1.02, 1.06, 1.3])
def test_a_pipeline_waits_for_its_longest_stage_as_draws_say(longer):
    """64 GPUs whose stage has *longer* to do than 960 others: the last of all ends when draws of all speeds say."""
    draws = 1 + SPREAD * np.random.default_rng(0).standard_normal((4000, 1024))
    draws[:, :64] *= longer
    ranks = {1.0: 1024} if longer == 1.0 else {1.0: 960, longer: 64}
    end = longer * (1 + SPREAD * expected_maximum(waited_for(ranks, SPREAD)))
    assert end == pytest.approx(draws.max(axis=1).mean(), rel=2e-3)


def test_it_waits_for_all_that_compute_equally_long_and_for_none_that_compute_nothing():
    assert waited_for({2.0: 64}, SPREAD) == 64
    assert waited_for({0.0: 8}, SPREAD) == 8
    assert waited_for({0.0: 960, 1.0: 64}, SPREAD) == pytest.approx(64)
