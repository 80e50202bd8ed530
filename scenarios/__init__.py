"""YAML scenarios, the command line, and results: the top layer.

>>> from scenarios import Scenario
>>> Scenario.load("hello").cluster().name
'uniform'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scenarios.results.result import Result
    from scenarios.run.sweep import Sweep
    from scenarios.scenario import Scenario
    from workloads.memory.chains.chain import Chain
    from workloads.memory.chains.optimal_checkpointing import optimal

__all__ = ["Chain", "Result", "Scenario", "Sweep", "optimal"]


def __getattr__(name: str) -> Any:
    """Import the names on first use, so that ``--help`` does not load them."""
    if name == "Scenario":
        from scenarios.scenario import Scenario

        return Scenario
    if name == "Result":
        from scenarios.results.result import Result

        return Result
    if name == "Sweep":
        from scenarios.run.sweep import Sweep

        return Sweep
    if name == "Chain":
        from workloads.memory.chains.chain import Chain

        return Chain
    if name == "optimal":
        from workloads.memory.chains.optimal_checkpointing import optimal

        return optimal
    raise AttributeError(f"module {__name__} has no attribute {name}")
