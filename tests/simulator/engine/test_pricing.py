"""Durations of computations with variation, of delays without, and 0 for communications."""

import numpy as np
import pytest

from clustersim.simulator.engine.pricing import Distribution, Pricing, Variation
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective, Compute, Delay
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.topologies.uniform_and_tree import uniform

OPS = (
    Compute(name="gpu", kernels=(Kernel(flops=6.0),)),
    Compute(name="host", kernels=(Kernel(flops=2.0),), on="host"),
    Collective(name="sum", kind="all_reduce", over="dp", nbytes=8.0),
    Delay(name="wait", seconds=5.0),
)


def pricing(**variation):
    schedule = Schedule(Mesh.regular({"dp": 2}), (Program("all", OPS),), (0, 0), steps=3)
    cluster = uniform(2, 1e9, 0.0, hosts=1, accelerator=Accelerator(peak_flops=2.0))
    return Pricing(schedule, cluster, ("gpu 0", "gpu 1"), None, Variation(**variation))


def test_all_steps_take_the_same():
    durations = pricing().durations(1)
    assert durations.tolist() == [[3.0, 1.0, 0.0, 5.0]] * 3
    assert durations.strides[0] == 0


def test_a_straggler_is_slower_in_all_that_it_computes():
    found = pricing(stragglers={1: 2.0})
    assert found.durations(0)[2].tolist() == [3.0, 1.0, 0.0, 5.0]
    assert found.durations(1)[2].tolist() == [6.0, 2.0, 0.0, 5.0]


@pytest.mark.parametrize("stragglers", [{}, {1: 2.0}])
def test_jitter_draws_a_factor_for_each_op_and_step_in_order(stragglers):
    variation = {"jitter": 0.1, "seed": 4, "stragglers": stragglers}
    durations = pricing(**variation).durations(1)
    factors = Variation(**variation).factors(1, 3, 4)
    expected = np.array([3.0, 1.0, 0.0, 5.0]) * factors
    expected[:, 3] = 5.0
    assert durations.tolist() == expected.tolist()


@pytest.mark.parametrize("kind", ["lognormal", "gamma", "normal", "empirical"])
def test_twice_a_distribution_deviates_twice_as_much_about_1(kind):
    """An empirical one by hand: 0.5 to 1.5, all equally likely, becomes 0 to 2, with no factor below a thousandth."""
    quantiles = ((0.0, 0.5), (1.0, 1.5)) if kind == "empirical" else ()
    one = Distribution(kind, 0.0 if quantiles else 0.1, quantiles)
    few, many = (made.draw(np.random.default_rng(1), 100_000) for made in (one, one * 2.0))
    assert few.mean() == pytest.approx(1.0, abs=0.002)
    assert many.mean() == pytest.approx(1.0, abs=0.004)
    assert few.std() == pytest.approx(1 / 12**0.5 if quantiles else 0.1, rel=0.02)
    assert many.std() == pytest.approx(2 * few.std(), rel=0.02)
    assert 0 < many.min() < few.min() < few.max() < many.max()
