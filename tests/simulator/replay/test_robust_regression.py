"""Robust regression recovers the parameters of the data, with outliers or without."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.replay.robust_regression import fit

SIZES = 2.0 ** np.arange(3, 28)


def line(parameters):
    """The seconds of each size for (latency in s, bandwidth in bytes/s)."""
    return parameters[0] + SIZES / parameters[1]


@given(
    alpha=st.floats(1e-7, 1e-2), bandwidth=st.floats(1e6, 1e12), far=st.floats(0.02, 50.0), other=st.floats(0.02, 50.0)
)
@settings(max_examples=60, deadline=None)
def test_exact_data_give_exact_parameters_from_afar(alpha, bandwidth, far, other):
    # both latency and bandwidth matter at some size; otherwise rounding hides one of them
    bandwidth = np.clip(bandwidth, SIZES[3] / alpha, SIZES[-4] / alpha)
    true = np.array([alpha, bandwidth])
    found = fit(line, true * [far, other], line(true))
    assert found.parameters == pytest.approx(true, rel=1e-4)


def test_one_disturbed_row_in_five_changes_little():
    random = np.random.default_rng(1)
    true = np.array([50e-6, 2e9])
    times = line(true) * np.exp(0.02 * random.standard_normal(len(SIZES)))
    times[::5] *= 6.0  # another process had the processor
    robust = fit(line, np.array([1e-6, 1e10]), times)
    assert robust.parameters == pytest.approx(true, rel=0.05)
    # an unweighted fit would be biased by the disturbed rows
    assert np.mean(np.log(times / line(true))) > 0.3


@pytest.mark.exhaustive
def test_the_stated_errors_equal_those_of_repetitions():
    random = np.random.default_rng(2)
    true = np.array([50e-6, 2e9])
    fits = [
        fit(line, np.array([20e-6, 1e9]), line(true) * np.exp(0.05 * random.standard_normal(len(SIZES))))
        for _ in range(200)
    ]
    spread = np.std([np.log(one.parameters) for one in fits], axis=0)
    stated = np.median([one.errors for one in fits], axis=0)
    assert stated == pytest.approx(spread, rel=0.25)


def test_undetermined_parameters_stay_at_their_start():
    def model(parameters):
        return line(parameters[:2]) * np.ones_like(parameters[2])

    times = line([50e-6, 2e9])
    found = fit(model, np.array([10e-6, 1e9, 7.0]), times, prior_deviation=1.1)
    assert found.parameters[2] == pytest.approx(7.0)
    assert found.errors[2] == pytest.approx(1.1, rel=1e-6)
    assert found.errors[1] < 0.01
    with pytest.raises(CalibrationError, match="25 rows do not determine 3 parameters"):
        fit(model, np.array([10e-6, 1e9, 7.0]), times)


def test_the_better_model_has_less_information_criterion():
    """A second bandwidth lowers the criterion if the data have two, and only then."""

    def lines(parameters):
        return np.minimum(line(parameters[:2]), line(parameters[2:]))

    random = np.random.default_rng(3)
    noise = np.exp(0.03 * random.standard_normal(len(SIZES)))
    start = np.array([5e-6, 1e9, 50e-6, 4e9])
    two, one = lines(start) * noise, line(start[:2]) * noise
    assert (
        fit(lines, start, two, prior_deviation=2.0).information
        < fit(line, start[:2], two, prior_deviation=2.0).information
    )
    assert (
        fit(line, start[:2], one, prior_deviation=2.0).information
        < fit(lines, start, one, prior_deviation=2.0).information
    )


@pytest.mark.parametrize(
    ("times", "message"),
    [([], "no measurements"), ([1.0, 0.0], "row 1: a time must be above 0"), ([np.nan], "row 0: a time must")],
)
def test_invalid_rows(times, message):
    with pytest.raises(CalibrationError, match=message):
        fit(lambda p: np.full(len(times), p[0]), np.array([1.0]), np.array(times))
