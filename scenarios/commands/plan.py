"""`clustersim plan` finds the best way to train, and says why."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.scenarios.commands.application import Settings, command
from clustersim.scenarios.commands.runner import interruptible, print_answer, variant_of
from clustersim.scenarios.commands.terminal import progress, say
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError

if TYPE_CHECKING:
    from clustersim.scenarios.commands.runner import Answer
    from clustersim.scenarios.scenario import Scenario
    from clustersim.scenarios.search.planner import Watch


@dataclass(frozen=True)
class ModelToPlan:
    """The options of a model to plan for, in place of a scenario."""

    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Without a scenario: a model, or a Hugging Face config.json.")
    ] = None
    cluster: Annotated[str | None, typer.Option(metavar="CLUSTER", help="Without a scenario: a cluster.")] = None
    nodes: Annotated[int, typer.Option(min=1, help="Without a scenario: nodes of the cluster.")] = 1
    batch: Annotated[int | None, typer.Option(min=1, help="Without a scenario: samples of a step.")] = None
    tokens: Annotated[str | None, typer.Option(help="Tokens of the whole run, e.g. 1T.")] = None

    def loaded(self, scenario: str | None, settings: list[str]) -> Scenario:
        """Return the scenario *scenario*, or else that of the model, with *settings*. Raises `ScenarioError`."""
        from clustersim.scenarios.defaults import to_plan
        from clustersim.scenarios.scenario import Scenario
        from clustersim.scenarios.search.planner import loaded

        if scenario is not None and (self.model or self.cluster or self.batch):
            raise ScenarioError(
                "give a scenario, or --model, --cluster and --batch, not both; --set changes a scenario"
            )
        if scenario is not None:
            return loaded(scenario, [*settings, *([f"training.tokens={self.tokens}"] if self.tokens else [])])
        if self.model is None or self.cluster is None or self.batch is None:
            raise ScenarioError(
                "give a scenario, or --model, --cluster and --batch, "
                "e.g. clustersim plan --model llama3_8b --cluster dgx_h100 --nodes 4 --batch 512"
            )
        given = to_plan(self.model, self.cluster, self.nodes, self.batch, self.tokens, settings)
        return Scenario.model_validate(given, settings)


@dataclass(frozen=True)
class PlanOptions:
    """The options that change the section plan of the scenario."""

    search: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B", help="Values to try: auto or a list; may be given several times."),
    ] = None
    method: Annotated[str | None, typer.Option(help="How candidates are found; default exhaustive.")] = None
    objective: Annotated[
        str | None, typer.Option(help="step_time (default), cost, energy, memory or tokens_per_currency.")
    ] = None
    memory_margin: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of a GPU's memory that is left free, e.g. 0.1.")
    ] = None
    simulate: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="How many of the best are simulated, or all; default: those that may be the best, 20 at most.",
        ),
    ] = None
    top: Annotated[int | None, typer.Option(min=1, metavar="K", help="How many are listed; default 10.")] = None

    def settings(self) -> list[str]:
        """Return the options as texts ``key.path=value``. Raises `ScenarioError`."""
        made = []
        for setting in self.search or []:
            key, equals, values = setting.partition("=")
            if not equals or not values:
                raise ScenarioError(f"--search {setting}: write it as in --search tp=1,2,4 or --search tp=auto")
            listed = values if values == "auto" or values.startswith("[") else f"[{values}]"
            made.append(f"plan.search.{key}={listed}")
        others = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "search"}
        return made + [f"plan.{key}={value}" for key, value in others.items() if value is not None]


@dataclass(frozen=True)
class Question:
    """The options that ask another question than for the best plan; one of them at most."""

    largest: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The largest micro_batch_size, batch, sequence or model that fits."),
    ] = None
    days: Annotated[
        float | None, typer.Option(min=0.001, metavar="D", help='The fewest nodes that train in D days: "D days".')
    ] = None
    target: Annotated[
        str | None,
        typer.Option(metavar="T", help='The fewest nodes that meet "30 days", "$2M" or "50 tokens/s/GPU".'),
    ] = None

    clusters: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="With --target: also the least of these clusters of the catalogue, NAME or NAME=PRICE of a GPU-hour.",
        ),
    ] = None

    @property
    def asked(self) -> bool:
        """Whether there is a question."""
        return (self.largest, self.days, self.target) != (None, None, None)

    def check(self) -> None:
        """Raise `ScenarioError` if there are several questions, or an unknown key or target."""
        asked = [f"--{name}" for name in ("largest", "days", "target") if getattr(self, name) is not None]
        if len(asked) > 1:
            raise ScenarioError(f"{' and '.join(asked)} are {len(asked)} questions; give one")
        if self.clusters is not None and self.days is None and self.target is None:
            raise ScenarioError("--clusters are for --target and --days")
        if self.asked:
            self.answerer()

    def answerer(self) -> Callable[[Scenario, int, Watch], Answer]:
        """Return the function that answers for a scenario, with processes, watched. Raises `ScenarioError`."""
        from clustersim.scenarios.search.least_cluster import least_cluster
        from clustersim.scenarios.search.planned_sizes import Target, target
        from clustersim.scenarios.search.questions import largest, measure, other_clusters

        if self.largest is not None:
            what = measure(self.largest)
            return lambda scenario, processes, watch: largest(scenario, what, processes, watch)
        aim = target(self.target) if self.target is not None else Target("days", self.days or 0.0)
        others = other_clusters(self.clusters) if self.clusters is not None else []
        return lambda scenario, processes, watch: least_cluster(scenario, aim, processes, watch, others)


@command()
def plan(
    scenario: Annotated[
        str | None, typer.Argument(metavar="SCENARIO", help="Path of a scenario file, or the name of a shipped one.")
    ] = None,
    *,
    of_model: ModelToPlan,
    variant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The variant of a scenario that has several; else what they change."),
    ] = None,
    settings: Settings = None,
    space: PlanOptions,
    question: Question,
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
    question.check()
    if question.asked and (on or output):
        raise ScenarioError(f"{'--on' if on else '-o'} is for the best plan, not for --largest, --days and --target")
    seeded = [f"simulation.seed={seed}"] if seed is not None else []
    given = of_model.loaded(scenario, [*(settings or []), *space.settings(), *seeded])
    loaded = _without_variants(given, variant)
    kept = f"; the same command goes on from {output}" if output else "; with -o DIR a plan can go on"
    with interruptible(f"{loaded.name} was not planned to its end{kept}"), progress(f"planning {loaded.name}") as shown:
        if question.asked:
            print_answer(question.answerer()(loaded, jobs, shown), as_json)
        else:
            _plan(loaded, jobs, on, output, shown, as_json)


def _without_variants(loaded: Scenario, name: str | None) -> Scenario:
    """Return the variant *name* of the scenario *loaded*, or what its variants change, and say which."""
    if name is not None:
        found = variant_of(loaded, name)
        say(f"planning the variant {name} of {loaded.name}", sys.stderr)
        return found
    if not loaded.variants:
        return loaded
    first = next(iter(loaded.variants))
    try:
        found = loaded.without_variants()
    except ScenarioError as error:
        message = f"{loaded.name} cannot be planned without one of its variants, e.g. --variant '{first}': {error}"
        raise ScenarioError(message) from None
    say(
        f"planning {loaded.name} without its {len(loaded.variants)} variants; --variant '{first}' plans one", sys.stderr
    )
    return found


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
