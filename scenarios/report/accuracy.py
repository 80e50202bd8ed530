"""How far the numbers of a run can be trusted: the interval, what was never measured, notes, expectations."""

from __future__ import annotations

from scenarios.build.notes import notes
from scenarios.report.parts import Cell, Part, Section, Table, Text
from scenarios.results.expectations import held
from scenarios.results.result import Result
from scenarios.results.step_numbers import StepNumbers
from scenarios.results.text import engine_line
from simulator.units import show

SIMULATED = (
    "These numbers are predictions of a discrete-event simulation, not measurements. Prices of kernels and messages "
    "are formulas with published or fitted parameters; contention, waiting and overlap follow from the events."
)


def accuracy_section(result: Result) -> Section:
    """Return the accuracy statement of *result*."""
    parts: list[Part] = [Text(SIMULATED)]
    if isinstance(result, StepNumbers):
        parts.append(Text(_interval(result)))
        parts += [Text(f"Not calibrated: {line}.") for line in result.outside]
    parts += [Text(f"Note: {note}.") for note in notes(result.scenario)]
    parts.append(Text(f"Simulated by {engine_line(result.timeline)}."))
    outcomes = held(result.scenario, result.summary())
    if outcomes:
        rows = [
            [
                Cell(one.key),
                Cell(f"{one.expected:.6g}", one.expected),
                Cell(f"{one.value:.6g}", one.value),
                Cell(f"{one.error:+.1%}", one.error),
                Cell("met" if one.met else "MISSED"),
                Cell(one.source),
            ]
            for one in outcomes
        ]
        parts.append(Table(["expectation", "expected", "simulated", "error", "", "source"], rows))
    return Section("accuracy", "Accuracy", parts)


def _interval(result: StepNumbers) -> str:
    if result.uncertainty.interval is None:
        return "No interval: durations are given in the scenario, or its software stack is a lower bound."
    low, high = (show(seconds, "time") for seconds in result.uncertainty.interval)
    step = show(result.timeline.step_time, "time")
    return f"Step time {step}: {low} to {high} {result.uncertainty.known} (published runs of the catalogue)."
