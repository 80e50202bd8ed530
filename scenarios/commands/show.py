"""`clustersim show` prints what follows from a scenario: its order, groups, defaults, topology, and advice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.scenarios.commands.application import OneScenario, Settings, command, load
from clustersim.scenarios.commands.runner import print_json
from clustersim.scenarios.commands.terminal import progress, say
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.gc_paused import gc_paused

if TYPE_CHECKING:
    from clustersim.scenarios.results.operator_profile import Profile
    from clustersim.scenarios.scenario import Scenario

VIEWS = ("order", "groups", "derived", "topology", "advice", "critical", "operators", "recompute", "software")
CONSTANTS = "constants"
"""The view that belongs to no scenario."""

WITH_NUMBERS = ("operators",)
"""Views that `--json` prints as numbers."""


@command()
def show(
    scenario: OneScenario,
    what: Annotated[str | None, typer.Argument(help=f"{', '.join(VIEWS[:-1])} or {VIEWS[-1]} (derived).")] = None,
    settings: Settings = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers of operators, or constants, as JSON.")
    ] = False,
) -> None:
    """Show the order, groups, derived values, topology, critical path, operators, recomputation, software, or advice.

    Without a scenario, `show constants` prints the constants that measurements inform, with uncertainty and sources.
    """
    if scenario == CONSTANTS and what is None:
        _constants(as_json)
        return
    what = what or "derived"
    from clustersim.scenarios.build import explanation
    from clustersim.scenarios.build.explanation import recompute_text
    from clustersim.scenarios.search.parallelism_advice import advice
    from clustersim.simulator.reading.validation import listed, near

    views: dict[str, Callable[[Scenario], str]] = {
        "order": explanation.order,
        "groups": explanation.groups,
        "derived": explanation.derived,
        "topology": lambda one: explanation.topology(one.cluster()),
        "advice": advice,
        "critical": _critical,
        "operators": _operators,
        "recompute": recompute_text,
        "software": _software,
    }
    if what not in views:
        hint = near(what, views)
        raise ScenarioError(f'there is no "{what}" to show; ask for {listed(views)}' + (f"; {hint}" if hint else ""))
    if as_json and what not in WITH_NUMBERS:
        raise ScenarioError(f"--json: {what} is text only; numbers has {listed(WITH_NUMBERS)}")
    if what == "topology":
        _topologies(scenario, settings)
        return
    loaded = load(scenario, settings)
    if as_json:
        _print_numbers(loaded)
        return
    for one in loaded.runs:
        if loaded.variants:
            print(f"# {one.name}")
        say(views[what](one))


def _constants(as_json: bool) -> None:
    """Print the constants that measurements inform."""
    from clustersim.scenarios.accuracy import provenance

    if as_json:
        print_json(provenance.as_json())
    else:
        say(provenance.constants_text())


def _topologies(scenario: str, settings: list[str] | None) -> None:
    """Print the topology of the cluster of *scenario*, or of each of its variants; the rest of it may be wrong."""
    from clustersim.scenarios.build.built import clusters
    from clustersim.scenarios.build.explanation import topology

    found = clusters(scenario, settings)
    for name, cluster in found.items():
        if len(found) > 1:
            print(f"# {name}")
        say(topology(cluster))


def _software(scenario: Scenario) -> str:
    """Simulate *scenario* with each software stack that it may have, and return the table."""
    from clustersim.scenarios.run.running import comparison_of_stacks, stacks

    with progress(f"simulating {scenario.name}", parts=len(stacks(scenario))) as watch, gc_paused():
        return comparison_of_stacks(scenario, watch)


def _critical(scenario: Scenario) -> str:
    """Simulate *scenario* and return its critical path as text."""
    from clustersim.scenarios.run.running import simulated
    from clustersim.simulator.analysis.critical_path import critical_path, slack
    from clustersim.simulator.analysis.critical_path_tables import lines, tables

    scenario.check_trains("critical path")
    with progress(f"simulating {scenario.name}") as watch, gc_paused():
        timeline = simulated(scenario, scenario.schedule(), watch)
        path = critical_path(timeline)
        return "\n\n".join(filter(None, ("\n".join(lines(path)), tables(path, slack(timeline)))))


def _operators(scenario: Scenario) -> str:
    """Simulate *scenario* and return the tables of its operators."""
    from clustersim.scenarios.results.operator_profile import tables

    return tables(_profile(scenario))


def _print_numbers(scenario: Scenario) -> None:
    """Print the operators of *scenario*, or of each of its variants, as JSON."""
    from clustersim.scenarios.results.operator_profile import summary

    found = [summary(_profile(one)) for one in scenario.runs]
    print_json(found if scenario.variants else found[0])


def _profile(scenario: Scenario) -> Profile:
    from clustersim.scenarios.results.operator_profile import profile
    from clustersim.scenarios.run.running import simulated

    scenario.check_trains("operators")
    with progress(f"simulating {scenario.name}") as watch, gc_paused():
        return profile(scenario, simulated(scenario, scenario.schedule(), watch))
