"""Intervals of step times: limits that hold a share of the residuals, and their coverage on sources left out."""

from datetime import date
from math import ceil, exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.evaluate.evaluation import Comparison
from scenarios.evaluate.intervals import Residual, _limits, calibrated, contents, coverage, residuals
from scenarios.results.expectations import Outcome
from scenarios.results.interval import FEWEST, FILE, KINDS, LEVEL, Intervals, Limits, regimes
from simulator.document import read

ratios = st.floats(-0.5, 0.5)
LARGE = regimes(True, "megatron", 512, 10.0)
SMALL = regimes(False, "ddp", 1, 0.1)


@given(st.lists(ratios, min_size=1, max_size=60))
def test_limits_hold_their_share_of_the_ratios_and_one_more(ratios: list[float]) -> None:
    limits = _limits(ratios)
    assert limits.low <= 0 <= limits.high
    inside = sum(map(limits.contains, ratios))
    assert inside >= min(len(ratios), ceil(LEVEL * (len(ratios) + 1)))


@given(st.lists(ratios, min_size=21, max_size=60))
def test_no_shorter_range_of_two_ratios_does(ratios: list[float]) -> None:
    limits, count = _limits(ratios), ceil(LEVEL * (len(ratios) + 1))
    for low in ratios:
        for high in ratios:
            other = Limits(min(0.0, low), max(0.0, high))
            if low <= high and sum(low <= one <= high for one in ratios) >= count:
                assert other.width >= limits.width - 1e-12


def test_an_interval_is_the_mean_of_its_regimes() -> None:
    own = {("scale", LARGE["scale"]): Limits(-0.3, 0.1)}
    found = Intervals(Limits(-0.1, 0.1), own).limits(LARGE)
    assert (found.low, found.high) == pytest.approx((-(0.3 + 3 * 0.1) / 4, 0.1))
    assert found.about(2.0) == pytest.approx((2 * exp(-0.15), 2 * exp(0.1)))


def test_only_large_regimes_have_limits_of_their_own() -> None:
    rows = [Residual("a", 0.01 * n, LARGE) for n in range(FEWEST)] + [Residual("b", 0.4, SMALL)]
    assert set(calibrated(rows).of) == {(kind, LARGE[kind]) for kind in KINDS}


def test_coverage_is_measured_with_the_limits_of_other_sources() -> None:
    near = [Residual(source, 0.01, LARGE) for source in "abc" for _ in range(10)]
    far = [Residual("far", 0.5, LARGE) for _ in range(10)]
    found = coverage(near + far)["all", ""]
    assert (found.rows, found.sources) == (40, 4)
    assert found.share == 0.75
    assert coverage(near)["all", ""].width == pytest.approx(exp(0.01) - 1)


def test_what_is_fitted_relative_or_no_time_does_not_count() -> None:
    def one(key: str, value: float, variant: str = "", relative_to: str = "", fitted: bool = False) -> Comparison:
        outcome = Outcome(key, 1.0, 0.1, value, "", variant, relative_to, fitted)
        return Comparison("s", outcome, {"what": "training step", **LARGE})

    told = [
        one("step_time_s", 0.8),
        one("mfu", 0.5),  # of the same run as the line above
        one("step_time_s", 0.9, fitted=True, variant="a"),
        one("step_time_s", 0.9, relative_to="b", variant="c"),
        one("memory.peak_bytes", 0.9, variant="d"),
        one("samples_per_s", 1.25, variant="e"),
    ]
    assert [row.ratio for row in residuals(told)] == pytest.approx([-log(0.8), -log(0.8)])


def test_the_file_says_what_it_was_made_of_and_covers_every_regime_that_has_enough_runs() -> None:
    data = read(FILE).data
    entries = [data["all"], *(entry for of_a_kind in data["regimes"].values() for entry in of_a_kind.values())]
    assert set(data["regimes"]) == set(KINDS)
    assert "clustersim accuracy" in data["source"]
    for entry in entries:
        if entry["rows"] >= FEWEST:
            assert 0.85 <= entry["coverage"] <= 1
            assert 0 < entry["width"] < 1


def test_contents_are_the_limits_with_their_coverage() -> None:
    rows = [Residual(source, 0.01 * n, LARGE) for source in "ab" for n in range(FEWEST)]
    data = contents(rows, "made", date(2026, 1, 2))
    assert data["source"].startswith("made, 2026-01-02")
    assert data["all"] == {"low": 0.0, "high": 0.19, "rows": 40, "sources": 2, "coverage": 1.0, "width": 0.209}
    assert data["regimes"]["scale"][LARGE["scale"]]["rows"] == 40
