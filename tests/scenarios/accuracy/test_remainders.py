"""What is fitted because no mechanism explains it is a small part of every published step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from clustersim.scenarios.results.expectations import is_duration
from clustersim.scenarios.results.step_report import received
from clustersim.scenarios.scenario import Scenario
from clustersim.workloads.software_stack import tensors_by_stage

LARGEST = 0.05
"""Share of a measured step."""

SHORTEST: dict[str, dict[str, Any]] = {
    "vtrain_single_node": {},
    "fsdp_mpt_a100_40gb": {"table.where": {"model": ["125m", "350m"]}},
    "zero_bubble": {"table.where": {"schedule": "1F1B-I"}},
}
"""Published scenarios with the shortest steps, or with the most messages for their length."""


def measured_steps(run: Scenario) -> Iterator[float]:
    """The measured seconds of a step."""
    training, model = run.specification.training, run.model
    assert training is not None
    assert model is not None
    for key, expected in run.specification.expect.items():
        samples = {"samples_per_s": 1.0, "tokens_per_s": model.tokens_per_sample}.get(key)
        if isinstance(expected.value, float | int) and (samples or is_duration(key)):
            yield training.global_batch_size * samples / expected.value if samples else expected.value


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SHORTEST)
def test_no_fitted_remainder_is_more_than_a_twentieth_of_a_published_step(name: str) -> None:
    runs = Scenario.load(name, SHORTEST[name]).variants
    assert runs
    for label, run in runs.items():
        stack, programs, model = run.software, run.schedule().programs, run.model
        assert model is not None
        remainders = {
            "load": stack.load_seconds,
            "tensor": stack.tensor_seconds * max(sum(tensors_by_stage(one, model).values()) for one in programs),
            "exchange": stack.exchange_seconds * max(map(received, programs)),
        }
        steps = list(measured_steps(run))
        assert steps, label
        for key, seconds in remainders.items():
            assert seconds <= LARGEST * min(steps), f"{label}: {key} of {run.stack}"
