"""The parts of which a page is made; text stays plain here, and the template of the page escapes all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from clustersim.simulator.analysis.timeline import Floats, Integers
from clustersim.simulator.reading.dataclass import dataclass


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    kind: str = "text"


@dataclass(frozen=True)
class Code:
    """Lines whose spaces are kept."""

    text: str
    kind: str = "code"


class Cell(NamedTuple):
    """The *text* of a cell, and what a table is sorted by: a number, or None for the text."""

    text: str
    order: float | None = None


@dataclass(frozen=True)
class PageTable:
    """*rows* under *header*; a reader sorts them by a click on a column."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    kind: str = "table"

    @classmethod
    def of_text(cls, header: Sequence[str], rows: Sequence[Sequence[str]]) -> PageTable:
        """Return a table of texts."""
        return cls(header, [[Cell(text) for text in row] for row in rows])


@dataclass(frozen=True)
class Chart:
    """A figure of plotly: its *traces* and its *layout*; *title* says what it shows; *height* in pixels."""

    title: str
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    height: int = 340
    kind: str = "chart"


@dataclass(frozen=True)
class Lane:
    """One row of a Gantt chart: spans in order of *begin*, all arrays of one length, times in s.

    *paint* and *text* are places in the lists of the chart. *count*: the ops that a span stands for. *busy*: the
    time that they take together (s).
    """

    name: str
    ready: Floats
    begin: Floats
    end: Floats
    paint: Integers
    text: Integers
    count: Integers
    busy: Floats


@dataclass(frozen=True)
class Gantt:
    """A Gantt chart that draws only what is in view: its *lanes*, the (label, fill) of *paints*, and *texts* of ops."""

    title: str
    lanes: Sequence[Lane]
    paints: Sequence[tuple[str, str]]
    texts: Sequence[str]
    window: tuple[float, float]
    kind: str = "gantt"


Part = Text | Code | PageTable | Chart | Gantt


@dataclass(frozen=True)
class PageSection:
    """The *parts* under the heading *title*; *key* names the section in links."""

    key: str
    title: str
    parts: Sequence[Part]
