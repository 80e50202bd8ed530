"""Robust regression recovers the parameters that made the data, with outliers and without."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import CalibrationError
from simulator.replay.calibration.regression import fit

SIZES = 2.0 ** np.arange(3, 28)


def line(parameters):
    """Latency in s and bandwidth in bytes/s to the seconds of each size."""
    return parameters[0] + SIZES / parameters[1]


@given(
    alpha=st.floats(1e-7, 1e-2), bandwidth=st.floats(1e6, 1e12), far=st.floats(0.02, 50.0), other=st.floats(0.02, 50.0)
)
@settings(max_examples=60, deadline=None)
def test_exact_data_give_exact_parameters_from_afar(alpha, bandwidth, far, other):
    # both ends of the line are seen: a latency that is never above rounding cannot be told
    bandwidth = np.clip(bandwidth, SIZES[3] / alpha, SIZES[-4] / alpha)
    true = np.array([alpha, bandwidth])
    found = fit(line, true * [far, other], line(true))
    assert found.parameters == pytest.approx(true, rel=1e-4)


def test_one_row_in_five_disturbed_moves_nothing_much():
    random = np.random.default_rng(1)
    true = np.array([50e-6, 2e9])
    times = line(true) * np.exp(0.02 * random.standard_normal(len(SIZES)))
    times[::5] *= 6.0  # another process had the processor
    robust = fit(line, np.array([1e-6, 1e10]), times)
    assert robust.parameters == pytest.approx(true, rel=0.05)
    # an unweighted fit would lie by what the disturbed rows add to the mean
    assert np.mean(np.log(times / line(true))) > 0.3


def test_the_stated_errors_are_those_that_repetition_shows():
    random = np.random.default_rng(2)
    true = np.array([50e-6, 2e9])
    fits = [
        fit(line, np.array([20e-6, 1e9]), line(true) * np.exp(0.05 * random.standard_normal(len(SIZES))))
        for _ in range(200)
    ]
    spread = np.std([np.log(one.parameters) for one in fits], axis=0)
    stated = np.median([one.errors for one in fits], axis=0)
    assert stated == pytest.approx(spread, rel=0.25)


def test_what_the_rows_do_not_determine_stays_where_it_was_believed_to_be():
    def model(parameters):
        return line(parameters[:2]) * np.ones_like(parameters[2])

    times = line([50e-6, 2e9])
    found = fit(model, np.array([10e-6, 1e9, 7.0]), times, loosely=1.1)
    assert found.parameters[2] == pytest.approx(7.0)
    assert found.errors[2] == pytest.approx(1.1, rel=1e-6)
    assert found.errors[1] < 0.01
    with pytest.raises(CalibrationError, match="25 rows do not determine 3 parameters"):
        fit(model, np.array([10e-6, 1e9, 7.0]), times)


def test_the_better_model_has_less_information_criterion():
    """A second bandwidth earns its place where the data have two, and only there."""

    def lines(parameters):
        return np.minimum(line(parameters[:2]), line(parameters[2:]))

    random = np.random.default_rng(3)
    noise = np.exp(0.03 * random.standard_normal(len(SIZES)))
    start = np.array([5e-6, 1e9, 50e-6, 4e9])
    two, one = lines(start) * noise, line(start[:2]) * noise
    assert fit(lines, start, two, loosely=2.0).information < fit(line, start[:2], two, loosely=2.0).information
    assert fit(line, start[:2], one, loosely=2.0).information < fit(lines, start, one, loosely=2.0).information


@pytest.mark.parametrize(
    ("times", "message"),
    [([], "no measurements"), ([1.0, 0.0], "row 1: a time must be above 0"), ([np.nan], "row 0: a time must")],
)
def test_rows_that_cannot_be(times, message):
    with pytest.raises(CalibrationError, match=message):
        fit(lambda p: np.full(len(times), p[0]), np.array([1.0]), np.array(times))
