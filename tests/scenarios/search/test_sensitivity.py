"""Sensitivities: elasticities against other simulations, closed forms and the critical path; uncertainty; bad input."""

import json
from functools import cache
from math import log

import numpy as np
import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.alternatives.changes import of_configuration
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.results.uncertainty import shipped
from clustersim.scenarios.search.sensitivity import OF_DURATIONS, Sensitivities, tried
from clustersim.scenarios.search.varied_machine import machine, sampled, with_factors, with_nccl
from tests.samples import sample

SMALL = ["hello", "gpipe_vs_varuna", "resnet50_one_v100", "zhores_resnet50_ddp", "star_of_4"]
BETTER = ("bandwidth", "peak", "speed")
"""Ends of the names of parameters of which more is better; of all others less is."""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def sensitivities(name, changed=None):
    return of_shipped(name) if changed is None else list(found(Scenario.load(name, changed)))


@cache
def of_shipped(name):
    """Those of a shipped scenario, found once for all tests."""
    return list(found(Scenario.load(name)))


def found(scenario):
    for one in scenario.variants.values() or [scenario]:
        base = machine(one)
        yield Sensitivities(base, base.simulation().run())


@pytest.mark.parametrize("name", sample(SMALL, heavy=["resnet50_one_v100", "zhores_resnet50_ddp", "star_of_4"]))
def test_elasticities_predict_ten_per_cent_and_have_the_right_sign(name):
    for found in sensitivities(name):
        step = found.step_time
        for parameter, one in found.each.items():
            better = parameter.endswith(BETTER)
            assert (one.elasticity <= 1e-6) if better else (one.elasticity >= -1e-6), parameter
            assert (one.doubled <= one.halved * (1 + 1e-6)) if better else (one.doubled >= one.halved * (1 - 1e-6))
            for factor in (1 / 1.1, 1 / 1.05, 1.05, 1.1):
                assert one.predicted(step, factor) == pytest.approx(found.at(parameter, factor), abs=0.01 * step)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["hello", "zhores_resnet50_ddp", "resnet50_one_v100"])
def test_elasticities_rank_parameters_as_larger_changes_do(name):
    """Of two parameters with clearly different elasticities, the larger one moves the step more by 30 %."""
    for found in sensitivities(name):
        moved = {p: abs(log(found.at(p, 1.3) / found.at(p, 1 / 1.3))) / (2 * log(1.3)) for p in found.each}
        for one in found.each:
            for other in found.each:
                if abs(found.each[one].elasticity) > abs(found.each[other].elasticity) + 0.02:
                    assert moved[one] > moved[other]


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("hello", {"cluster.bandwidth": "100 TB/s"}),
        ("gpipe_vs_varuna", None),
        ("resnet50_one_v100", None),
        pytest.param("naive_vs_ddp", None, marks=pytest.mark.exhaustive),
    ],
)
def test_simulation_and_critical_path_agree_without_contention(name, changed):
    for found in sensitivities(name, changed):
        if found.base.scenario.name == "ddp":
            continue  # collectives take multiprocessors from the backward pass
        for parameter, one in found.each.items():
            if parameter in OF_DURATIONS:
                assert one.critical == pytest.approx(one.elasticity, abs=2e-3)
            else:
                assert one.critical is None


def test_elasticities_of_hello_are_shares_of_its_step():
    """135.03 ms: 120 ms of computing, 15 ms of bytes and 30 us of latency."""
    (found,) = sensitivities("hello")
    each = found.each
    assert list(each) == ["gpu.speed", "port.bandwidth", "port.latency", *list(each)[3:]]
    assert each["gpu.speed"].elasticity == pytest.approx(-120 / 135.03, abs=1e-3)
    assert each["port.bandwidth"].elasticity == pytest.approx(-15 / 135.03, abs=1e-3)
    assert each["port.latency"].elasticity == pytest.approx(0.03 / 135.03, abs=1e-6)
    assert each["port.bandwidth"].doubled == pytest.approx(0.12753)


