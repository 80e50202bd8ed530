"""How many GPUs a target needs: targets as text, the search beside brute force, closed forms, what relaxes it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.defaults import to_plan
from clustersim.scenarios.search.least_cluster import (
    POWERS,
    LeastCluster,
    changes,
    least_cluster,
    least_nodes,
    least_size,
)
from clustersim.scenarios.search.planned_sizes import Clusters, Kind, Target, sizes, target
from clustersim.scenarios.search.questions import OtherCluster, leasts, other_clusters, table
from clustersim.simulator.reading.errors import ScenarioError
from tests.scenarios.search.jobs import job

SEARCH = {"tp": [1, 2], "micro_batch_size": [1, 2]}
TOKENS, PRICE = 1e9, 2.0


@cache
def small() -> Scenario:
    return job(SEARCH, training={"tokens": TOKENS}, cost={"gpu_hour": PRICE})


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("30 days", "days", 30),
        ("12 h", "days", 0.5),
        ("1 year", "days", 365.25),
        ("$2M", "cost", 2e6),
        ("$ 2,000,000", "cost", 2e6),
        ("€500k", "cost", 5e5),
        ("$1.5e6", "cost", 1.5e6),
        ("50 tokens/s/GPU", "tokens_per_s_per_gpu", 50),
        ("1.2k tokens/s/gpu", "tokens_per_s_per_gpu", 1200),
    ],
)
def test_targets_are_read(text: str, kind: str, amount: float) -> None:
    found = target(text)
    assert found.kind == kind
    assert found.amount == pytest.approx(amount)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("30", "has no unit"),
        ("30 parsecs", '"parsecs" is not a unit of a target'),
        ("50 tokens/s", '"tokens/s" is not a unit of a target'),
        ("soon", "is not a target"),
        ("", "is not a target"),
        ("$1e999", "is not a target"),
        ("0 days", "must be above 0"),
        ("-3 days", "must be above 0"),
        ("$1.2.3", "is not a target"),
    ],
)
def test_what_is_no_target_is_told_with_examples(text: str, told: str) -> None:
    with pytest.raises(ScenarioError, match='"30 days"') as raised:
        target(text)
    assert told in str(raised.value)


@given(st.sets(st.sampled_from(sizes(1, 4097))), st.integers(1, 4096))
def test_the_search_finds_what_a_scan_finds(meeting: set[int], least: int) -> None:
    scanned = next((nodes for nodes in sizes(1, 4097) if nodes >= least), None)
    assert least_nodes(lambda nodes: nodes >= least, monotone=True) == scanned
    if meeting & set(POWERS):
        assert least_nodes(lambda nodes: nodes in meeting, monotone=False) == min(meeting)


@cache
def least(text: str) -> LeastCluster:
    """Return the least cluster of the small job for a target, found once for all tests."""
    return least_cluster(small(), target(text))


@cache
def clusters(kind: Kind) -> Clusters:
    """Return the clusters of the small job for targets of that kind; each size is planned and simulated once."""
    return Clusters(small(), Target(kind, 1))


def best_values(kind: Kind, upto: int) -> dict[int, float]:
    """Return what the best plan reaches on each size, every size planned and simulated."""
    reached = {nodes: clusters(kind).reached(nodes) for nodes in sizes(1, upto + 1)}
    return {nodes: one.value for nodes, one in reached.items() if one}


@pytest.mark.parametrize("text", ["45 min", "$9", "$15", "50k tokens/s/GPU", "30k tokens/s/GPU"])
def test_the_least_cluster_is_that_of_brute_force(text: str) -> None:
    aim = target(text)
    found = least(text)
    values = best_values(aim.kind, found.reached.nodes)
    assert min(nodes for nodes, value in values.items() if aim.is_met(value)) == found.reached.nodes
    assert found.reached.value == values[found.reached.nodes]
    if found.smaller and found.smaller[1]:
        assert not aim.is_met(found.smaller[1].value)


def test_no_simulation_betters_its_bound() -> None:
    for kind in get_args(Kind):
        aim = Target(kind, 1)
        for nodes in (1, 2, 4):
            reached = clusters(kind).reached(nodes)
            assert reached is not None
            assert aim.loss(clusters(kind).bound(nodes)) <= aim.loss(reached.value)


def test_days_cost_and_rate_are_those_of_the_step() -> None:
    reached = least("45 min").reached
    seconds, training = reached.judged.seconds, small().specification.training
    assert training is not None
    per_step = training.global_batch_size * 256
    whole = TOKENS / per_step * seconds
    numbers = reached.summary()
    assert numbers["training"]["days"] == pytest.approx(whole / 86_400)
    assert numbers["training"]["cost"] == pytest.approx(whole / 3600 * reached.gpus * PRICE)
    assert numbers["tokens_per_s_per_gpu"] == pytest.approx(per_step / seconds / reached.gpus)


def test_a_relaxation_that_is_reported_runs_as_reported() -> None:
    found = least("45 min")
    assert found.smaller is not None
    nodes, reached = found.smaller
    assert reached is not None
    assert set(found.relaxations[0].sets) == {"training.global_batch_size"}
    for one in found.relaxations:
        assert one.reached is not None
        changes = {
            **one.sets,
            "cluster.nodes": nodes,
            "parallelism.dp": "auto",
            **one.reached.judged.candidate.settings,
        }
        result = small().changed(changes, "relaxed").run().summary()
        assert result["step_time_s"] == pytest.approx(one.reached.judged.seconds)
        assert one.met == (result["training"]["days"] <= 45 / 1440)
    relaxed = least_cluster(small(), Target("days", reached.value))
    assert relaxed.reached.nodes <= nodes


GPU = ["cluster.node.accelerator", "cluster.node.intra.kind"]


@pytest.mark.parametrize(
    ("search", "tried"),
    [
        ({"tp": [1]}, ["training.precision", "training.global_batch_size", *GPU]),
        ({"precision": "auto"}, ["training.global_batch_size", *GPU]),
    ],
)
def test_what_relaxes_is_not_what_the_plan_varies(search: dict[str, Any], tried: list[str]) -> None:
    given = to_plan("llama3_8b", "dgx_h100", 1, 512, None, ["training.precision=bf16"])
    scenario = Scenario.model_validate({**given, "software": "megatron_core", "plan": {"search": search}})
    found = {key: value for _, sets in changes(scenario) for key, value in sets.items()}
    assert list(found) == tried
    assert found["training.global_batch_size"] == 1024
    assert [found[key] for key in GPU] == ["b200", "nvlink5"]


@pytest.mark.exhaustive
def test_the_price_at_which_a_smaller_cluster_does() -> None:
    # one node has no memory for a plan without recomputation, so that two nodes cost less
    changes = {"training.tokens": 1e11, "cost": {"gpu_hour": PRICE}, "parallelism.dp": "auto"}
    changes["plan.search"] = {
        "tp": [1],
        "pp": [1],
        "data": [{"method": "fsdp"}],
        "micro_batch_size": [2, 4],
        "recompute": ["none", "selective"],
    }
    scenario = Scenario.load("gpt_6_7b_64a100", changes)
    one, two = (Clusters(scenario, Target("cost", 1)).reached(nodes) for nodes in (1, 2))
    assert one is not None
    assert two is not None
    assert two.value < one.value
    found = least_cluster(scenario, Target("cost", (one.value + two.value) / 2, "$"))
    assert found.reached.nodes == 2
    price = found.summary()["smaller"]["gpu_hour"]
    again = least_cluster(scenario.changed({"cost.gpu_hour": price * 0.999}, "price"), found.target)
    assert again.reached.nodes == 1


def test_what_cannot_be_reached_says_the_best() -> None:
    with pytest.raises(ScenarioError) as raised:
        least_cluster(small(), target("1 s"))
    told = str(raised.value)
    assert "no plan on up to 4,096 nodes meets the target of at most 1 s" in told
    best = min(best_values("days", 16).values())
    assert Target("days", 1).show(best) in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["hello", "--target", "30 days"], "gives no length of the run: give tokens"),
        (["gpt_6_7b_64a100", "--target", "$2M"], "gives no length of the run: give tokens"),
        (
            ["gpt_6_7b_64a100", "--tokens", "1B", "--target", "$2M"],
            "a target in money needs the price of a GPU: give cost.gpu_hour",
        ),
        (["hello", "--target", "50 tokens/s/GPU"], "has no tokens"),
        (["hello", "--target", "30 miles"], '"miles" is not a unit of a target'),
        (["hello", "--target", "30 days", "-o", "folder"], "-o is for the best plan"),
        (["hello", "--target", "30 days", "--days", "3"], "--days and --target are 2 questions; give one"),
        (["hello", "--set", "training.samples=1000", "--target", "30 days"], "has no number of nodes"),
    ],
)
def test_bad_input_of_the_command(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in " ".join(error.split())
    assert "Traceback" not in error


@pytest.mark.exhaustive
def test_days_are_the_target_of_days(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["plan", "gpt_6_7b_64a100", "--search", "pp=1", "--tokens", "10B", "--json"]
    assert run([*common, "--days", "2"]) == 0
    days = json.loads(capsys.readouterr().out)
    assert run([*common, "--target", "48 h"]) == 0
    assert json.loads(capsys.readouterr().out) == days
    assert days["target"] == {"kind": "days", "amount": 2}
    assert days["smaller"]["value"] > 2 >= days["value"]


def test_other_clusters_have_the_least_size_that_is_found_on_them() -> None:
    """A target of many minutes: the search on a scenario of that cluster is the same; the cost is at its own price."""
    aim, other = target("45 min"), OtherCluster("dgx1", 3 * PRICE)
    scenario = job({"tp": [1], "micro_batch_size": [1]}, training={"tokens": TOKENS}, cost={"gpu_hour": PRICE})
    there = Clusters(scenario.changed({"cluster": {"preset": "dgx1", "nodes": 1}, "parallelism.dp": 8}, "test"), aim)
    (found,) = leasts(Clusters(scenario, aim), [other], least_size)
    alone = there.reached(least_size(there))
    assert found.reached is not None
    assert alone is not None
    assert found.reached.nodes == alone.nodes
    assert found.reached.value == pytest.approx(alone.value)
    ours, theirs = (one.summary()["training"]["cost"] for one in (found.reached, alone))
    assert ours == pytest.approx(3 * theirs)


def test_a_cluster_that_cannot_take_the_scenario_says_why() -> None:
    scenario = job({"tp": [1]}, training={"tokens": TOKENS})
    several = leasts(Clusters(scenario, target("45 min")), other_clusters("tpu_v5e_pod"), least_size)
    assert [one.reached for one in several] == [None]
    assert "fp16" in several[0].why
    assert several[0].why in table(several, target("45 min"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("dgx_h10", r'--clusters: "dgx_h10" is no cluster of the catalogue(.|\n)*did you mean "dgx_h100"'),
        ("dgx_h100,,", r'--clusters: "" is no cluster'),
        ("dgx_h100=-1", r"--clusters dgx_h100=-1: must be a price of a GPU-hour above 0"),
        ("dgx_h100=nan", r"--clusters dgx_h100=nan: must be a price"),
    ],
)
def test_wrong_clusters_are_named(text: str, told: str) -> None:
    with pytest.raises(ScenarioError, match=told):
        other_clusters(text)
