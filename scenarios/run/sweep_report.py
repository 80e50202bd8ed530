"""The report and the chart of a sweep: a line for each run, with the numbers that are looked at first, and the best
run; a quantity over one key as lines, or over two keys as a heat map. What a column is: its dimension, its unit, and
whether more of it is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from clustersim.scenarios.build.memory_need import of_capacity
from clustersim.scenarios.results.charts import number_of
from clustersim.scenarios.results.expectations import is_duration
from clustersim.scenarios.run.sweep_table import Scalar, SweepAxis, SweepRow, as_text, columns
from clustersim.scenarios.specification.specification import RESULT
from clustersim.simulator.charts import figures
from clustersim.simulator.charts.canvas import style
from clustersim.simulator.charts.sweep import HeatMap, HeatMapCell, SweepPoint, SweepSeries, heat_map_chart, sweep_chart
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.plain_text import figure, table
from clustersim.simulator.reading.units import show, show_long
from clustersim.simulator.reading.validation import near

SHARES = ("mfu", "mfu_6nd", "hfu", "bubble_fraction", "utilisation", "goodput", "goodput_of_held", "blocked_share")
BANDWIDTHS = ("algbw", "busbw")
LESS = ("bubble_fraction", "days", "gpu_hours", "energy_mwh", "cost", "co2_t", "idle_gpus")
MORE = (
    "utilisation",
    "goodput",
    "goodput_of_held",
    "mfu",
    "mfu_6nd",
    "hfu",
    "algbw",
    "busbw",
    "model_tflops_per_gpu",
    "hardware_tflops_per_gpu",
)


def dimension(column: str) -> str:
    """Return the dimension of *column*: time, size, bandwidth, share, or empty for a plain number.

    >>> [dimension(column) for column in ("step_time_s", "memory.peak_bytes", "busbw", "mfu", "samples_per_s")]
    ['time', 'size', 'bandwidth', 'share', '']
    """
    last = column.rpartition(".")[2]
    if last in SHARES or column.startswith("link_utilisation."):
        return "share"
    if last in BANDWIDTHS:
        return "bandwidth"
    if is_duration(column):
        return "size" if any(part.endswith("_bytes") for part in column.split(".")) else "time"
    return ""


def less_is_better(column: str) -> bool | None:
    """Return whether the least value of *column* is the best; None if neither the least nor the greatest is.

    >>> [less_is_better(column) for column in ("step_time_s", "mfu", "tokens_per_s", "simulation.ops")]
    [True, False, False, None]
    """
    last = column.rpartition(".")[2]
    if last in LESS or is_duration(column):
        return True
    return False if last in MORE or last.endswith("_per_s") else None


MARK = "*"

WAITING = "queue.waiting_s.mean"
"""The number of queues that is looked at first."""

Numbers = Mapping[str, Scalar]


def text(name: str, rows: Sequence[SweepRow]) -> str:
    """Return the report of the *rows* of a sweep of the scenario *name*."""
    done = [row for row in rows if row.error is None]
    columns = _columns(done[0].numbers) if done else {}
    quantity = _ranked(done[0].numbers) if done else ""
    first = best(rows, quantity)
    keys = list(rows[0].values)
    header = [*keys, *(["variant"] if rows[0].variant else []), *columns, ""]
    lines = [
        [*_settings(row), *([shown(row.numbers) for shown in columns.values()] if row.error is None else [])]
        + ([] if row.error is not None else [MARK if row is first else ""])
        for row in rows
    ]
    failed = [row for row in rows if row.error is not None]
    told = [
        f"{name}: {len(rows)} run{'s' if len(rows) > 1 else ''}"
        + (f", {len(failed)} without a result" if failed else ""),
        table(lines, header, "r"),
    ]
    if first is not None:
        among = "" if all(row.fits for row in done) else " of the runs that fit in memory"
        told.append(f"{MARK} best {quantity}{among}")
    return "\n".join([*told, *_failures(failed)])


def _failures(failed: Sequence[SweepRow]) -> list[str]:
    """Return a line for each message of *failed* runs, with the first run that has it."""
    by_message: dict[str, list[SweepRow]] = {}
    for row in failed:
        by_message.setdefault(str(row.error).splitlines()[0], []).append(row)
    lines = [
        f"{', '.join(_named(same[0]))}{f' and {len(same) - 1} more' if len(same) > 1 else ''}: {message}"
        for message, same in by_message.items()
    ]
    more = len(lines) - MOST_FAILURES
    return lines[:MOST_FAILURES] + [f"and {more} other messages; a file and --json have all"] * (more > 0)


MOST_FAILURES = 10
"""Messages of failed runs that are printed."""


def best(rows: Sequence[SweepRow], quantity: str) -> SweepRow | None:
    """Return the row with the best *quantity* among runs that fit in memory; None if there is none or no best."""
    less = less_is_better(quantity)
    if less is None:
        return None
    found = [(number, row) for row in rows if row.fits and isinstance(number := row.numbers.get(quantity), int | float)]
    return (min if less else max)(found, key=lambda one: one[0])[1] if found else None


def _ranked(numbers: Numbers) -> str:
    """Return the quantity by which runs are ranked: throughput, because the step of a small batch is short.

    Replayed traces have step times alone; queues are ranked by their waiting time.
    """
    if WAITING in numbers:
        return WAITING
    if "samples_per_s" in numbers or "step_time_s" not in numbers:
        return "samples_per_s" if "samples_per_s" in numbers else f"{_largest(numbers)}.busbw"
    return "step_time_s"


def _largest(numbers: Numbers) -> str:
    """Return the begin of the names of the largest size of a collective."""
    sizes = {key: float(value or 0) for key, value in numbers.items() if key.endswith(".size_bytes")}
    return max(sizes, key=lambda key: sizes[key]).removesuffix(".size_bytes")


def _columns(numbers: Numbers) -> dict[str, Callable[[Numbers], str]]:
    """Return for each column of the report the function that prints its cell."""
    if WAITING in numbers:
        return {
            "waiting": lambda row: show_long(_number(row, WAITING)),
            "95 %": lambda row: show_long(_number(row, "queue.waiting_s.p95")),
            "turnaround": lambda row: show_long(_number(row, "queue.turnaround_s.mean")),
            "utilisation": lambda row: f"{_number(row, 'queue.utilisation'):.1%}",
            "goodput": lambda row: f"{_number(row, 'queue.goodput'):.1%}",
        }
    if "step_time_s" not in numbers:
        return {
            "size": lambda row: show(_number(row, f"{_largest(row)}.size_bytes"), "size", 3),
            "time": lambda row: show(_number(row, f"{_largest(row)}.time_s"), "time"),
            "busbw": lambda row: show(_number(row, f"{_largest(row)}.busbw"), "bandwidth"),
        }
    step = {"step time": lambda row: show(_number(row, "step_time_s"), "time")}
    if "samples_per_s" not in numbers:
        return step
    return {
        **step,
        "samples/s": lambda row: figure(_number(row, "samples_per_s")),
        "MFU": lambda row: f"{_number(row, 'mfu'):.1%}",
        "memory needed": _memory,
        "fits": lambda row: "yes" if row["memory.fits"] else "NO",
    }


def _memory(numbers: Numbers) -> str:
    needed = _number(numbers, "memory.peak_bytes") + _number(numbers, "memory.reserved_bytes")
    capacity = numbers["memory.capacity_bytes"]
    return of_capacity(needed, float("inf") if capacity is None else float(capacity))


def _number(numbers: Numbers, name: str) -> float:
    return float(numbers[name] or 0.0)


def _settings(row: SweepRow) -> list[str]:
    return [*(as_text(value) for value in row.values.values()), *([row.variant] if row.variant else [])]


def _named(row: SweepRow) -> list[str]:
    named = [f"{key} {as_text(value)}" for key, value in row.values.items()]
    return [*named, *([row.variant] if row.variant else [])]


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


def sweep_figure(name: str, axes: Sequence[SweepAxis], rows: Sequence[SweepRow], chosen: Plot) -> figures.Figure:
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
