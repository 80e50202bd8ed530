"""The result of a sweep: its rows, as a report, a table, a pandas frame, a file and a chart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scenarios.sweep import report, writing
from scenarios.sweep.axes import Axis
from scenarios.sweep.rows import Row, Scalar, columns
from simulator.errors import SimulatorError

if TYPE_CHECKING:
    from simulator.analysis.plot import Figure


@dataclass(frozen=True, repr=False)
class Sweep:
    """The *rows* of the runs of a scenario called *name* over *axes*, in the order of its points."""

    name: str
    axes: tuple[Axis, ...]
    rows: tuple[Row, ...]

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
        return report.text(self.name, self.rows)

    def write(self, path: Path | str) -> None:
        """Write the table to *path*, a ``.csv``, ``.csv.gz`` or ``.parquet``. Raises `SimulatorError`."""
        writing.write(self.columns, self.table(), Path(path))

    def plot(self, path: Path | str | None = None, x: str = "", y: str = "", hue: str = "") -> Figure:
        """Return column *y* over *x* as a figure, a line for each value of *hue*; also write it to *path* if given.

        If *x* and *y* both are keys of the sweep, it is a heat map of *hue*. Without *x* and *y*, the step time is
        drawn, over one key as a line, over two as a heat map. The best is marked. *path*: a ``.png``, ``.svg`` or
        ``.pdf``. Raises `SimulatorError`.
        """
        # matplotlib is loaded only to draw
        from scenarios.sweep import chart
        from simulator.analysis import plot

        figure = chart.figure(self.name, self.axes, self.rows, chart.Plot(x, y, hue))
        if path is not None:
            plot.write(figure, Path(path))
        return figure
