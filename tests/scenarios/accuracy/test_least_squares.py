"""A fit recovers the parameters that made the rows, in spite of outliers, and states their uncertainty."""

import numpy as np
import pytest

from clustersim.scenarios.accuracy.robust_fit import FitRow, Parameter, cross_validated, least_squares
from clustersim.simulator.reading.errors import CalibrationError

LATENCY = Parameter("latency", 1e-6, 1e-7, 1e-3, "s", "of each message")
BANDWIDTH = Parameter("bandwidth", 1e9, 1e8, 1e12, "bytes/s", "of the wire")
SIZES = [2.0**power for power in range(10, 27)]


def row(size, factor=1.0, noise=0.03):
    """A message of *size* bytes over 5 us and 20 GB/s."""
    return FitRow(
        f"{size:.0f} B",
        (5e-6 + size / 20e9) * factor,
        lambda values: values["latency"] + size / values["bandwidth"],
        {"decade": len(str(int(size)))},
        noise=noise,
    )


def test_exact_rows_give_exact_parameters():
    fit = least_squares([LATENCY, BANDWIDTH], [row(size) for size in SIZES])
    assert fit.found["latency"] == pytest.approx(5e-6, rel=1e-3)
    assert fit.found["bandwidth"] == pytest.approx(20e9, rel=1e-3)
    assert np.abs(fit.errors()).max() < 1e-3


def test_two_outliers_change_little():
    rows = [row(size, 2.0 if number in (5, 14) else 1.0) for number, size in enumerate(SIZES)]
    fit = least_squares([LATENCY, BANDWIDTH], rows)
    assert fit.found["latency"] == pytest.approx(5e-6, rel=0.05)
    assert fit.found["bandwidth"] == pytest.approx(20e9, rel=0.05)


def test_two_standard_deviations_contain_the_truth_in_95_per_cent():
    generator = np.random.default_rng(0)
    within = 0
    for _ in range(40):
        rows = [row(size, float(np.exp(generator.normal(0, 0.05))), noise=0.05) for size in SIZES]
        fit = least_squares([LATENCY, BANDWIDTH], rows)
        within += abs(np.log(fit.found["bandwidth"] / 20e9)) < 2 * fit.deviation("bandwidth")
    assert within >= 34  # 95 % of 40 are 38, less three deviations of a binomial


def test_a_parameter_that_no_row_determines_stays_as_expected():
    known = Parameter("latency", 4e-6, 1e-7, 1e-3, "s", "of each message", spread=0.1)
    fit = least_squares([known, BANDWIDTH], [row(2.0**28), row(2.0**29)])
    assert fit.found["latency"] == pytest.approx(4e-6, rel=0.05)
    assert fit.deviation("latency") == pytest.approx(0.1, rel=0.1)


def test_a_bound_holds():
    narrow = Parameter("bandwidth", 1e9, 1e8, 10e9, "bytes/s", "of the wire")
    assert least_squares([LATENCY, narrow], [row(size) for size in SIZES]).found["bandwidth"] == 10e9


def test_rows_held_out_do_not_change_the_fit_that_predicts_them():
    rows = [row(size, 1.3 if size == SIZES[-1] else 1.0) for size in SIZES]
    fit = least_squares([LATENCY, BANDWIDTH], rows)
    held = cross_validated(fit, lambda number, _: number)
    assert held.errors[-1] == pytest.approx(1 / 1.3 - 1, abs=1e-3)
    assert held.median < 0.01
    assert [len(part.rows) for part in held.by("decade").values()] == [4, 3, 3, 4, 3]


def test_bad_rows_raise_errors():
    with pytest.raises(CalibrationError, match="no rows to fit latency"):
        least_squares([LATENCY], [])
    with pytest.raises(CalibrationError, match="nothing: predicted 0"):
        least_squares([LATENCY], [FitRow("nothing", 1.0, lambda _: 0.0)])
