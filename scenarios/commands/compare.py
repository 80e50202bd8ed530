"""`clustersim compare` runs scenarios and prints only what differs: keys, numbers and breakdowns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.scenarios.commands.application import Jobs, Settings, command, load
from clustersim.scenarios.commands.runner import numbered, simulated_by_name
from clustersim.scenarios.commands.terminal import progress
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.gc_paused import gc_paused

if TYPE_CHECKING:
    from clustersim.scenarios.campaign.campaign import Simulated

TOO_FEW = "compare needs at least two scenarios, or one with variants"


@command()
def compare(
    scenarios: Annotated[
        list[str], typer.Argument(metavar="SCENARIO", help="Scenarios, or directories that `run` wrote.")
    ],
    settings: Settings = None,
    jobs: Jobs = 1,
    output: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="Draw the breakdowns as bars.")] = None,
    campaigns: Annotated[
        bool, typer.Option("--campaign", help="Compare whole training runs: failures, checkpoints, days, cost.")
    ] = False,
    repeats: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Samples of each campaign, in place of campaign.repeats.")
    ] = None,
) -> None:
    """Compare scenarios: what differs, and where the time went. Directories that run wrote are simulated again."""
    from clustersim.scenarios.results.result_kinds import differences, side_by_side
    from clustersim.simulator.reading import plain_text

    if campaigns:
        if output is not None or jobs > 1:
            raise ScenarioError("--campaign prints a table; -o and -j are for steps")
        _print_campaigns(scenarios, settings, repeats)
        return
    if repeats is not None:
        raise ScenarioError(f"--repeats {repeats} is of campaigns; give --campaign too")
    results = simulated_by_name(scenarios, settings, jobs)
    if len(results) < 2:
        raise ScenarioError(TOO_FEW)
    sections = [plain_text.table(differences(results), ["", *results], "l")]
    print("\n\n".join([*sections, *side_by_side(results)]))
    if all(one.scenario.specification.campaign is not None for one in results.values()):
        print("\nnext: the same with --campaign compares the whole training runs")
    if output is not None:
        from clustersim.simulator.charts.figures import draw_breakdowns

        draw_breakdowns({name: parts for name, one in results.items() for parts in one.breakdowns.values()}, output)
        print(f"\nwrote {output}")


def _print_campaigns(scenarios: list[str], settings: list[str] | None, repeats: int | None) -> None:
    """Print what differs between the campaigns of *scenarios*, and their numbers side by side."""
    from clustersim.scenarios.campaign.campaign import run
    from clustersim.scenarios.campaign.report import side_by_side
    from clustersim.scenarios.results.result_kinds import differences
    from clustersim.simulator.reading import plain_text

    loaded = [load(name, settings) for name in scenarios]
    runs = [one for scenario in loaded for one in scenario.runs]
    if len(runs) < 2:
        raise ScenarioError(TOO_FEW)
    made: list[tuple[str, Simulated]] = []
    with progress(f"simulating {len(runs)} campaigns", parts=len(runs)) as shown, gc_paused():
        for one in runs:
            made.append((one.name, run(one, repeats, shown)))
            shown.advance()
    found = numbered(made)
    steps = {name: one.phases[-1].result for name, one in found.items()}
    print(f"{plain_text.table(differences(steps), ['', *found], 'l')}\n\n{side_by_side(found)}")
