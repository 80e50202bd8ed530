"""The plan of a published method, by the name of the method.

>>> from scenarios import Scenario
>>> from scenarios.plan.chains.problem import problem_of
>>> from scenarios.plan.chains.to_scenario import overrides
>>> scenario = Scenario.load("hello")
>>> plan = propose("piper", problem_of(scenario))
>>> plan.replicas, overrides(plan, scenario)["parallelism.pp"]
('1-1-1-1', 4)
"""

from __future__ import annotations

from collections.abc import Callable

from scenarios.plan.chains.chain import Plan
from scenarios.plan.chains.problem import Problem
from simulator.lookup import UnknownName, find, names, nearest

METHODS = "scenarios.plan.methods"


def methods() -> list[str]:
    """Return the names of the published methods: the files of `scenarios.plan.methods` with a function ``propose``.

    >>> methods()
    ['flexflow', 'pipedream', 'pipedream_2bw', 'piper']
    """
    return [name for name in names(METHODS) if hasattr(find(METHODS, name), "propose")]


def propose(method: str, problem: Problem) -> Plan:
    """Return the plan of *method* for *problem*. Raises `ScheduleError` if nothing fits, `UnknownName` for a name."""
    if method not in methods():
        raise UnknownName(method, nearest(method, methods()))
    proposed: Callable[[Problem], Plan] = find(METHODS, method).propose
    return proposed(problem)
