"""A scenario describes a cluster and what runs on it; it builds both and simulates them.

>>> scenario = Scenario.load("hello", {"training.global_batch_size": 64})
>>> scenario.derived.micro_batch_size
16
"""

from __future__ import annotations

from dataclasses import dataclass

from scenarios import running
from scenarios.build.built import BuiltScenario
from scenarios.results.result import Result
from scenarios.running import Watch


@dataclass(frozen=True)
class Scenario(BuiltScenario):
    """A scenario that can be run; see `BuiltScenario` for what it holds."""

    def run(self, watch: Watch | None = None) -> Result:
        """Simulate the scenario; *watch* is called with each simulation before it starts.

        Raises `DeadlockError` with the circle of waiting ops.
        """
        return running.run(self, watch)
