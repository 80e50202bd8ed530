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
from simulator.lookup import attribute, function, names

METHODS = "scenarios.plan.methods"


def methods() -> list[str]:
    """Return the names of the methods: the files of `scenarios.plan.methods`.

    >>> methods()
    ['flexflow', 'pipedream', 'pipedream_2bw', 'piper']
    """
    return names(METHODS)


def propose(method: str, problem: Problem) -> Plan:
    """Return the plan of *method* for *problem*. Raises `ScheduleError` if nothing fits, `UnknownName` for a name."""
    proposed: Callable[[Problem], Plan] = attribute(function(METHODS, method), "propose")
    return proposed(problem)
