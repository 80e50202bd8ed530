"""`clustersim validate` replays scenarios on real processes, and prints the simulation beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.scenarios.commands.application import AsJson, OneScenario, Settings, command, load
from clustersim.scenarios.commands.runner import print_of_runs
from clustersim.scenarios.commands.terminal import progress
from clustersim.simulator.reading.errors import ScenarioError

if TYPE_CHECKING:
    from clustersim.scenarios.accuracy.validation import ReplayOptions, Validation
    from clustersim.scenarios.scenario import Scenario
    from clustersim.simulator.replay.testbed import Testbed

BACKENDS = ("gloo", "nccl")
COMPUTE = ("sleep", "spin", "kernels")


@command()
def validate(
    scenario: OneScenario,
    backend: Annotated[str, typer.Option(help="gloo (any machine), or nccl (a GPU for each rank).")] = "gloo",
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Replay on so many ranks, each with the work it has (the scenario's).")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions after a warm-up; the median counts.")] = 3,
    compute: Annotated[
        str, typer.Option(help="sleep or spin as long as the model says, or run the kernels.")
    ] = "sleep",
    scale: Annotated[
        float | None, typer.Option(help="Factor on all that is communicated (1, or what memory allows).")
    ] = None,
    testbed: Annotated[
        bool, typer.Option("--testbed", help="Build the scenario's cluster, a tree, as a real network; needs root.")
    ] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Give up after so long.")] = 300.0,
    settings: Settings = None,
    as_json: AsJson = False,
    output: Annotated[
        Path | None, typer.Option("-o", metavar="DIR", help="Where to write. Else runs/NAME, or runs/NAME-2 ...")
    ] = None,
) -> None:
    """Replay a scenario on real torch.distributed; print simulated beside measured, and draw both."""
    from clustersim.scenarios.accuracy.validation import ReplayOptions
    from clustersim.scenarios.results.run_folder import free_folder

    _hold(backend, BACKENDS, "--backend")
    _hold(compute, COMPUTE, "--compute")
    _hold_positive(scale, "--scale")
    _hold_positive(timeout, "--timeout")
    loaded = load(scenario, settings)
    options = ReplayOptions(backend, compute, repeat, scale, timeout)
    done: list[Validation] = []
    own = Path("runs") / loaded.name
    folder = output or free_folder(own)
    for one in _sized(loaded, ranks):
        validation = _validated(one, options, testbed, folder)
        if validation is None:
            # under torchrun only rank 0 reports
            return
        done.append(validation)
        _tell(validation, loaded, folder if output or not as_json else None, quietly=as_json)
    if as_json:
        print_of_runs(loaded, [one.summary() for one in done])
    elif folder not in (output, own):
        print(f"{own} holds another run and stays as it is")


def _tell(validation: Validation, scenario: Scenario, folder: Path | None, *, quietly: bool) -> None:
    """Print the report of a validation of *scenario*, and write it into *folder*."""
    import sys

    from clustersim.scenarios.accuracy.validation import validation_report, write

    if not quietly:
        print(validation_report(validation))
    for path in write(validation, folder, scenario.name if scenario.variants else "") if folder else ():
        print(f"wrote {path}", file=sys.stderr if quietly else sys.stdout)


def _hold(value: str, choices: tuple[str, ...], option: str) -> None:
    from clustersim.simulator.reading.validation import listed, near

    if value not in choices:
        hint = near(value, choices)
        raise ScenarioError(f"{option} {value}: must be {listed(choices)}" + (f"; {hint}" if hint else ""))


def _hold_positive(value: float | None, option: str) -> None:
    from math import isfinite

    if value is not None and not (value > 0 and isfinite(value)):
        raise ScenarioError(f"{option} {value:g}: must be above 0")


def _sized(scenario: Scenario, ranks: int | None) -> Iterator[Scenario]:
    """Yield the scenario, or its variants, on *ranks* ranks if given."""
    from clustersim.scenarios.accuracy.validation import resized

    for one in scenario.runs:
        yield one if ranks is None else resized(one, ranks)


def _validated(scenario: Scenario, options: ReplayOptions, testbed: bool, folder: Path) -> Validation | None:
    """Return the validation; what a replay measured before it failed is written into *folder*."""
    from clustersim.scenarios.accuracy.validation import validate as replayed
    from clustersim.scenarios.accuracy.validation import with_spans_kept
    from clustersim.simulator.replay.replay import BrokenReplayError

    try:
        with _built(scenario, testbed) as built, progress(f"validating {scenario.name}") as watch:
            return replayed(scenario, options, built, watch)
    except BrokenReplayError as error:
        raise with_spans_kept(error, folder) from None


@contextmanager
def _built(scenario: Scenario, testbed: bool) -> Iterator[Testbed | None]:
    """Yield a testbed, if it is wanted, that exists as long as the context."""
    from clustersim.simulator.replay.testbed import build

    if not testbed:
        yield None
        return
    with build(scenario.cluster(), scenario.derived.devices) as built:
        yield built
