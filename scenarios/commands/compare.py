"""`clustersim compare` runs scenarios and prints only what differs: keys, numbers and breakdowns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.application import app
from scenarios.commands.arguments import Jobs, Settings

if TYPE_CHECKING:
    from scenarios.results.result import Result
    from scenarios.scenario import Scenario


@app.command()
def compare(
    scenarios: Annotated[
        list[str], typer.Argument(metavar="SCENARIO", help="Scenarios, or directories that `run` wrote.")
    ],
    settings: Settings = None,
    jobs: Jobs = 1,
    output: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="Draw the breakdowns as bars.")] = None,
) -> None:
    """Compare scenarios: what differs, and where the time went. Directories that run wrote are simulated again."""
    from scenarios.results.differences import differences
    from scenarios.results.variants_result import side_by_side
    from simulator.analysis import text
    from simulator.errors import ScenarioError

    results = simulated_by_name(scenarios, settings, jobs)
    if len(results) < 2:
        raise ScenarioError("compare needs at least two scenarios, or one with variants")
    sections = [text.table(differences(results), ["", *results], "l")]
    print("\n\n".join([*sections, *side_by_side(results)]))
    if output is not None:
        from simulator.analysis.plot import draw_breakdowns

        draw_breakdowns({name: parts for name, one in results.items() for parts in one.breakdowns.values()}, output)
        print(f"\nwrote {output}")


def simulated_by_name(scenarios: list[str], settings: list[str] | None, jobs: int) -> dict[str, Result]:
    """Return the results by name, one for each variant; equal names are numbered."""
    from scenarios.commands.evaluating import print_warnings
    from scenarios.results.variants_result import VariantsResult
    from scenarios.scenario import Scenario

    loaded = [Scenario.load(name, options=settings) for name in scenarios]
    runs = [run for scenario in loaded for run in (scenario.variants.values() or [scenario])]
    ended = iter(_simulated(runs, jobs))
    results: dict[str, Result] = {}
    for given, scenario in zip(scenarios, loaded, strict=True):
        several = {name: next(ended) for name in scenario.variants or [scenario.name]}
        if not settings:
            whole = VariantsResult(scenario, several) if scenario.variants else several[scenario.name]
            print_warnings(given, whole)
        for name, one in several.items():
            number = sum(other.partition(" #")[0] == name for other in results) + 1
            results[name if number == 1 else f"{name} #{number}"] = one
    return results


def _simulated(runs: Sequence[Scenario], jobs: int) -> list[Result]:
    """Return the result of each of *runs*. Raises the error of the first that fails."""
    from contextlib import closing

    from scenarios.commands.progress import progress
    from scenarios.execution import Failure, execute
    from scenarios.scenario import Scenario

    results: dict[int, Result] = {}
    with progress(f"simulating {len(runs)} runs", parts=len(runs)) as shown:
        # another process cannot tell how far its simulation is
        function = Scenario.run if jobs > 1 else partial(Scenario.run, watch=shown)
        with closing(execute([(function, run) for run in runs], jobs)) as ended:
            for index, outcome in ended:
                if isinstance(outcome, Failure):
                    raise outcome.error()
                results[index] = outcome
                shown.advance()
    return [results[index] for index in range(len(runs))]
