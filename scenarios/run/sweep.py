"""A sweep: the runs of one scenario at each point of its axes, and their result.

Runs are executed here, in other processes or on a cluster. The result is a report, a table, a file and a chart.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.results.result import check_finite
from clustersim.scenarios.run import running, sweep_report, sweep_table
from clustersim.scenarios.run.execution import execute
from clustersim.scenarios.run.processes import Failure
from clustersim.scenarios.run.sweep_table import Scalar, SweepAxis, SweepRow, columns, points, scalars
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import SimulatorError

if TYPE_CHECKING:
    from clustersim.simulator.charts.figures import Figure


@dataclass(frozen=True, repr=False)
class Sweep:
    """The *rows* of the runs of a scenario called *name* over *axes*, in the order of its points."""

    name: str
    axes: tuple[SweepAxis, ...]
    rows: tuple[SweepRow, ...]

    def __repr__(self) -> str:
        return f"<Sweep of {self.name[:80]}: {len(self.rows):,} runs over {len(self.axes)} keys>"

    @property
    def failed(self) -> bool:
        """True if no run has a result."""
        return all(row.error is not None for row in self.rows)

    @property
    def columns(self) -> list[str]:
        """The columns: keys of the sweep, ``variant`` if there are several, ``error``, and the result's dotted names.

        Names end with their units: ``_s`` seconds, ``_bytes`` bytes, ``_per_s`` each second; ``algbw`` and ``busbw``
        are bytes/s, and ``mfu``, ``hfu``, ``bubble_fraction`` and ``link_utilisation`` shares of 1.
        """
        return columns(self.rows)

    def table(self) -> list[dict[str, Scalar]]:
        """Return the rows as mappings with all `columns`; None where a row has no value."""
        every = self.columns
        return [{column: cells.get(column) for column in every} for cells in (row.cells() for row in self.rows)]

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame. Raises `SimulatorError` if pandas is not installed."""
        try:
            import pandas as pd
        except ImportError:
            raise SimulatorError(
                "a frame needs pandas, which is not installed: pip install pandas, or take the rows of table()"
            ) from None
        return pd.DataFrame(self.table(), columns=self.columns)

    def summary(self) -> dict[str, Any]:
        """Return what `sweep --json` prints."""
        return {"name": self.name, "rows": [row.as_json() for row in self.rows]}

    def report(self) -> str:
        """Return the text that `sweep` prints: a line for each run, the best marked."""
        return sweep_report.text(self.name, self.rows)

    def write(self, path: Path | str) -> None:
        """Write the table to *path*, a ``.csv``, ``.csv.gz`` or ``.parquet``. Raises `SimulatorError`."""
        sweep_table.write(self.columns, self.table(), Path(path))

    def plot(self, path: Path | str | None = None, x: str = "", y: str = "", hue: str = "") -> Figure:
        """Return column *y* over *x* as a figure, a line for each value of *hue*; also write it to *path* if given.

        If *x* and *y* both are keys of the sweep, it is a heat map of *hue*. Without *x* and *y*, the step time is
        drawn, over one key as a line, over two as a heat map. The best is marked. *path*: a ``.png``, ``.svg`` or
        ``.pdf``. Raises `SimulatorError`.
        """
        # matplotlib is loaded only to draw
        from clustersim.scenarios.run import sweep_report as sweep_chart
        from clustersim.simulator.charts import figures

        figure = sweep_chart.sweep_figure(self.name, self.axes, self.rows, sweep_chart.Plot(x, y, hue))
        if path is not None:
            figures.write(figure, Path(path))
        return figure


@dataclass(frozen=True)
class SweepRun:
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


def runs(
    scenario: BuiltScenario, axes: Sequence[SweepAxis], zipped: bool = False, remote: bool = False
) -> Iterator[SweepRun]:
    """Return the runs of *scenario*, or of each of its variants, at each point of *axes*.

    *remote*: the runs are executed in other folders. Raises `ScenarioError` with the first fault if no point can be
    read, such as for an unknown key.
    """
    # without what its check has built: that is too large to send between processes
    variants: Mapping[str, BuiltScenario] = scenario.variants or {"": scenario}
    for one in variants.values():
        if one.specification.queue is None:
            one.check_one_job()
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
    return (SweepRun(base, changes, name, folder) for changes in every for name, base in bases.items())


def executed(
    several: Sequence[SweepRun], processes: int = 1, on: str = ""
) -> Generator[tuple[int, SweepRow], None, None]:
    """Yield (index, row) for each of *several* runs as they end; a run that fails has a row with its message.

    *processes* and *on*: see `scenarios.run.execution`.
    """
    with closing(execute(((numbers, run) for run in several), processes, on)) as ended:
        for index, outcome in ended:
            values, variant = several[index].values, several[index].variant
            if isinstance(outcome, Failure):
                yield index, SweepRow(values, variant, error=outcome.message)
            else:
                yield index, SweepRow(values, variant, outcome)


def numbers(run: SweepRun) -> dict[str, Scalar]:
    """Return every scalar of the result of *run* by its dotted name."""
    summary = running.run(run.scenario.overridden(run.changes, run.folder)).summary()
    check_finite(summary)
    # a row has the numbers of the run, not those of each job of a queue
    summary.get("queue", {}).pop("jobs", None)
    return scalars(summary)
