"""Intervals of step times: limits by distance from what is known, and their coverage on sources left out."""

from datetime import date
from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.scenarios.accuracy.evaluation import Comparison
from clustersim.scenarios.accuracy.prediction_intervals import calibration, contents, coverage, known_runs, shortest
from clustersim.scenarios.results.expectations import ExpectationOutcome
from clustersim.scenarios.results.interval import CLASSES, FILE, LEVEL, Conditions, Intervals, Known, Limits, alike
from clustersim.simulator.reading.yaml_and_json import read

LARGE = Conditions("megatron", "transformer", "Ampere", 512, 1e-3)
SMALL = Conditions("ddp", "convolutional", "Volta", 1, 1e-5)
rows = st.lists(st.tuples(st.sampled_from("abcd"), st.floats(-0.5, 0.5)), min_size=1, max_size=60)


def held(rows: list[tuple[str, float]], limits: Limits) -> float:
    """Return the share of *rows* inside, each source weighing the same."""
    by_source = {source: [limits.contains(ratio) for one, ratio in rows if one == source] for source, _ in rows}
    return sum(sum(own) / len(own) for own in by_source.values()) / len(by_source)


@given(rows)
def test_limits_hold_their_share_of_the_sources(rows: list[tuple[str, float]]) -> None:
    limits = shortest(rows)
    assert limits.low <= 0 <= limits.high
    assert held(rows, limits) >= LEVEL - 1e-6


@given(rows)
def test_no_shorter_range_of_two_ratios_does(rows: list[tuple[str, float]]) -> None:
    limits = shortest(rows)
    for _, low in rows:
        for _, high in rows:
            other = Limits(min(0.0, low), max(0.0, high))
            if low <= high and held([*rows], Limits(low, high)) >= LEVEL:
                assert other.high - other.low >= limits.high - limits.low - 1e-9


@pytest.mark.exhaustive
def test_limits_hold_new_sources_like_the_known_ones() -> None:
    """Sources with a bias of their own: limits that hold 95 % of 25 known ones hold less of others."""
    generator = np.random.default_rng(7)

    def drawn(source: str) -> list[Known]:
        return [Known(source, ratio, LARGE) for ratio in generator.normal(generator.normal(0.0, 0.1), 0.03, 8)]

    inside = []
    for _ in range(40):
        known = calibration([row for source in range(25) for row in drawn(str(source))])
        assert known.shares[CLASSES[0]] >= LEVEL
        limits = known.limits()[CLASSES[0]]
        inside += [limits.contains(row.ratio) for _ in range(40) for row in drawn("new")]
    assert np.mean(inside) >= LEVEL - 0.02


def test_a_source_of_many_rows_weighs_as_much_as_one_of_a_few() -> None:
    many = [("many", 0.01)] * 1000
    assert shortest([*many, ("few", 0.3), ("few", 0.2)]).high == 0.3


def test_distance_counts_names_and_decades() -> None:
    assert LARGE.distance(LARGE) == 0
    assert LARGE.distance(Conditions("fsdp", "transformer", "Hopper", 512, 1e-3)) == 2
    assert LARGE.distance(Conditions("megatron", "transformer", "Ampere", 5120, 1e-3)) == pytest.approx(1)
    assert LARGE.distance(Conditions("megatron", "transformer", "Ampere", 512, 1e-4)) == pytest.approx(1)
    assert LARGE.distance(SMALL) == pytest.approx(SMALL.distance(LARGE))


def test_an_interval_is_that_of_the_distance() -> None:
    limits = dict(zip(CLASSES, (Limits(-0.1, 0.1), Limits(-0.2, 0.3), Limits(-0.5, 0.6)), strict=True))
    several = Intervals(limits, [(source, LARGE, 4) for source in "abc"])
    assert several.alike(LARGE).runs == 12
    assert several.of(LARGE) == limits[CLASSES[0]]
    assert Intervals(limits, [("a", LARGE, 4)]).of(LARGE) == limits[CLASSES[1]]
    assert several.of(SMALL) == limits[CLASSES[2]]
    assert several.of(SMALL).about(2.0) == pytest.approx((2 * exp(-0.5), 2 * exp(0.6)))
    assert not alike(SMALL, several.known).framework


def test_coverage_is_measured_with_limits_and_distances_of_other_sources() -> None:
    near = [Known(source, 0.01, LARGE) for source in "abcd" for _ in range(10)]
    far = [Known("far", 0.5, LARGE) for _ in range(10)]
    alone = [Known("alone", 0.01, SMALL)]
    every = coverage(calibration(near + far))["all"]
    assert (every.rows, every.sources, every.share) == (50, 5, 0.8)
    # the limits of others' rows that are like none do not exist, so those that are known stand for them
    found = coverage(calibration(near + alone))
    assert (found[CLASSES[2]].rows, found[CLASSES[2]].share) == (1, 1.0)
    # a source that informs constants is known, but judges nothing
    assert coverage(calibration(near + far, set("abcd")))["all"].share == 1.0


def test_limits_are_no_narrower_farther_away() -> None:
    rows = [Known(source, 0.2, LARGE) for source in "abcd"] + [Known("e", 0.01, SMALL)]
    limits = calibration(rows).limits()
    assert limits[CLASSES[0]].high == limits[CLASSES[2]].high == 0.2


def test_what_is_relative_or_no_time_does_not_count() -> None:
    def one(key: str, value: float, variant: str = "", relative_to: str = "") -> Comparison:
        outcome = ExpectationOutcome(key, 1.0, 0.1, value, "", variant, relative_to)
        return Comparison("s", outcome, {"what": "training step"}, LARGE)

    told = [
        one("step_time_s", 0.8),
        one("mfu", 0.5),  # of the same run as the line above
        one("step_time_s", 0.9, relative_to="b", variant="c"),
        one("memory.peak_bytes", 0.9, variant="d"),
        one("samples_per_s", 1.25, variant="e"),
    ]
    assert [row.ratio for row in known_runs(told)] == pytest.approx([-log(0.8), -log(0.8)])


def test_the_file_says_what_it_was_made_of() -> None:
    data = read(FILE).data
    assert "clustersim accuracy" in data["source"]
    assert list(data["limits"]) == list(CLASSES)
    widths = [entry["high"] - entry["low"] for entry in data["limits"].values()]
    assert widths == sorted(widths)


def test_nine_of_ten_left_out_runs_are_in_their_interval() -> None:
    assert read(FILE).data["all"]["coverage"] >= 0.9


def test_contents_are_the_limits_with_their_coverage_and_what_is_known() -> None:
    rows = [Known(source, 0.01 * n, LARGE) for source in "abcd" for n in range(20)]
    data = contents(calibration(rows), "made", date(2026, 1, 2))
    assert data["source"].startswith("made, 2026-01-02")
    assert data["limits"][CLASSES[0]] | {"width": 0} == {
        "low": 0.0,
        "high": 0.18,
        "rows": 80,
        "sources": 4,
        "coverage": 0.95,
        "width": 0,
    }
    assert data["known"]["a"] == ["megatron, transformer, Ampere, 512, 0.000977, 20"]
