"""Whole schedules on a testbed: the simulated step time beside the measured one, the order of ops, and who is faster.

Ranks compute by sleeping, so two cores suffice for eight of them; what they send goes over the kernel's TCP.
"""

from __future__ import annotations

from statistics import median

import pytest

from scenarios import Scenario
from scenarios.specification.loading import shipped
from scenarios.validate.validation import Manner, Validation, validate
from simulator.replay.testbed import testbed
from simulator.replay.testbed.iproute import why_not

pytest.importorskip("torch")
reason = why_not()
pytestmark = [pytest.mark.testbed, pytest.mark.skipif(reason is not None, reason=f"no testbed: {reason}")]

SCENARIOS = {name: Scenario.load(name) for name in shipped("testbed")}

CASES = [(name, variant) for name, scenario in SCENARIOS.items() for variant in scenario.variants]

_done: dict[tuple[str, str], Validation] = {}


def validation(name: str, variant: str) -> Validation:
    """The validation of a variant, made once."""
    if (name, variant) not in _done:
        scenario = SCENARIOS[name].variants[variant]
        with testbed.build(scenario.cluster(), scenario.derived.devices) as bed:
            made = validate(scenario, Manner(repeat=2, timeout=120.0), bed)
        assert made is not None
        _done[name, variant] = made
    return _done[name, variant]


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_the_step_takes_as_long_and_its_ops_come_in_the_same_order(name: str, variant: str) -> None:
    made = validation(name, variant)
    assert abs(made.relative_error) <= 0.12, made.summary()["repeats_s"]
    assert made.same_order


def test_the_median_error_is_small() -> None:
    errors = {case: abs(validation(*case).relative_error) for case in CASES}
    assert median(errors.values()) <= 0.05, errors


@pytest.mark.parametrize("name", SCENARIOS)
def test_strategies_rank_the_same_in_both_worlds(name: str) -> None:
    variants = SCENARIOS[name].variants
    simulated = sorted(variants, key=lambda variant: validation(name, variant).simulated.step_time)
    measured = sorted(variants, key=lambda variant: validation(name, variant).measured.step_time)
    assert simulated == measured
