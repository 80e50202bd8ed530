"""scenarios/published/split.yaml: what parameters are fitted to, and what only judges."""

from __future__ import annotations

from scenarios.fitting import gpus
from scenarios.fitting.published import PUBLICATIONS
from scenarios.scenario import Scenario
from scenarios.specification.loading import SHIPPED, shipped
from simulator.document import read

SPLIT = read(SHIPPED / "published" / "split.yaml").data
FITTED = {stem: entry.get("scenario", "") for stem, entry in SPLIT["fitted"].items()}
NEVER = SPLIT["never_fitted"]


def test_every_published_scenario_is_on_one_side() -> None:
    named = [*filter(None, FITTED.values()), *NEVER["scenarios"]]
    assert len(named) == len(set(named))
    assert set(shipped("published")) <= set(named)
    assert not set(FITTED) & set(NEVER["files"])


def test_fits_take_only_what_may_be_fitted() -> None:
    assert {stem: one.scenario for stem, one in PUBLICATIONS.items()}.items() <= FITTED.items()
    assert gpus.PROFILES in FITTED


def test_no_expectation_of_a_scenario_that_only_judges_is_marked_as_fitted() -> None:
    for name in NEVER["scenarios"]:
        scenario = Scenario.load(name)
        for run in [*scenario.variants.values()] or [scenario]:
            assert not any(one.fitted for one in run.specification.expect.values()), name
