"""YAML scenarios, the command line, and results: the top layer.

>>> from scenarios import Scenario
>>> Scenario.load("hello").cluster().name
'uniform'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scenarios.results.result import Result
    from scenarios.scenario import Scenario
    from scenarios.sweep.result import Sweep

__all__ = ["Result", "Scenario", "Sweep"]


def __getattr__(name: str) -> Any:
    """Import the classes on first use, so that ``--help`` does not load them."""
    if name == "Scenario":
        from scenarios.scenario import Scenario

        return Scenario
    if name == "Result":
        from scenarios.results.result import Result

        return Result
    if name == "Sweep":
        from scenarios.sweep.result import Sweep

        return Sweep
    raise AttributeError(f"module {__name__} has no attribute {name}")
