"""The shipped scenarios, loaded and simulated once for all tests that run in one process."""

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

SLOW = (
    "federated_hospitals",
    "llama3_8b_131k_32h100",
    "mt_nlg_530b",
    "optimal_recompute_gpt2_xl",
    "zeropp_384v100",
    "zhores_vgg16_parameter_server_vs_ring",
)
"""Scenarios that take 2 to 4 s. The short suite runs smaller ones of the same kind in the tests of their methods."""


@cache
def loaded(name: str) -> Scenario:
    """Return the shipped scenario *name*."""
    return Scenario.load(name)


@cache
def result_of(name: str) -> Result:
    """Return the result of the shipped scenario *name*."""
    return loaded(name).run()
