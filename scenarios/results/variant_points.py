"""Results of variants as points over the number in which they differ: batch size, GPUs, bandwidth, message size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clustersim.scenarios.results.result import Result
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.simulator.charts.sweep import SweepPoint, SweepSeries
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.units import parse

HIDDEN = {"name", "description", "variants", "table", "expect", "source", "sources"}
"""Keys without influence on the numbers."""
DIMENSIONS = ("size", "bandwidth", "time")

Number = tuple[float, str]
"""A value and its dimension, a key of `simulator.reading.units.UNITS`; "" for a plain number."""


def sweep(result: Result) -> SweepSeries:
    """Return the points of *result*: of collectives over the size, of training steps over the first key that varies.

    Variants that differ in other keys too are different series if they share a number. Raises `ScenarioError` if
    there is no number to put on x.
    """
    runs = result.runs
    if all(one.scenario.specification.collective is not None for one in runs.values()):
        return _sizes(runs)
    values = {name: _flat(_data(one)) for name, one in runs.items() if isinstance(one, StepNumbers)}
    keys = list(dict.fromkeys(key for one in values.values() for key in one))
    differing = [key for key in keys if len({repr(one.get(key)) for one in values.values()}) > 1]
    numbers = {key: [number_of(one.get(key)) for one in values.values()] for key in differing}
    numeric = [key for key, several in numbers.items() if _one_dimension(several)]
    if not numeric:
        what = f"its variants differ in {', '.join(differing)}" if differing else "it has no variants that differ"
        raise ScenarioError(f"{result.scenario.name} has no number to put on x: {what}")
    x = max(numeric, key=lambda key: len(set(numbers[key])))
    places = dict(zip(values, numbers[x], strict=True))
    series: dict[str, list[SweepPoint]] = {}
    for name, place in places.items():
        one = runs[name]
        assert isinstance(one, StepNumbers)
        assert place is not None
        other = _series(values, places, [key for key in differing if key != x], name)
        series.setdefault(other, []).append(SweepPoint(place[0], _heights(one)))
    first = next(place for place in places.values() if place is not None)
    return SweepSeries(x, first[1], series)


def _data(result: Result) -> Any:
    return result.scenario.source.data


def _heights(result: StepNumbers) -> dict[str, float]:
    mfu = result.summary()["mfu"]
    return {"step time": result.timeline.step_time, **({"MFU": mfu} if mfu else {})}


def _sizes(runs: Mapping[str, Result]) -> SweepSeries:
    series: dict[str, list[SweepPoint]] = {}
    for name, one in runs.items():
        series[name if len(runs) > 1 else ""] = [
            SweepPoint(row["size_bytes"], {"time": row["time_s"], "busbw": row["busbw"]})
            for row in one.summary()["collective"]
        ]
    return SweepSeries("collective.size", "size", series)


def _series(
    values: Mapping[str, Mapping[str, Any]], places: Mapping[str, Number | None], others: Sequence[str], name: str
) -> str:
    """Return the series of *name*: the values of the fewest *others*, in order, that tell points of one x apart."""
    if len(set(places.values())) == len(places):
        return ""
    chosen: list[str] = []
    for key in others:
        points = {(places[one], *(repr(values[one].get(k)) for k in chosen)) for one in values}
        if len(points) == len(values):
            break
        more = {(places[one], *(repr(values[one].get(k)) for k in (*chosen, key))) for one in values}
        chosen += [key] if len(more) > len(points) else []
    return ", ".join(f"{key.rpartition('.')[2]} {values[name].get(key, 'default')}" for key in chosen)


def _one_dimension(several: Sequence[Number | None]) -> bool:
    """Return whether all are numbers, of one dimension and not all equal."""
    return all(one is not None for one in several) and len({one[1] for one in several if one}) == 1 < len(set(several))


def number_of(value: Any) -> Number | None:
    """Return the number and the dimension of a *value* of a scenario; None if it is no number and no quantity."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value), ""
    for dimension in DIMENSIONS if isinstance(value, str) else ():
        try:
            return parse(value, dimension), dimension
        except ValueError:
            continue
    return None


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of *data* by dotted key, without `HIDDEN` keys."""
    if not isinstance(data, dict):
        return {prefix: data}
    return {
        key: value
        for name, inner in data.items()
        if prefix or name not in HIDDEN
        for key, value in _flat(inner, f"{prefix}.{name}" if prefix else str(name)).items()
    }
