"""Every number of the reasons is that of a simulation of the scenario that the sentence names."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from clustersim.scenarios.build.memory_need import of_capacity
from clustersim.scenarios.search.answer import PlanAnswer, answer
from clustersim.scenarios.search.planner import Planner
from clustersim.scenarios.search.published_plans import rank
from clustersim.scenarios.search.reasons import relative
from clustersim.simulator.reading.errors import ScenarioError
from tests.scenarios.search.jobs import job

SEARCH: dict[str, Any] = {
    "tp": [1, 2, 4],
    "pp": [1, 2, 3],
    "data": ["ddp", {"method": "zero", "stage": 1}, {"method": "zero", "stage": 2}],
    "micro_batch_size": [1, 4, 8],
    "recompute": ["none", "full"],
}


@pytest.fixture(scope="module")
def found() -> PlanAnswer:
    """The answer for a job of which memory rejects some candidates."""
    plan = {"simulate": 5, "memory_margin": 0.88}
    return answer(Planner(job(SEARCH, plan=plan, model={"seq_length": 1024, "vocab_size": 16384})))


def simulated(found: PlanAnswer, settings: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a run of the planned scenario with *settings*."""
    summary = found.planner.scenario.changed({**settings, "parallelism.dp": "auto"}, "test").run().summary()
    memory = summary["memory"]
    return {"step_time_s": summary["step_time_s"], "need_bytes": memory["peak_bytes"] + memory["reserved_bytes"]}


def test_the_numbers_of_the_best_are_simulated(found: PlanAnswer) -> None:
    summary = found.summary()
    for row in summary["best"][:2]:
        again = simulated(found, row["set"])
        assert row["step_time_s"] == again["step_time_s"]
        assert row["memory"]["need_bytes"] == again["need_bytes"]


def test_the_numbers_of_why_are_simulated(found: PlanAnswer) -> None:
    first = found.summary()["best"][0]
    compared = first["compared"]
    assert {one["change"].split()[0] for one in compared} >= {"tp"}
    for one in compared:
        if one["rejected"]:
            assert one["rejected"].partition(";")[0] in first["why"]
            continue
        again = simulated(found, one["set"])
        assert (one["step_time_s"], one["need_bytes"]) == (again["step_time_s"], again["need_bytes"])
        if again["need_bytes"] <= found.planner.within:
            taken = relative(again["step_time_s"], first["step_time_s"])
            at_most = "at most " if one["at_most"] else ""
            assert f"{one['change']} takes {at_most}{taken}" in first["why"]
        else:
            assert of_capacity(again["need_bytes"], found.planner.within) in first["why"]


def test_a_neighbour_takes_at_most_so_long_if_not_all_that_may_be_faster_were_estimated(found: PlanAnswer) -> None:
    """Compared with the estimates of all candidates with its degree."""
    planner = found.planner
    for one in found.neighbours:
        key, _, value = one.change.partition(" ")
        those = [other for other in planner.open if other.values[key] == int(value)]
        planner.estimate(those)
        seconds = {other.key: planner.estimated_seconds(other) or inf for other in those if not planner.kind(other)}
        assert one.at_most or seconds[one.candidate.key] == min(seconds.values())
    assert {one.at_most for one in found.neighbours} == {False, True}


def test_the_numbers_of_the_nearest_misses_are_simulated(found: PlanAnswer) -> None:
    summary, report = found.summary(), found.report()
    kinds = {miss["kind"] for miss in summary["misses"]}
    assert kinds == set(summary["rejected"]) == {"divisibility", "gpus", "memory", "rules"}
    for miss in summary["misses"]:
        assert miss["why"] in report
        fix = miss["fix"]
        fixed = simulated(found, fix["set"])
        assert (fix["step_time_s"], fix["need_bytes"]) == (fixed["step_time_s"], fixed["need_bytes"])
        if miss["kind"] != "memory":
            assert f"with {fix['change']} it takes {fixed['step_time_s']:.4g} s" in report
            continue
        again = simulated(found, miss["set"])
        assert (miss["step_time_s"], miss["need_bytes"]) == (again["step_time_s"], again["need_bytes"])
        assert again["need_bytes"] > found.planner.within >= fixed["need_bytes"]
        taken = relative(fixed["step_time_s"], again["step_time_s"])
        assert f"with {fix['change']} it fits and takes {taken}" in report


def test_counts(found: PlanAnswer) -> None:
    summary = found.summary()
    assert summary["candidates"] == 3 * 3 * 3 * 3 * 2
    invalid = sum(count for kind, count in summary["rejected"].items() if kind != "memory")
    assert summary["priced"] == summary["candidates"] - invalid
    assert summary["simulated"] >= len(summary["best"]) == 5


def test_candidates_within_the_interval_of_the_calibration_are_tied() -> None:
    planner = Planner(job({"tp": [1, 2], "micro_batch_size": [1, 2, 4]}))
    told = answer(planner)
    low, high = told.best[0].result["step_time_interval_s"]
    assert low < told.best[0].seconds < high
    for one in told.best[1:]:
        assert told.tied(one) == (one.seconds <= high)
    assert not told.tied(told.best[0])


def test_nothing_that_fits_is_an_error_that_says_what_is_missing() -> None:
    with pytest.raises(
        ScenarioError, match=r"no candidate of 2 can run \(memory 2\); the least memory .* GPUs are needed"
    ):
        answer(Planner(job({"tp": [1, 2]}, plan={"memory_margin": 0.999})))


def test_given_candidates_are_ranked_by_simulation() -> None:
    scenario = job({"tp": [1]})
    several = [{"parallelism.tp": tp, "training.micro_batch_size": 2} for tp in (1, 2, 3, 4)]
    ranked = rank(scenario, several)
    times = [one.seconds for one in ranked[:3]]
    assert times == sorted(times)
    assert "does not divide the 8 heads" in ranked[3].error or "GPUs" in ranked[3].error
    for one in ranked[:3]:
        assert one.result is not None
        assert one.estimate == pytest.approx(one.seconds, rel=0.05)
        assert one.seconds == scenario.changed(dict(one.settings), "test").run().timeline.step_time
    assert [one.result is not None for one in rank(scenario, several, simulate=1)] == [True, False, False, False]
