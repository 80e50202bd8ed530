"""Results of the shipped scenarios, simulated once for all tests that run in one process."""

from __future__ import annotations

from functools import cache

from clustersim.scenarios import Scenario
from clustersim.scenarios.results.result import Result

HEAVY = (
    "gpt2_xl_offload_8a100",
    "llama3_70b_fp8_64h100",
    "local_steps_slow_network",
    "megatron_1t_3072a100",
    "parameter_server_straggler",
)
"""Scenarios that take more than 4 s of processor time. The short suite runs none of them."""


@cache
def result_of(name: str) -> Result:
    """Return the result of the shipped scenario *name*."""
    return Scenario.load(name).run()
