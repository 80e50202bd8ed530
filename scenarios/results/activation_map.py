"""The map of activations: what a GPU keeps for the backward pass, over the size of a micro-batch and the sequence.

Nothing is simulated: memory is the bound by program order that `clustersim check` takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, NamedTuple

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.description import cluster_title
from clustersim.scenarios.build.memory_need import memory_need
from clustersim.simulator.analysis.memory_upper_bound import held_at_most
from clustersim.simulator.charts.canvas import style
from clustersim.simulator.charts.figures import Figure
from clustersim.simulator.charts.sweep import HeatMap, HeatMapCell, heat_map_chart
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.units import show
from clustersim.simulator.reading.validation import near
from clustersim.simulator.reading.yaml_and_json import read_value
from clustersim.simulator.schedule.ops import Op
from clustersim.simulator.schedule.schedule import Schedule

NAMES = {"batch": "samples of a micro-batch", "sequence": "tokens of a sequence"}
"""The axes, and what they count."""

FACTORS = (2, 4, 8)
"""Without values, an axis goes by these factors below and above the scenario's own value."""

RED = "#D62728"


class MapAxis(NamedTuple):
    """The *values* of the axis *name*, one of `NAMES`."""

    name: str
    values: tuple[int, ...]


def axes_of(scenario: BuiltScenario, options: Sequence[str] = ()) -> tuple[MapAxis, MapAxis]:
    """Return the axes, sequence before batch, of texts such as ``batch,sequence`` or ``batch=1,2,4``; default: both.

    An axis that is not named has the value of *scenario*. Raises `ScenarioError`.
    """
    options = options or ["batch,sequence" if _has_sequences(scenario) else "batch"]
    given: dict[str, tuple[int, ...]] = {}
    for option in options:
        named, equals, values = option.partition("=")
        for name in [named] if equals else option.split(","):
            _check(name.strip(), given, scenario)
            own = _own(scenario, name.strip())
            given[name.strip()] = _values(option, values) if equals else _around(own)
    sequence = given.get("sequence") or ((_own(scenario, "sequence"),) if _has_sequences(scenario) else (0,))
    return MapAxis("sequence", sequence), MapAxis("batch", given.get("batch") or (_own(scenario, "batch"),))


def _check(name: str, given: Mapping[str, Any], scenario: BuiltScenario) -> None:
    if name not in NAMES:
        hint = near(name, [*NAMES])
        raise ScenarioError(f"--over {name}: activations go over batch and sequence{'; ' + hint if hint else ''}")
    if name in given:
        raise ScenarioError(f"--over {name}: is given twice")
    if name == "sequence" and not _has_sequences(scenario):
        raise ScenarioError(f"--over sequence: the samples of {scenario.name} are no sequences; take --over batch")


def _has_sequences(scenario: BuiltScenario) -> bool:
    return scenario.model is not None and scenario.model.tokens_per_sample > 0


def _own(scenario: BuiltScenario, name: str) -> int:
    """Return the value of *name* in *scenario*."""
    assert scenario.model is not None
    return scenario.model.tokens_per_sample if name == "sequence" else scenario.derived.micro_batch_size


def _values(option: str, text: str) -> tuple[int, ...]:
    values = [read_value(part) for part in text.split(",")]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ScenarioError(f"--over {option}: {value!r} is no whole number above 0; write e.g. batch=1,2,4")
    if len(set(values)) < len(values):
        raise ScenarioError(f"--over {option}: has a value twice")
    return tuple(sorted(values))


def _around(own: int) -> tuple[int, ...]:
    """Return *own* times powers of two, from an eighth of it to eight times as much."""
    below = [own // factor for factor in reversed(FACTORS) if own % factor == 0 and own // factor]
    return (*below, own, *(own * factor for factor in FACTORS))


def activations_chart(scenario: BuiltScenario, axes: tuple[MapAxis, MapAxis], title: str = "") -> Figure:
    """Return the bytes of activations of *scenario* over *axes* as a heat map; what does not fit the GPU is red.

    *title* replaces the title.
    """
    sequence, batch = axes
    cells = {
        (row, column): _cell(scenario, samples, tokens)
        for row, tokens in enumerate(sequence.values[::-1])
        for column, samples in enumerate(batch.values)
    }
    if not any(cell.value for cell in cells.values()):
        raise ScenarioError(f"nothing to draw: {scenario.name} keeps no activations")
    gpu = scenario.cluster().accelerator(scenario.derived.devices[0])
    held = "with parameters, gradients, optimizer states and reserved memory it exceeds"
    room = f"red: {held} the {show(gpu.memory_bytes, 'size', 3)} of a GPU" if isfinite(gpu.memory_bytes) else ""
    training = scenario.specification.training
    method = getattr(training.recompute, "method", training.recompute) if training else "none"
    chart = HeatMap(
        NAMES["batch"],
        [str(samples) for samples in batch.values],
        NAMES["sequence"] if sequence.values[0] else "",
        [str(tokens) if tokens else "" for tokens in sequence.values[::-1]],
        cells,
        "most activations",
        "size",
        "; ".join(filter(None, (f"recompute: {method}", room))),
        RED,
    )
    place = cluster_title(scenario, len(scenario.derived.devices))
    with style():
        return heat_map_chart(chart, title or f"Activations of {scenario.name} on {place}")


def _cell(scenario: BuiltScenario, samples: int, tokens: int) -> HeatMapCell:
    """Return the activations of micro-batches of *samples* of *tokens*, as many of them as *scenario* has."""
    changed = scenario.changed(_keys(scenario, samples, tokens), f"--over batch={samples}, sequence={tokens}")
    schedule = changed.schedule()
    return HeatMapCell(most_activations(schedule), memory_need(changed, schedule).fits)


def most_activations(schedule: Schedule) -> float:
    """Return the most bytes of activations that a GPU holds at a time; other memory may be highest at another one."""

    def only(op: Op) -> Iterator[Op]:
        yield replace(op, allocates=_activations(op.allocates), frees=_activations(op.frees))

    programs = (program for program in schedule.programs if program.on == "gpu")
    alone = (replace(program.map_ops(only), resident={}) for program in programs)
    return max((held_at_most(program, host=False).nbytes for program in alone), default=0.0)


def _activations(amounts: Mapping[str, float]) -> dict[str, float]:
    return {name: nbytes for name, nbytes in amounts.items() if name == "activations"}


def _keys(scenario: BuiltScenario, samples: int, tokens: int) -> dict[str, Any]:
    """Return the keys of that size: the global batch grows with the micro-batch."""
    training = scenario.specification.training
    assert training is not None
    whole = training.global_batch_size * samples // scenario.derived.micro_batch_size
    keys: dict[str, Any] = {"training.micro_batch_size": samples, "training.global_batch_size": whole}
    return keys | ({"model.seq_length": tokens} if tokens else {})
