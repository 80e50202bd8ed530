"""Whole schedules on a testbed: the simulated step time beside the measured one, the order of ops and of strategies.

Ranks compute by sleeping, so two cores suffice for eight of them; their messages go over the kernel's TCP. A measured
step is the shortest of several, and is measured again only while it is longer than its bound: other work on the machine
lengthens a step and never shortens it.
"""

from __future__ import annotations

from itertools import combinations
from statistics import median

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.accuracy.validation import ReplayOptions, Validation, validate
from clustersim.scenarios.specification.loading import shipped
from clustersim.simulator.replay import testbed
from clustersim.simulator.replay.comparison import relative_error
from clustersim.simulator.replay.network_namespaces import unavailable_reason
from tests.extras import require
from tests.samples import sample
from tests.simulator.replay.benches import ROUNDS

require("torch")
reason = unavailable_reason()
pytestmark = [pytest.mark.testbed, pytest.mark.skipif(reason is not None, reason=f"no testbed: {reason}")]

SCENARIOS = {name: Scenario.load(name) for name in shipped("testbed")}

Case = tuple[str, str]
"""Scenario and variant."""

CASES: list[Case] = [(name, variant) for name, scenario in SCENARIOS.items() for variant in scenario.variants]

QUICK = "star_of_4"
"""The scenario in the short suite."""

FEW: list[Case] = [(QUICK, "ddp"), (QUICK, "parameter_server")]
"""Its variants there: rings between backward passes, and a server."""

ALL: list[list[Case]] = [[case for case in CASES if case[0] == name] for name in SCENARIOS]
"""All variants of each scenario."""

STEP_BOUND = 0.12
"""On the error of each step."""

MEDIAN_BOUND = 0.05
"""On the median of the errors of all steps."""


class Measured:
    """The validations of one *case* so far."""

    def __init__(self, case: Case) -> None:
        name, variant = case
        self.scenario = SCENARIOS[name].variants[variant]
        self.validations: list[Validation] = []

    def again(self) -> bool:
        """Validate once more; return False if there have been enough rounds."""
        if len(self.validations) == ROUNDS:
            return False
        with testbed.build(self.scenario.cluster(), self.scenario.derived.devices) as built:
            made = validate(self.scenario, ReplayOptions(repeat=2, timeout=120.0), built)
        assert made is not None
        self.validations.append(made)
        return True

    @property
    def simulated(self) -> float:
        """Seconds of the simulated step."""
        return self.validations[0].simulated.step_time

    @property
    def steps(self) -> list[float]:
        """Seconds of each measured step."""
        return [step for one in self.validations for step in one.replay.step_times]

    @property
    def shortest(self) -> float:
        """Seconds of the shortest measured step."""
        return min(self.steps)

    @property
    def error(self) -> float:
        """Relative error of the simulated step; negative if the measured one is longer."""
        return relative_error(self.simulated, self.shortest)


_measured: dict[Case, Measured] = {}


def measured(case: Case) -> Measured:
    """The validations of *case*: those that other tests have made, and at least one."""
    if case not in _measured:
        _measured[case] = Measured(case)
        _measured[case].again()
    return _measured[case]


@pytest.mark.parametrize("case", sample(CASES, heavy=[case for case in CASES if case not in FEW]), ids="-".join)
def test_the_step_time_and_the_order_of_ops_are_as_simulated(case: Case) -> None:
    one = measured(case)
    while one.error < -STEP_BOUND and one.again():
        pass
    assert abs(one.error) <= STEP_BOUND, (one.simulated, one.steps)
    assert all(made.same_order for made in one.validations)


@pytest.mark.exhaustive
def test_the_median_error_is_small() -> None:
    cases = {case: measured(case) for case in CASES}

    def large() -> bool:
        return median(abs(one.error) for one in cases.values()) > MEDIAN_BOUND

    for one in cases.values():
        while large() and one.error < -MEDIAN_BOUND and one.again():
            pass
    assert not large(), {case: one.error for case, one in cases.items()}


@pytest.mark.parametrize(
    "cases",
    [FEW, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ALL)],
    ids=lambda cases: f"{len(cases)} of {cases[0][0]}",
)
def test_strategies_rank_the_same_in_both_worlds(cases: list[Case]) -> None:
    """Of two variants the one that is faster in the simulation is faster when measured."""
    variants = [measured(case) for case in cases]
    for faster, slower in combinations(sorted(variants, key=lambda one: one.simulated), 2):
        # noise explains that the faster one was measured too long, and never that the slower one was too short
        while faster.shortest > slower.shortest and faster.again():
            pass
        assert faster.shortest < slower.shortest, (faster.steps, slower.steps)
