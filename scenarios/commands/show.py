"""`clustersim show` lays open what follows from a scenario: its order, groups, defaults, topology, and advice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.command import app
from scenarios.commands.arguments import OneScenario, Settings

if TYPE_CHECKING:
    from scenarios.scenario import Scenario


@app.command()
def show(
    scenario: OneScenario,
    what: Annotated[str, typer.Argument(help="order, groups, derived, topology or advice.")] = "derived",
    settings: Settings = None,
) -> None:
    """Show the order, groups, derived values or topology of a scenario, or which parallelism its memory asks for."""
    from scenarios import explanation
    from scenarios.advice import advice
    from scenarios.scenario import Scenario
    from simulator.document.validation import listed, near
    from simulator.errors import ScenarioError

    views: dict[str, Callable[[Scenario], str]] = {
        "order": explanation.order,
        "groups": explanation.groups,
        "derived": explanation.derived,
        "topology": explanation.topology,
        "advice": advice,
    }
    if what not in views:
        hint = near(what, views)
        raise ScenarioError(f'there is no "{what}" to show; ask for {listed(views)}' + (f"; {hint}" if hint else ""))
    loaded = Scenario.load(scenario, options=settings)
    for one in loaded.variants.values() or [loaded]:
        if loaded.variants:
            print(f"# {one.name}")
        print(views[what](one))
