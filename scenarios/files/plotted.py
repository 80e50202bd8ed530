"""A result that can be plotted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scenarios.results.result import Result
from simulator.errors import ScenarioError, SimulatorError

if TYPE_CHECKING:
    from simulator.analysis.plot import Figure


@dataclass(frozen=True, repr=False)
class PlottedResult(Result):
    """A result with the charts of `scenarios.files.drawing`; a notebook shows its report and its timeline."""

    def _repr_html_(self) -> str:
        """Return the report and the timeline as HTML, the picture within it."""
        from html import escape

        return f'<pre style="line-height: 1.25">{escape(self.report())}</pre>{self._picture()}'

    def _picture(self) -> str:
        """Return the timeline as an image; empty if it cannot be drawn as one, e.g. of very many variants."""
        from base64 import b64encode
        from html import escape

        from simulator.analysis.plot.canvas import png

        try:
            data = b64encode(png(self.plot())).decode()
        except SimulatorError:
            return ""
        return f'<img alt="timeline of {escape(self.scenario.name)}" src="data:image/png;base64,{data}">'

    def plot(
        self,
        chart: str = "timeline",
        path: Path | str | None = None,
        *,
        ranks: Sequence[int] | None = None,
        window: tuple[float, float] | None = None,
        title: str = "",
    ) -> Figure:
        """Return *chart* as a figure; see `Result.plot`."""
        # matplotlib is loaded only to draw
        from scenarios.files import drawing
        from simulator.analysis import plot
        from simulator.analysis.files import suffix_of
        from simulator.analysis.plot.canvas import SUFFIXES

        if path is not None:
            suffix_of(Path(path), SUFFIXES)
        made = drawing.figures(self, chart, ranks, window, title)
        if len(made) > 1:
            raise ScenarioError(
                f"{self.scenario.name} has {len(made)} runs, each with a {chart} chart of its own; "
                f'take one, e.g. result.runs["{next(iter(made))}"].plot("{chart}")'
            )
        (make,) = made.values()
        figure = make()
        if path is not None:
            plot.write(figure, Path(path))
        return figure
