"""The candidates of a published method for `clustersim plan`: its plan for each micro-batch that may be chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from scenarios.plan.candidate import Candidate
from scenarios.plan.chains.chain import Plan
from scenarios.plan.chains.problem import Problem, problem_of
from scenarios.plan.chains.to_scenario import overrides
from scenarios.plan.space import Space
from scenarios.specification.plan import AUTO
from simulator.errors import ScenarioError, ScheduleError


def candidates_of(propose: Callable[[Problem], Plan], space: Space, uniform: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yield the plan of each micro-batch as a candidate, with values by dotted key; then the *uniform* plans.

    Those are all combinations of values by key in which every stage is alike, in the space of the method. Its own cost
    may take another one for better, but the answer is the best of all by simulation.

    A plan with replicas that do not divide the batch is left out: steps of other batches do not compare. Raises
    `ScenarioError` if the method has no other.
    """
    faults: list[ScheduleError] = []
    sizes = _micro_batch_sizes(space)
    for size in sizes:
        seed = space.scenario.specification.simulation.seed
        problem = problem_of(space.scenario, micro_batch_sizes=[size], tensor_degrees=_tensor_degrees(space), seed=seed)
        try:
            plan = propose(problem)
        except ScheduleError as error:
            faults.append(error)
            continue
        changes = overrides(plan, space.scenario)
        if batch := changes.get("training.global_batch_size"):
            faults.append(ScheduleError(_uneven(plan, batch)))
        else:
            yield Candidate(changes)
    if len(faults) == len(sizes):
        raise ScenarioError(str(faults[0]))
    yield from space.restricted(uniform).candidates()


def _uneven(plan: Plan, batch: int) -> str:
    return (
        f"{plan.method}: stages with {plan.replicas} replicas do not divide the global batch into micro-batches of "
        f"{plan.micro_batch_size}; try training.global_batch_size {batch}"
    )


def _micro_batch_sizes(space: Space) -> Sequence[int]:
    """Return the micro-batches to try; auto: powers of two that divide the batch."""
    training, listed = space.scenario.specification.training, space.search.get("micro_batch_size")
    assert training is not None
    batch = training.global_batch_size
    if listed == AUTO:
        return [2**n for n in range(batch.bit_length()) if batch % 2**n == 0]
    return [size for size in listed if batch % size == 0] if listed else [space.scenario.derived.micro_batch_size]


def _tensor_degrees(space: Space) -> Sequence[int]:
    """Return the tensor degrees to try; none for auto."""
    listed = space.search.get("tp")
    if listed == AUTO:
        return ()
    return listed or [space.scenario.derived.degree("tp")]
