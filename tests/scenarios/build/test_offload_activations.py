"""Activations of scenarios on the host: budgets are met, links and hosts are not overfull, wrong keys are told."""

import pytest

from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.analysis.memory import curve
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.ops import Copy

BASE = {
    "version": 1,
    "cluster": {"preset": "dgx_a100_40gb"},
    "model": {"preset": "gpt2_medium", "num_layers": 12, "attention": "flash"},
    "training": {"global_batch_size": 64, "micro_batch_size": 4, "precision": "bf16"},
    "parallelism": {"pp": 2, "tp": 2, "dp": 2},
}
ALL = {"activations": "all"}
AUTO = {"activations": "auto"}


def scenario(changes=None, **training):
    data = {**BASE, "training": {**BASE["training"], **training}, **(changes or {})}
    return Scenario.model_validate(data)


def copied(result):
    """Bytes that the copies of all ranks move, to the host and back."""
    schedule = result.timeline.schedule
    totals = {"host": 0.0, "gpu": 0.0}
    for number in schedule.program_of:
        for op in schedule.programs[number].ops:
            if isinstance(op, Copy):
                totals[op.to] += op.nbytes
    return totals


@pytest.mark.parametrize("recompute", ["none", "full", "selective", {"method": "uniform", "num_layers": 2}])
def test_what_is_copied_out_comes_back_in_pipelines_with_tensor_parallelism(recompute):
    result = scenario(recompute=recompute, offload=ALL).run()
    totals = copied(result)
    assert totals["host"] == pytest.approx(totals["gpu"])
    assert totals["host"] > 0
    for rank in range(8):
        assert curve(result.timeline, rank, host=True).total[-1] == pytest.approx(0.0, abs=1.0)
    summary = result.summary()
    assert summary["memory"]["host_peak_bytes"] <= totals["host"]
    assert all(use["max"] <= 1 + 1e-9 for use in summary["link_utilisation"].values())
    # a copy passes the memory of its host once
    assert summary["link_traffic_bytes"]["dram"] == pytest.approx(totals["host"] + totals["gpu"])


def test_half_the_bandwidth_of_pcie_is_never_faster():
    def step(bandwidth, offload):
        node = {"preset": "dgx_a100_40gb", "node": {"host": {"kind": "pcie4", "bandwidth": bandwidth}}}
        return scenario({"cluster": node}, offload=offload).run().summary()

    budget = {"activations": "auto", "budget": "3 GB"}
    for offload in (ALL, budget):
        fast, slow = step("25 GB/s", offload), step("12.5 GB/s", offload)
        assert slow["step_time_s"] >= fast["step_time_s"] * (1 - 1e-12)
        assert slow["breakdown_s"]["copy"] >= fast["breakdown_s"]["copy"] * (1 - 1e-12)


@pytest.mark.parametrize(
    ("recompute", "offload"),
    [
        ({"method": "optimal", "budget": "1 GB"}, AUTO),
        ("none", {"activations": "karma", "budget": "1 GB"}),
        ("none", {"activations": "auto", "budget": "2 GB"}),
    ],
)
def test_a_plan_holds_its_budget_on_each_stage(recompute, offload):
    result = scenario(recompute=recompute, offload=offload).run()
    budget = 2e9 if recompute == "none" and offload["activations"] == "auto" else 1e9
    for rank in range(8):
        activations = curve(result.timeline, rank).by_category["activations"]
        assert activations.max() <= budget
    totals = copied(result)
    assert totals["host"] == pytest.approx(totals["gpu"])


def test_together_is_no_slower_than_recomputation_alone():
    optimal = {"method": "optimal", "budget": "4 GB"}
    one_stage = {"parallelism": {"pp": 1, "dp": 8}}
    alone = scenario(one_stage, recompute=optimal).run().summary()["step_time_s"]
    both = scenario(one_stage, recompute=optimal, offload=AUTO).run().summary()["step_time_s"]
    assert both <= alone * (1 + 1e-3)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"offload": {"activations": ["layr 3"]}}, "is no layer of .*; the nearest of its 14 are layer 3"),
        ({"offload": {"activations": [14]}}, "layer 14: .* has the layers 0 to 13"),
        ({"offload": {"activations": "karna"}}, 'not "karna"; did you mean "karma"'),
        ({"offload": AUTO, "recompute": "full"}, "auto decides itself what is computed again"),
        ({"offload": {"activations": "karma"}, "recompute": "full"}, "leave recompute out, or take activations: all"),
        ({"offload": {"activations": "karma"}, "recompute": "optimal"}, "take activations: auto"),
        ({"offload": {**ALL, "budget": "1 GB"}}, "belongs to activations: auto or karma"),
        ({"offload": {**AUTO, "ahead": 2}}, "belongs to layers that are chosen"),
        ({"offload": {**AUTO, "budget": "1 MB"}}, "is too little: the activations of stage"),
    ],
)
def test_wrong_keys_are_told(training, message):
    with pytest.raises(ScenarioError, match=message):
        scenario(**training).schedule()


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("zero_bubble_h1", "activations: karma needs whole backward passes, .*; take activations: all, or another"),
        ("varuna", "recomputes in its order already; activations: karma would do it twice"),
    ],
)
def test_a_plan_of_copies_names_itself_where_an_order_refuses_it(schedule, message):
    changes = {"parallelism": {**BASE["parallelism"], "schedule": schedule}}
    with pytest.raises(ScenarioError, match=message):
        scenario(changes, offload={"activations": "karma"}).schedule()


def test_a_cluster_without_a_host_is_refused():
    cluster = {"preset": "uniform", "gpus": 8, "hosts": 0, "bandwidth": "25 GB/s", "latency": "1 us"}
    with pytest.raises(ScenarioError, match="no host to offload to; give it hosts, or take none"):
        scenario({"cluster": {**cluster, "accelerator": "a100_40gb"}}, offload=ALL)
