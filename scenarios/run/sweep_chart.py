"""The chart of a sweep: a quantity over one key as lines, or over two keys as a heat map, with the best marked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clustersim.scenarios.results.charts import number_of
from clustersim.scenarios.run.sweep_report import best, dimension, less_is_better
from clustersim.scenarios.run.sweep_table import SweepAxis, SweepRow, as_text, columns
from clustersim.scenarios.specification.specification import RESULT
from clustersim.simulator.charts import figures
from clustersim.simulator.charts.canvas import style
from clustersim.simulator.charts.sweep import HeatMap, HeatMapCell, SweepPoint, SweepSeries, heat_map_chart, sweep_chart
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.validation import near

VARIANT = "variant"
STEP_TIME = "step_time_s"
LONGEST = 40
"""Characters of a value beside an axis."""


@dataclass(frozen=True)
class Plot:
    """What is drawn: columns *x* and *y*, and *hue*, the column that tells lines apart or the colour of a heat map."""

    x: str = ""
    y: str = ""
    hue: str = ""

    @staticmethod
    def of_text(text: str) -> Plot:
        """Return the plot of a text ``x:y`` or ``x:y:hue``. Raises `SimulatorError`."""
        parts = [part.strip() for part in text.split(":")]
        if len(parts) not in (2, 3) or not all(parts):
            raise SimulatorError(f"--plot {text}: write columns as x:y or x:y:hue, e.g. parallelism.tp:step_time_s")
        return Plot(*parts)


def check(chosen: Plot, axes: Sequence[SweepAxis]) -> None:
    """Raise `SimulatorError` if a sweep over *axes* has no chart as *chosen*; its results are not known yet."""
    keys = [axis.key for axis in axes]
    for axis in axes:
        if axis.key == chosen.x and len(axis.values) < 2 and chosen.y not in (*keys, VARIANT):
            raise SimulatorError(f"nothing to draw: {chosen.x} has one value")
    for column in filter(None, (chosen.x, chosen.y, chosen.hue)):
        if column not in (*keys, VARIANT) and column.partition(".")[0] not in (
            *RESULT,
            "result",
            "simulation",
            "error",
        ):
            _refuse(column, [*keys, *(key for key in RESULT if key != "variants")])


def figure(name: str, axes: Sequence[SweepAxis], rows: Sequence[SweepRow], chosen: Plot) -> figures.Figure:
    """Return what is *chosen* of the *rows* of a sweep of the scenario *name* over *axes* as a chart."""
    keys = [axis.key for axis in axes]
    chosen = _complete(chosen, keys)
    check(chosen, axes)
    known = columns(rows)
    for column in filter(None, (chosen.x, chosen.y, chosen.hue)):
        if column not in known:
            _refuse(column, known)
    if chosen.x in (*keys, VARIANT) and chosen.y in (*keys, VARIANT):
        _check_number(chosen.hue, rows)
        title = f"{name}: {chosen.hue} over {chosen.x} and {chosen.y}"
        with style():
            return heat_map_chart(_heat_map(rows, chosen), title)
    _check_number(chosen.y, rows)
    with style():
        return sweep_chart(_lines(rows, chosen, keys), f"{name}: {chosen.y} over {chosen.x}")


def _complete(chosen: Plot, keys: Sequence[str]) -> Plot:
    """Return *chosen* with what it leaves open: the keys of the sweep, and the step time."""
    if not chosen.x and len(keys) > 2:
        raise SimulatorError(f"a sweep over {len(keys)} keys has no chart of its own; name x, y and hue")
    x = chosen.x or keys[0]
    y = chosen.y or (keys[1] if len(keys) == 2 and not chosen.x else STEP_TIME)
    both = {x, y} <= {*keys, VARIANT}
    return Plot(x, y, chosen.hue or (STEP_TIME if both else ""))


def _refuse(column: str, known: Iterable[str]) -> None:
    known = list(known)
    last = [one for one in known if one.rpartition(".")[2] == column]
    hint = f'did you mean "{last[0]}"?' if last else near(column, known)
    raise SimulatorError(
        f'the sweep has no column "{column}"' + (f"; {hint}" if hint else f"; there are {', '.join(known)}")
    )


def _check_number(column: str, rows: Sequence[SweepRow]) -> None:
    if not any(_value(row, column) is not None for row in rows):
        raise SimulatorError(f'nothing to draw: no run has a number "{column}"')


def _value(row: SweepRow, column: str) -> float | None:
    value = row.cells().get(column)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _lines(rows: Sequence[SweepRow], chosen: Plot, keys: Sequence[str]) -> SweepSeries:
    """Return a line for each value of hue, or for each combination of the other keys that have several values."""
    others = [chosen.hue] if chosen.hue else [key for key in (*keys, VARIANT) if key != chosen.x]
    varying = [key for key in others if len({_text(row, key) for row in rows}) > 1]
    drawn = [row for row in rows if _value(row, chosen.y) is not None]
    places, labels, unit = _places(drawn, chosen.x)
    first = best(rows, chosen.y)
    series: dict[str, list[SweepPoint]] = {}
    for row in drawn:
        line = ", ".join(f"{key.rpartition('.')[2]} {_text(row, key)}" for key in varying)
        height = {chosen.y: _value(row, chosen.y) or 0.0}
        series.setdefault(line, []).append(SweepPoint(places[_text(row, chosen.x)], height, row.fits, row is first))
    return SweepSeries(chosen.x, unit, series, labels, {chosen.y: dimension(chosen.y)})


def _places(rows: Sequence[SweepRow], column: str) -> tuple[dict[str, float], Sequence[str], str]:
    """Return the place on x of each value of *column*, names of places if values are no numbers, and the dimension."""
    values = {_text(row, column): row.cells().get(column) for row in rows}
    found = {text: number_of(value) for text, value in values.items()}
    numbers = {text: number for text, number in found.items() if number is not None}
    if len(numbers) == len(values) and len({unit for _, unit in numbers.values()}) == 1:
        unit = next(iter(numbers.values()))[1] or dimension(column)
        return {text: number for text, (number, _) in numbers.items()}, (), unit
    return {text: float(place) for place, text in enumerate(values)}, list(map(_label, values)), ""


def _heat_map(rows: Sequence[SweepRow], chosen: Plot) -> HeatMap:
    """Return a cell for each pair of values; of several runs in a cell the best that fits in memory is drawn."""
    quantity = chosen.hue
    across = list(dict.fromkeys(_text(row, chosen.x) for row in rows))
    down = list(dict.fromkeys(_text(row, chosen.y) for row in rows))
    groups: dict[tuple[str, str], list[SweepRow]] = {}
    for row in rows:
        groups.setdefault((_text(row, chosen.y), _text(row, chosen.x)), []).append(row)
    first = best(rows, quantity)
    if max(map(len, groups.values())) > 1 and less_is_better(quantity) is None:
        raise SimulatorError(f"several runs share a cell of {chosen.x} and {chosen.y}, and no {quantity} is the best")
    cells = {
        (down.index(y), across.index(x)): _cell(best(several, quantity) or several[0], quantity, first)
        for (y, x), several in groups.items()
    }
    shared = max(map(len, groups.values()))
    told = f"each cell is the best of {shared} runs" if shared > 1 else ""
    labels = [_label(text) for text in across], [_label(text) for text in down]
    return HeatMap(chosen.x, labels[0], chosen.y, labels[1], cells, quantity, dimension(quantity), told)


def _cell(row: SweepRow, quantity: str, first: SweepRow | None) -> HeatMapCell:
    return HeatMapCell(_value(row, quantity), row.fits, row is first)


def _label(text: str) -> str:
    """Return *text* as it fits beside an axis."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _text(row: SweepRow, column: str) -> str:
    value = row.cells().get(column)
    return "none" if value is None else as_text(value)
