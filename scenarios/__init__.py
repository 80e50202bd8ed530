"""YAML scenarios, their runs and results, the searches over them, and the command line: the top layer."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clustersim import Scenario as Scenario


def __getattr__(name: str) -> Any:
    """In a clone ``from scenarios import Scenario`` is ``from clustersim import Scenario``."""
    if name != "Scenario":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    import clustersim

    return clustersim.Scenario
