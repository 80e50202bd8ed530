"""The report names constants of a software stack that are much of a step, and no others."""

from __future__ import annotations

import pytest

from clustersim.scenarios.results.step_report import large_constants
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.hardware.accelerator import OPERATOR_SECONDS


def gpt(**changes):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_a100_80gb"},
            "model": {"preset": "gpt2_medium"},
            "training": {"global_batch_size": 8, "micro_batch_size": 1, "precision": "bf16"},
            "parallelism": {"pp": 8},
            "software": "megatron",
        }
        | changes
    )


def test_a_constant_of_more_than_a_tenth_is_named_with_its_size():
    scenario = gpt(parallelism={"pp": 8})
    stack = scenario.software
    messages = 8 * 2  # a stage in the middle receives eight activations and eight gradients
    seconds = messages * stack.host_seconds_per_message
    assert stack.host_seconds_per_message == stack.message_operators * OPERATOR_SECONDS + stack.exchange_seconds
    (line,) = (one for one in large_constants(scenario, 2 * seconds) if "messages" in one)
    assert line.startswith("50% of the step is a constant of megatron: waiting for messages, 16 x ")
    assert not [one for one in large_constants(scenario, 10.1 * seconds) if "messages" in one]


def test_loading_is_named_where_a_step_is_short():
    scenario = gpt(parallelism={"data": {"method": "fsdp"}}, software="fsdp")
    load = scenario.software.load_seconds
    assert [f"{load / (5 * load):.0%} of the step is a constant of fsdp: loading data and logging, once a step"] == [
        line for line in large_constants(scenario, 5 * load) if "loading" in line
    ]
    assert not list(large_constants(scenario, 1e3 * load))


@pytest.mark.parametrize("name", ["pipedream_gnmt8"])
def test_measured_durations_have_no_constants(name):
    scenario = Scenario.load(name)
    for run in [*scenario.variants.values()] or [scenario]:
        assert not list(large_constants(run, 1e-9))
