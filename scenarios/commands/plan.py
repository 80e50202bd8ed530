"""`clustersim plan` finds the best way to train, and says why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim.scenarios.commands.application import Settings, app
from clustersim.scenarios.commands.runner import interruptible, print_answer
from clustersim.scenarios.commands.terminal import progress

if TYPE_CHECKING:
    from clustersim.scenarios.scenario import Scenario
    from clustersim.scenarios.search.planner import Watch


@app.command()
def plan(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="SCENARIO", help="Path of a scenario file, or the name of a shipped one."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Without a scenario: a model, or a Hugging Face config.json.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="CLUSTER", help="Without a scenario: a cluster.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Without a scenario: nodes of the cluster.")] = 1,
    batch: Annotated[int | None, typer.Option(min=1, help="Without a scenario: samples of a step.")] = None,
    tokens: Annotated[str | None, typer.Option(help="Tokens of the whole run, e.g. 1T.")] = None,
    settings: Settings = None,
    search: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B", help="Values to try: auto or a list; may be given several times."),
    ] = None,
    method: Annotated[str | None, typer.Option(help="How candidates are found; default exhaustive.")] = None,
    objective: Annotated[
        str | None, typer.Option(help="step_time (default), cost, energy, memory or tokens_per_currency.")
    ] = None,
    memory_margin: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of a GPU's memory that is left free, e.g. 0.1.")
    ] = None,
    simulate: Annotated[
        str | None, typer.Option(metavar="N", help="How many of the best are simulated, or all; default 20.")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, metavar="K", help="How many are listed; default 10.")] = None,
    largest: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The largest micro_batch_size, batch, sequence or model that fits."),
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0.001, metavar="D", help="The fewest nodes that train in D days.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the simulations.")] = None,
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, help="Processes that share the candidates.")] = 1,
    on: Annotated[str, typer.Option(metavar="ADDRESS", help="A Dask scheduler, e.g. tcp://host:8786.")] = "",
    output: Annotated[
        Path | None,
        typer.Option("-o", metavar="DIR", help="Write scenarios, answer and picture, and go on where a plan stopped."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON, and nothing else.")] = False,
) -> None:
    """Find the best way to train: degrees, schedule, micro-batch, recomputation, sharding, with reasons."""
    from clustersim.simulator.reading.errors import ScenarioError

    options = {
        "search": search,
        "method": method,
        "objective": objective,
        "memory_margin": memory_margin,
        "simulate": simulate,
        "top": top,
    }
    given = [*(settings or []), *_settings(options, tokens if scenario else None, seed)]
    if scenario is not None and (model or cluster or batch):
        raise ScenarioError("give a scenario, or --model, --cluster and --batch, not both; --set changes a scenario")
    loaded = _loaded(scenario, model, cluster, nodes, batch, tokens, given)
    if largest is not None and days is not None:
        raise ScenarioError("--largest and --days are two questions; give one")
    kept = f"; the same command goes on from {output}" if output else "; with -o DIR a plan can go on"
    with (
        interruptible(f"{loaded.name} was not planned to its end{kept}"),
        progress(f"planning {loaded.name}") as shown,
    ):
        if largest is not None or days is not None:
            _ask(loaded, largest, days, jobs, shown, as_json)
        else:
            _plan(loaded, jobs, on, output, shown, as_json)


def _settings(options: dict[str, Any], tokens: str | None, seed: int | None) -> list[str]:
    """Return the options of the command as texts ``key.path=value``."""
    from clustersim.simulator.reading.errors import ScenarioError

    made = []
    for setting in options.pop("search") or []:
        key, equals, values = setting.partition("=")
        if not equals or not values:
            raise ScenarioError(f"--search {setting}: write it as in --search tp=1,2,4 or --search tp=auto")
        listed = values if values == "auto" or values.startswith("[") else f"[{values}]"
        made.append(f"plan.search.{key}={listed}")
    made += [f"plan.{key}={value}" for key, value in options.items() if value is not None]
    made += [f"training.tokens={tokens}"] if tokens else []
    return made + ([f"simulation.seed={seed}"] if seed is not None else [])


def _loaded(
    scenario: str | None,
    model: str | None,
    cluster: str | None,
    nodes: int,
    batch: int | None,
    tokens: str | None,
    settings: list[str],
) -> Scenario:
    from clustersim.scenarios.defaults import to_plan
    from clustersim.scenarios.scenario import Scenario
    from clustersim.scenarios.search.planner import loaded
    from clustersim.simulator.reading.errors import ScenarioError

    if scenario is not None:
        return loaded(scenario, settings)
    if model is None or cluster is None or batch is None:
        raise ScenarioError(
            "give a scenario, or --model, --cluster and --batch, "
            "e.g. clustersim plan --model llama3_8b --cluster dgx_h100 --nodes 4 --batch 512"
        )
    return Scenario.model_validate(to_plan(model, cluster, nodes, batch, tokens, settings), settings)


def _ask(loaded: Scenario, what: str | None, days: float | None, jobs: int, shown: Watch, as_json: bool) -> None:
    """Answer one of the two further questions."""
    from clustersim.scenarios.search.feasible_sizes import KEYS, fewest, largest
    from clustersim.simulator.reading.errors import ScenarioError
    from clustersim.simulator.reading.validation import listed, near

    if what is not None and what not in KEYS:
        raise ScenarioError(
            f"--largest {what}: must be {listed(KEYS)}" + (f"; {hint}" if (hint := near(what, KEYS)) else "")
        )
    found = largest(loaded, what, jobs, shown) if what is not None else fewest(loaded, days or 0.0, jobs, shown)
    print_answer(found, as_json)


def _plan(loaded: Scenario, jobs: int, on: str, output: Path | None, shown: Watch, as_json: bool) -> None:
    """Plan, print the answer, and write it."""
    from clustersim.scenarios.search.answer import answer, write
    from clustersim.scenarios.search.planner import Planner

    found = answer(Planner(loaded, jobs, on, output, shown))
    paths = []
    if output is not None:
        shown.begin(f"writing {output}")
        paths = list(write(found, output))
    print_answer(found, as_json)
    if as_json:
        return
    for path in paths:
        print(f"wrote {path}")
    if output is not None:
        print(f"next: clustersim run {output / '01.yaml'}   or   clustersim compare {output / '01.yaml'} OTHER")
