"""The data of one run, without what several runs, plans and expectations need."""

from __future__ import annotations

from typing import Any

from clustersim.scenarios.scenario import Scenario

NOT_SHOWN = ("variants", "expect", "table", "jobs", "plan", "campaign")
"""Sections of a scenario that the page leaves out: it runs one step of one job."""


def plain(scenario: Scenario) -> dict[str, Any]:
    """Return the data of *scenario* as the page changes it; of several variants the first.

    Raises `ScenarioError` if it has several jobs.
    """
    scenario.check_one_job()
    first = next(iter(scenario.variants.values()), scenario)
    return {key: value for key, value in first.source.data.items() if key not in NOT_SHOWN}
