"""Simulated runs with a known fault, written as Kineto traces and explained by the scenario without the fault."""

import json

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.exchange.export import write
from clustersim.scenarios.exchange.exporting.kineto import kineto
from clustersim.scenarios.explain.changes import suggestions
from clustersim.scenarios.explain.gap import compared
from clustersim.scenarios.real_traces.run import run_of
from clustersim.simulator.reading.errors import TraceError

FAULTS = {
    "late_rank": {"simulation.stragglers": [{"rank": 2, "slowdown": 1.3}]},
    "other_sizes": {"parallelism.data.bucket": "400 MB"},
    "slow_collectives": {"cluster.bandwidth": "2 GB/s"},
    "kernels": {"model.forward": "14 ms", "model.backward": "28 ms"},
}
"""First causes, and the values of the scenario ``hello`` that bring them."""


SMALL = ["cluster.nodes=1", "parallelism.dp=1", "parallelism.tp=2", "parallelism.pp=4", "training.global_batch_size=16"]


def recorded(folder, scenario):
    write(kineto(scenario), folder)
    return run_of([folder])


@pytest.fixture(scope="module")
def hello():
    return Scenario.load("hello")


@pytest.mark.parametrize("cause", FAULTS)
def test_the_fault_is_the_first_cause_and_explains_the_whole_gap(tmp_path, hello, cause):
    faulty = hello.changed(FAULTS[cause], "a fault")
    timeline, gap = compared(recorded(tmp_path, faulty), hello)
    expected = faulty.run().timeline.step_time - hello.run().timeline.step_time
    assert gap.first.kind == cause
    assert gap.seconds == pytest.approx(expected, rel=1e-3)
    assert sum(one.seconds for one in gap.causes) == pytest.approx(gap.seconds, rel=1e-9)
    of_kind = sum(one.seconds for one in gap.causes if one.kind == cause)
    assert of_kind == pytest.approx(expected, rel=0.01)
    # the suggested change gains what taking the fault away gains
    found = suggestions(hello, timeline, gap)
    assert found.as_measured == pytest.approx(faulty.run().timeline.step_time, rel=0.01)
    assert found.as_measured - found.changes[0].step_time == pytest.approx(expected, rel=0.2)


def test_a_healthy_run_has_no_cause(tmp_path, hello):
    _, gap = compared(recorded(tmp_path, hello), hello)
    assert gap.first is None
    assert gap.seconds == pytest.approx(0.0, abs=2e-6)


@pytest.mark.exhaustive
def test_a_run_with_tensor_and_pipeline_parallelism_is_as_simulated(tmp_path):
    scenario = Scenario.load("gpt_6_7b_64a100", options=SMALL)
    run = recorded(tmp_path, scenario)
    _, gap = compared(run, scenario)
    assert abs(gap.seconds) < 1e-3 * gap.simulated
    assert all(abs(one.seconds) < 0.01 * gap.simulated for one in gap.causes)


def test_layers_that_are_slower_are_named(tmp_path, hello):
    _, gap = compared(recorded(tmp_path, hello.changed({"model.backward": "28 ms"}, "a fault")), hello)
    assert "above their price: layer" in gap.first.text
    assert "+8.00 ms" in gap.first.text


def test_a_run_of_another_number_of_ranks_is_refused(tmp_path, hello):
    run = recorded(tmp_path, hello)
    with pytest.raises(TraceError, match="is of a run with 4 ranks, but hello has 8"):
        compared(run, hello.changed({"cluster.gpus": 8}, "more"))


def test_a_scenario_with_variants_is_refused(tmp_path, hello):
    with pytest.raises(TraceError, match="has variants"):
        compared(recorded(tmp_path, hello), Scenario.load("naive_vs_ddp"))


def test_the_command_ends_with_simulated_changes(tmp_path, hello, capsys):
    write(kineto(hello.changed(FAULTS["late_rank"], "a fault")), tmp_path)
    assert run(["explain", str(tmp_path), "--scenario", "hello"]) == 0
    text = capsys.readouterr().out
    assert "slowest rank: 2" in text
    assert "first cause: rank 2 is late" in text
    assert "1. rank 2 as fast as the others: 135 ms, 21.0% less" in text


def test_the_command_as_json(tmp_path, hello, capsys):
    write(kineto(hello.changed(FAULTS["other_sizes"], "a fault")), tmp_path)
    assert run(["explain", str(tmp_path), "--scenario", "hello", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gap"]["first_cause"] == "other_sizes"
    assert found["gap"]["gap_s"] == pytest.approx(0.045, rel=1e-3)
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["step_time_s"])


def test_set_needs_a_scenario(tmp_path, capsys):
    assert run(["explain", str(tmp_path), "--set", "cluster.gpus=2"]) == 2
    assert "give that too: --scenario" in capsys.readouterr().err
