"""`clustersim compare` runs scenarios and prints only what differs: keys, numbers and breakdowns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.application import app
from scenarios.commands.arguments import Settings

if TYPE_CHECKING:
    from scenarios.results.result import Result


HIDDEN = {"name", "description", "variants", "table", "expect", "source", "sources"}
"""Keys without influence on the numbers."""


@app.command()
def compare(
    scenarios: Annotated[
        list[str], typer.Argument(metavar="SCENARIO", help="Scenarios, or directories that `run` wrote.")
    ],
    settings: Settings = None,
    output: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="Draw the breakdowns as bars.")] = None,
) -> None:
    """Compare scenarios: what differs, and where the time went. Directories that run wrote are simulated again."""
    from scenarios.results.variants_result import side_by_side
    from simulator.analysis import text
    from simulator.errors import ScenarioError

    results = _results(scenarios, settings)
    if len(results) < 2:
        raise ScenarioError("compare needs at least two scenarios, or one with variants")
    sections = [text.table(_differences(results), ["", *results], "l")]
    print("\n\n".join([*sections, *side_by_side(results)]))
    if output is not None:
        from simulator.analysis.plot import draw_breakdowns

        draw_breakdowns({name: parts for name, one in results.items() for parts in one.breakdowns.values()}, output)
        print(f"\nwrote {output}")


def _results(scenarios: list[str], settings: list[str] | None) -> dict[str, Result]:
    """Return the results by name, one for each variant; equal names are numbered."""
    from scenarios.commands.evaluating import print_warnings
    from scenarios.commands.progress import progress
    from scenarios.results.variants_result import VariantsResult
    from scenarios.scenario import Scenario

    results: dict[str, Result] = {}
    for given, scenario in [(name, Scenario.load(name, options=settings)) for name in scenarios]:
        with progress(f"simulating {scenario.name}") as watch:
            result = scenario.run(watch)
        if not settings:
            print_warnings(given, result)
        several = result.variants if isinstance(result, VariantsResult) else {scenario.name: result}
        for name, one in several.items():
            number = sum(other.partition(" #")[0] == name for other in results) + 1
            results[name if number == 1 else f"{name} #{number}"] = one
    return results


def _differences(results: dict[str, Result]) -> list[list[str]]:
    """Return a row for each key, presets included, whose values differ between *results*."""
    values = [_flat(result.scenario.document.data) for result in results.values()]
    keys = dict.fromkeys(key for one in values for key in one)
    rows = [[key, *(one.get(key, "-") for one in values)] for key in keys if not HIDDEN & set(key.split("."))]
    return [row for row in rows if len(set(row[1:])) > 1]


def _flat(data: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(data, dict):
        return {
            key: value
            for name, inner in data.items()
            for key, value in _flat(inner, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    if isinstance(data, bool) or data is None:
        return {prefix: "none" if data is None else str(data).lower()}
    return {prefix: ", ".join(map(str, data)) if isinstance(data, list) else str(data)}