def test_one_slow_gpu_costs_all_where_others_wait_for_it():
    """Data parallelism waits for any GPU; of a pipeline's stages the others' slack takes some of it."""
    (found,) = sensitivities("hello")
    assert found.stragglers == {0: pytest.approx(0.13503 + 0.1 * 0.12)}
    pipelines = {one.base.scenario.name: one for one in sensitivities("gpipe_vs_varuna")}
    gpipe = pipelines["gpipe"]
    assert len(gpipe.stragglers) == gpipe.base.scenario.derived.degree("pp")
    assert all(gpipe.step_time < seconds <= 1.1 * gpipe.step_time for seconds in gpipe.stragglers.values())


def test_jitter_is_a_parameter_and_repeats_are_averaged():
    (found,) = sensitivities("hello", {"simulation.jitter": 0.1, "simulation.repeats": 10})
    assert 0 < found.each["simulation.jitter"].elasticity < 0.2
    times = Scenario.load("hello", {"simulation.jitter": 0.1, "simulation.repeats": 10}).run().step_times
    assert found.step_time == pytest.approx(np.mean(times))


def test_changes_of_the_configuration_are_simulated():
    scenario = Scenario.load("hello", {"training.micro_batch_size": 4})
    by_text = {one.text: one for one in tried(scenario, of_configuration(scenario))}
    assert set(by_text) == {
        "--set training.micro_batch_size=8", "--set training.micro_batch_size=2",
        "--set parallelism.data.bucket=50 MB", "--set parallelism.data.bucket=200 MB",
    }  # fmt: skip
    smaller = by_text["--set parallelism.data.bucket=50 MB"]
    expected = Scenario.load("hello", {"training.micro_batch_size": 4, "parallelism.data.bucket": "50 MB"}).run()
    assert smaller.step_time == expected.timeline.step_time
    assert smaller.fits


@pytest.mark.exhaustive
def test_sampled_uncertainty_agrees_with_the_covariance():
    """For small changes the logarithm of the step is linear in those of the parameters."""
    scenario = Scenario.load("resnet50_one_v100").variants["fp32"]
    base = machine(scenario)
    draws = sampled(base, 100, 0)
    fit = shipped("v100")
    slopes = [
        (
            log(with_factors(base, fit, {**dict.fromkeys(fit.lands, 1.0), name: 1.01}).step_time())
            - log(base.step_time())
        )
        / log(1.01)
        for name in fit.lands
    ]
    variance = np.array(slopes) @ fit.covariance @ np.array(slopes)
    assert np.log(draws).std() == pytest.approx(variance**0.5, rel=0.25)
    assert sampled(base, 3, 1) == sampled(base, 3, 1)
    assert not sampled(machine(Scenario.load("hello")), 3, 1)


def test_draws_of_nccl_change_its_parameters():
    library = machine(Scenario.load("zhores_resnet50_ddp")).transport
    changed = with_nccl(library, {"launch": 2.0, "efficiency.NET": 0.5, "shares.ring.LL128.inside": 0.25})
    assert changed.launch == 2 * library.launch
    assert changed.efficiency["NET"] == 0.5 * library.efficiency["NET"]
    assert changed.shares["ring", "LL128", False] == 0.25 * library.shares["ring", "LL128", False]
    assert changed.shares["ring", "LL128", True] == library.shares["ring", "LL128", True]


def test_the_command_prints_json_or_a_report_with_a_chart(capsys, tmp_path):
    assert run(["sensitivity", "hello", "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["elasticity"]["port.bandwidth"] == pytest.approx(-0.111, abs=1e-3)
    assert numbers["uncertainty_s"] is None
    assert run(["sensitivity", "hello"]) == 0
    out = capsys.readouterr().out
    assert "gpu.speed doubled" in out
    assert "without influence: port.latency" in out
    assert (tmp_path / "hello_sensitivity.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["allreduce_dgx_a100"], "sensitivity"),
        (["hello", "-o", "x.bmp"], ".png"),
        (["hello", "--samples", "-1"], "samples"),
        (["helo"], "did you mean"),
    ],
)
def test_bad_input(arguments, told, capsys, tmp_path):
    assert run(["sensitivity", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
