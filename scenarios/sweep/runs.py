"""The runs of a sweep: each point is a scenario of its own, executed here, in other processes or on a cluster."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scenarios import running
from scenarios.build.built import BuiltScenario
from scenarios.execution import Failure, execute
from scenarios.files.finite import check_finite
from scenarios.sweep.axes import Axis, points
from scenarios.sweep.rows import Row, Scalar, scalars
from simulator.errors import SimulatorError


@dataclass(frozen=True)
class Run:
    """A *scenario* with *changes* by dotted key, (value, text for messages), and the name of its *variant*, if any.

    *folder*: where the paths of its files begin.
    """

    scenario: BuiltScenario
    changes: Mapping[str, tuple[Any, str]]
    variant: str = ""
    folder: Path = Path()

    @property
    def values(self) -> dict[str, Any]:
        """The values by key."""
        return {key: value for key, (value, _) in self.changes.items()}


def runs(scenario: BuiltScenario, axes: Sequence[Axis], zipped: bool = False, remote: bool = False) -> Iterator[Run]:
    """Return the runs of *scenario*, or of each of its variants, at each point of *axes*.

    *remote*: the runs are executed in other folders. Raises `ScenarioError` with the first fault if no point can be
    read, such as for an unknown key.
    """
    # without what its check has built: that is too large to send between processes
    variants: Mapping[str, BuiltScenario] = scenario.variants or {"": scenario}
    bases = {name: replace(one, variants={}) for name, one in variants.items()}
    shown = {axis.key: axis.shown for axis in axes}
    every = [{key: (value, shown[key](value)) for key, value in values.items()} for values in points(axes, zipped)]
    folder = Path.cwd() if remote else Path()
    first: SimulatorError | None = None
    for changes in every:
        try:
            next(iter(bases.values())).check_keys(changes)
            break
        except SimulatorError as error:
            first = first or error
    else:
        if first is not None:
            raise first
    return (Run(base, changes, name, folder) for changes in every for name, base in bases.items())


def executed(several: Sequence[Run], processes: int = 1, on: str = "") -> Generator[tuple[int, Row], None, None]:
    """Yield (index, row) for each of *several* runs as they end; a run that fails has a row with its message.

    *processes* and *on*: see `scenarios.execution.execute`.
    """
    with closing(execute(((numbers, run) for run in several), processes, on)) as ended:
        for index, outcome in ended:
            values, variant = several[index].values, several[index].variant
            if isinstance(outcome, Failure):
                yield index, Row(values, variant, error=outcome.message)
            else:
                yield index, Row(values, variant, outcome)


def numbers(run: Run) -> dict[str, Scalar]:
    """Return every scalar of the result of *run* by its dotted name."""
    summary = running.run(run.scenario.overridden(run.changes, run.folder)).summary()
    check_finite(summary)
    return scalars(summary)
