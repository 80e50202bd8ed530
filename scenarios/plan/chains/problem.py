"""A planning problem: the layers at each micro-batch and tensor degree that may be chosen, and the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scenarios.build.built import BuiltScenario
from scenarios.plan.chains.chain import Machine, PipelineChain
from scenarios.plan.chains.from_scenario import chain_of, machine_of
from simulator.errors import ScenarioError


@dataclass(frozen=True)
class Problem:
    """*chains*: the same layers, by micro-batch and tensor degree. *batch*: samples of a step. *seed*: of a search.

    *uniform*: the plan has one tensor degree and one choice of recomputation, as a scenario can execute.
    """

    chains: tuple[PipelineChain, ...]
    machine: Machine
    batch: int
    seed: int = 0
    uniform: bool = True

    @property
    def undivided(self) -> list[PipelineChain]:
        """The chains without tensor parallelism."""
        return [chain for chain in self.chains if chain.tp == 1]

    @property
    def by_micro_batch(self) -> list[list[PipelineChain]]:
        """The chains of each micro-batch that divides the batch, by ascending tensor degree."""
        sizes = sorted({chain.micro_batch_size for chain in self.chains if self.batch % chain.micro_batch_size == 0})
        ordered = sorted(self.chains, key=lambda chain: chain.tp)
        return [[chain for chain in ordered if chain.micro_batch_size == size] for size in sizes]


def problem_of(
    scenario: BuiltScenario,
    *,
    micro_batch_sizes: Sequence[int] = (),
    tensor_degrees: Sequence[int] = (),
    seed: int = 0,
) -> Problem:
    """Return the problem of *scenario*.

    *micro_batch_sizes*: by default that of the scenario. *tensor_degrees*: by default the powers of two up to the GPUs
    of a node that divide the model. Raises `ScenarioError` if the scenario trains no model, or a given degree does not
    divide it.
    """
    machine, training = machine_of(scenario), scenario.specification.training
    assert training is not None
    sizes = micro_batch_sizes or [scenario.derived.micro_batch_size]
    chains = [chain_of(scenario, micro_batch_size=size) for size in sizes]
    for size in sizes:
        chains += _divided(scenario, size, machine, tensor_degrees)
    return Problem(tuple(chains), machine, training.global_batch_size, seed)


def _divided(scenario: BuiltScenario, size: int, machine: Machine, degrees: Sequence[int]) -> list[PipelineChain]:
    """Return the chains of tensor degrees above 1."""
    if degrees:
        return [chain_of(scenario, micro_batch_size=size, tp=tp) for tp in degrees if tp > 1]
    found, tp = [], 2
    while tp <= machine.levels[0].count:
        try:
            found.append(chain_of(scenario, micro_batch_size=size, tp=tp))
        except ScenarioError:
            break
        tp *= 2
    return found
