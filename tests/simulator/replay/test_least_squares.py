"""Robust least squares minimises Huber's loss: weighted normal equations, weighted medians and bounds agree with it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.replay.robust_regression import NORMAL_MAD, RobustProblem

FEATURES = np.column_stack([np.ones(30), np.linspace(-1.0, 1.0, 30)])


def mad(rest):
    return NORMAL_MAD * float(np.median(np.abs(rest)))


def problem(targets, huber=1.345, precision=0.0, relative=True, scale=mad, **bounds):
    """A line through *targets*, expected to be 0 everywhere with *precision*."""
    return RobustProblem(
        lambda at: FEATURES @ at - targets,
        lambda at: FEATURES,
        scale,
        huber,
        expected=np.zeros(2),
        precision=np.full(2, precision),
        relative=relative,
        **bounds,
    )


def minimum(made, start=(0.0, 0.0)):
    return made.minimum(np.array(start), 1e-12, 1e-12, 200)


@given(
    st.integers(0, 10**6),
    st.sampled_from([0.3, 1.345]),
    st.sampled_from([0.0, 0.5]),
    st.booleans(),
)
def test_the_minimum_solves_the_normal_equations_with_hubers_weights(seed, huber, precision, relative):
    random = np.random.default_rng(seed)
    targets = FEATURES @ [1.0, -2.0] + 0.1 * random.standard_normal(30)
    targets[::7] += random.uniform(1.0, 5.0)
    made = problem(targets, huber, precision, relative, scale=lambda rest: 0.15)
    found = minimum(made)
    rest = FEATURES @ found - targets
    unit = made.scale(rest) if relative else 1.0
    weights = made.weights(rest) / unit**2
    gradient = FEATURES.T @ (weights * rest) + precision**2 * found
    assert np.abs(gradient).max() <= 1e-4 * np.sum(weights * np.abs(rest))


def test_without_outliers_it_is_least_squares():
    targets = FEATURES @ [1.0, -2.0] + 0.1 * np.random.default_rng(0).standard_normal(30)
    assert minimum(problem(targets, huber=100.0)) == pytest.approx(np.linalg.lstsq(FEATURES, targets)[0], rel=1e-6)


def test_one_outlier_moves_the_fit_no_more_however_large_it_is():
    targets = FEATURES @ [1.0, -2.0] + 0.1 * np.random.default_rng(0).standard_normal(30)
    far, farther = targets.copy(), targets.copy()
    far[3], farther[3] = 1e2, 1e4
    assert minimum(problem(far)) == pytest.approx(minimum(problem(farther)), abs=1e-6)
    assert minimum(problem(far)) == pytest.approx([1.0, -2.0], abs=0.1)


def test_a_bound_is_reached_exactly():
    targets = FEATURES @ [1.0, -2.0]
    found = minimum(problem(targets, low=np.array([-5.0, -1.0]), high=np.array([5.0, 5.0])))
    assert found[1] == -1.0


def test_a_parameter_without_rows_stays_as_expected():
    made = RobustProblem(
        lambda at: np.array([at[0] - 1.0]),
        lambda at: np.array([[1.0, 0.0]]),
        lambda rest: 1.0,
        1.345,
        expected=np.array([0.0, 7.0]),
        precision=np.array([0.0, 2.0]),
        relative=False,
    )
    assert made.minimum(np.array([0.0, 3.0]), 1e-12, 1e-12, 100) == pytest.approx([1.0, 7.0])
