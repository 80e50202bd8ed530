"""The search: the same best as by brute force, whatever the number of processes, and after an interrupt."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.alternatives.candidate import Candidate
from clustersim.scenarios.search import candidate_evaluation
from clustersim.scenarios.search.candidate_evaluation import LEVELS
from clustersim.scenarios.search.planner import MARGIN, MOST_SIMULATED, Frontier, Judged, Planner
from clustersim.simulator.reading.errors import ScenarioError
from tests.scenarios.search.jobs import job, random_job

SMALL: dict[str, Any] = {
    "tp": [1, 2, 4],
    "pp": [1, 2],
    "data": ["ddp", {"method": "zero", "stage": 1}],
    "micro_batch_size": [1, 4],
    "recompute": ["none", "full"],
}


SMALL_JOB = job(SMALL)


def brute_force(scenario: Scenario) -> list[Judged]:
    """All candidates that fit, estimated and simulated, the best first."""
    planner = Planner(scenario)
    planner.bound(planner.candidates)
    valid = [one for one in planner.candidates if not planner.bounds[one.key].kind]
    planner.estimate(valid)
    judged = [one for one in planner.simulate(valid) if one.result["need_bytes"] <= planner.within]
    return sorted(judged, key=lambda one: one.value)


@cache
def of_small_job() -> list[Judged]:
    """Those of the small job, found once for all tests."""
    return brute_force(SMALL_JOB)


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(SMALL_JOB, id="small"),
        pytest.param(
            job(SMALL, model={"seq_length": 2048, "vocab_size": 32768, "attention": "unfused"}),
            id="memory",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            job(
                {**SMALL, "data": ["ddp", "fsdp", {"method": "zero", "stage": 3}], "pp": [1]},
                training={"global_batch_size": 64},
            ),
            id="sharded",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_the_best_is_that_of_brute_force(scenario: Scenario) -> None:
    best = Planner(scenario.changed({"plan.simulate": 5}, scenario.name)).best()
    all_of_them = of_small_job() if scenario is SMALL_JOB else brute_force(scenario)
    assert len(best) == 5 < len(all_of_them)
    assert best[0].candidate.key == all_of_them[0].candidate.key
    assert best[0].seconds == all_of_them[0].seconds


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 2])
def test_the_best_of_a_random_job_is_among_those_simulated(seed: int) -> None:
    planner = Planner(random_job(seed))
    planner.bound(planner.candidates)
    best = {one.candidate.key for one in planner.best()}
    quickest = planner.by_seconds(planner.open).take(40)
    planner.estimate(quickest)
    fitting = [one for one in quickest if not planner.kind(one)]
    assert min(planner.simulate(fitting), key=lambda one: one.value).candidate.key in best


@pytest.mark.exhaustive
def test_pruning_by_bounds_changes_nothing() -> None:
    pruned, whole = Planner(job(SMALL, plan={"simulate": 4})), Planner(job(SMALL, plan={"simulate": 4}))
    whole.bound(whole.candidates)
    whole.estimate(whole.open)
    assert [one.candidate.key for one in pruned.best()] == [one.candidate.key for one in whole.best()]
    assert len(pruned.journal.estimated) <= len(whole.journal.estimated)


WIDE: dict[str, Any] = {
    "tp": "auto",
    "sequence_parallel": "auto",
    "pp": [1, 2],
    "schedule": ["1f1b", "interleaved", "zero_bubble_h1"],
    "data": ["ddp", "fsdp", {"method": "zero", "stage": 3}],
    "micro_batch_size": [1, 4],
    "recompute": ["none", "full"],
}


@pytest.mark.parametrize(
    ("scenario", "wanted"),
    [
        pytest.param(job({**WIDE, "schedule": ["1f1b", "zero_bubble_h1"], "data": ["ddp", "fsdp"]}), 8, id="narrow"),
        pytest.param(job(WIDE), 8, id="wide", marks=pytest.mark.exhaustive),
        pytest.param(job(SMALL, plan={"objective": "memory"}), 6, id="memory", marks=pytest.mark.exhaustive),
        pytest.param(
            job({**WIDE, "cp": "auto"}, model={"seq_length": 2048, "attention": "unfused"}),
            5,
            id="long",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            job(WIDE, model={"num_layers": 8, "hidden_size": 2048}, training={"global_batch_size": 64}),
            12,
            id="deep",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_the_best_by_estimate_are_those_of_all_estimates(scenario: Scenario, wanted: int) -> None:
    pruned, whole = Planner(scenario), Planner(scenario)
    for planner in (pruned, whole):
        planner.bound(planner.candidates)
    whole.estimate(whole.open)
    by_memory = scenario.specification.plan.objective == "memory"
    timed = [(key, one) for key, one in whole.journal.estimated.items() if one.seconds is not None]
    values = {key: one.nbytes if by_memory else one.seconds or inf for key, one in timed}
    best = pruned.best_by_estimate(wanted)
    assert [values[one.key] for one in best] == sorted(values.values())[:wanted]
    assert by_memory or len(pruned.journal.estimated) < len(whole.journal.estimated) / 2


def test_candidates_come_in_the_order_of_bounds_that_are_found_late() -> None:
    draw = random.Random(0)
    exact = [draw.randrange(20) / 4 for _ in range(300)]
    coarse = [draw.uniform(0, one) if draw.random() < 0.9 else one for one in exact]
    candidates = [Candidate({"number": number}) for number in range(len(exact))]
    asked: list[int] = []

    def found(some: Sequence[Candidate]) -> list[float]:
        asked.extend(one.values["number"] for one in some)
        return [exact[one.values["number"]] for one in some]

    frontier = Frontier(candidates, coarse, found)
    order = sorted(range(len(exact)), key=lambda number: exact[number])
    assert [one.values["number"] for one in frontier.take(40)] == order[:40]
    assert frontier.least() == exact[order[40]]
    assert len(asked) == len(set(asked)) < len(exact)
    assert [one.values["number"] for one in frontier.take(1000)] == order[40:]


def test_each_level_of_bounds_is_asked_of_few_candidates() -> None:
    draw = random.Random(1)
    exact = [draw.uniform(1, 2) for _ in range(300)]
    levels = [[share * one for one in exact] for share in (0.5, 0.8, 1.0)]
    asked = [0, 0]

    def better(level: int) -> Callable[[Sequence[Candidate]], list[float]]:
        def found(some: Sequence[Candidate]) -> list[float]:
            asked[level] += len(some)
            return [levels[level + 1][one.values["number"]] for one in some]

        return found

    frontier = Frontier([Candidate({"number": number}) for number in range(300)], levels[0], better(0), better(1))
    order = sorted(range(300), key=lambda number: exact[number])
    assert [one.values["number"] for one in frontier.take(20)] == order[:20]
    assert 20 <= asked[1] < asked[0] <= 300


def test_only_candidates_with_lower_bounds_may_be_faster() -> None:
    planner = Planner(job(SMALL))
    planner.bound(planner.candidates)
    least = dict(
        zip([one.key for one in planner.open], planner.least_seconds(planner.open, len(LEVELS) - 1), strict=True)
    )
    middle = sorted(least.values())[len(least) // 2]
    expected = [one for one in planner.open if least[one.key] < middle]
    assert planner.maybe_faster(planner.open, middle, 5) == expected[:5]
    assert planner.maybe_faster(planner.open, middle, 10_000) == expected


def test_a_candidate_is_simulated_as_its_scenario_is() -> None:
    planner = Planner(job({**SMALL, "cp": [1, 2]}))
    some = planner.candidates[::11]
    planner.bound(some)
    some = [one for one in some if not planner.bounds[one.key].kind]
    assert len(some) > 2
    for one, judged in zip(some, planner.simulate(some), strict=True):
        assert judged.result == candidate_evaluation.simulated(planner.space.scenario_of(one))


def told(planner: Planner) -> list[tuple[str, float, float]]:
    return [(one.candidate.key, one.estimate, one.seconds) for one in planner.best()]


@pytest.mark.exhaustive
def test_every_number_of_processes_gives_the_same_answer() -> None:
    scenario = job({"tp": [1, 2], "micro_batch_size": [1, 2]}, plan={"simulate": 3})
    assert told(Planner(scenario)) == told(Planner(scenario, processes=2))


def test_a_plan_goes_on_from_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = job(SMALL, plan={"simulate": 6})
    whole = told(Planner(scenario))
    simulated: list[str] = []
    original = candidate_evaluation.simulated

    def counting(one: Any, estimator: Any) -> dict[str, Any]:
        if len(simulated) == 3:
            raise KeyboardInterrupt
        simulated.append(one.name)
        return original(one, estimator)

    monkeypatch.setattr(candidate_evaluation, "simulated", counting)
    with pytest.raises(KeyboardInterrupt):
        Planner(scenario, folder=tmp_path).best()
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"simulation": {"tp": 1}, "resu')  # a line that an interrupt has cut off
    monkeypatch.setattr(candidate_evaluation, "simulated", original)
    again = Planner(scenario, folder=tmp_path)
    assert len(again.journal.simulated) == 3
    assert told(again) == whole
    done = Planner(scenario, folder=tmp_path)
    monkeypatch.setattr(candidate_evaluation, "simulated", lambda *one: pytest.fail("simulated again"))
    monkeypatch.setattr(candidate_evaluation, "estimates", lambda task: pytest.fail("estimated again"))
    assert told(done) == whole


def test_the_journal_of_another_plan_is_refused(tmp_path: Path) -> None:
    Planner(job({"tp": [1]}), folder=tmp_path).best()
    with pytest.raises(ScenarioError, match="journal of another plan"):
        Planner(job({"tp": [1, 2]}), folder=tmp_path)


def test_a_margin_leaves_memory_free() -> None:
    plain = Planner(job(SMALL, plan={"simulate": 2}))
    careful = Planner(job(SMALL, plan={"memory_margin": 0.94, "simulate": 2}))
    assert careful.within == pytest.approx(0.06 * plain.within)
    plain.bound(plain.candidates)
    assert all(one.result["need_bytes"] <= careful.within for one in careful.best())
    assert len(careful.rejected()["memory"]) > len(plain.rejected().get("memory", []))


def test_the_objective_orders_the_answer() -> None:
    cost = {"gpu_hour": 2.0}
    search = {"tp": [1, 2], "micro_batch_size": [1, 4], "recompute": ["none", "full"]}
    by_memory = Planner(job(search, plan={"objective": "memory", "simulate": 3})).best()
    least = min(one.result["need_bytes"] for one in brute_force(job(search)))
    assert by_memory[0].result["need_bytes"] == least
    training = {"tokens": 1e9}
    for objective in ("cost", "energy", "tokens_per_currency"):
        plan = {"objective": objective, "simulate": 3}
        best = Planner(job({"tp": [1, 2]}, plan=plan, cost=cost, training=training)).best()
        times = [one.seconds for one in best]
        assert times == sorted(times), "on equal GPUs they are proportional to the time"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"plan": {"objective": "cost"}}, "plan.objective: cost is of a whole training run: give training.tokens"),
        ({"plan": {"objective": "cost"}, "training": {"tokens": 1e9}}, "cost needs a price: give cost.gpu_hour"),
        (
            {"plan": {"objective": "tokens_per_currency"}, "training": {"samples": 1e9}, "cost": {"gpu_hour": 1}},
            "tokens_per_currency counts tokens",
        ),
    ],
)
def test_an_objective_without_prices_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ScenarioError) as error:
        Planner(job(**changes))
    assert told in str(error.value)


def test_by_default_those_that_may_be_the_best_are_simulated() -> None:
    best = Planner(job(SMALL, plan={"top": 2})).best()
    all_of_them = of_small_job()
    limit = (1 + MARGIN) * best[0].seconds
    near = [one for one in all_of_them if one.estimate <= limit]
    assert 2 <= len(best) < len(all_of_them)
    assert {one.candidate.key for one in near[:MOST_SIMULATED]} <= {one.candidate.key for one in best}
    assert best[0].candidate.key == all_of_them[0].candidate.key


def test_all_means_every_candidate_that_fits() -> None:
    planner = Planner(job({"tp": [1, 2, 4], "micro_batch_size": [1, 2]}, plan={"simulate": "all"}))
    assert len(planner.best()) == len([one for one in planner.candidates if not planner.kind(one)])


def test_estimates_stand_beside_simulations() -> None:
    for one in Planner(job(SMALL, plan={"simulate": 6})).best():
        assert one.estimate < inf
        assert one.estimate == pytest.approx(one.seconds, rel=0.10)
