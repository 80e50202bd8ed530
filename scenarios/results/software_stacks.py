"""The software stacks with which a scenario is usually trained, side by side: what the choice of one decides."""

from __future__ import annotations

from collections.abc import Callable

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.explanation import check_trains
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.units import show
from clustersim.workloads.default_software_stack import AUTO, OTHERS
from clustersim.workloads.software_stack import specification

DIFFERS = 0.10
"""Share of the step time from which on another stack is said to differ."""


def stacks(scenario: BuiltScenario) -> tuple[str, ...]:
    """Return the stack of *scenario*, that of ``software: auto``, and others with which such a scenario is trained."""
    automatic = scenario.changed({"software": AUTO}, "software: auto").stack_choice
    found = (scenario.stack, automatic.stack, *OTHERS.get(scenario.stack, ()), *automatic.others)
    return tuple(dict.fromkeys(found))


def comparison(scenario: BuiltScenario, run: Callable[[BuiltScenario], object]) -> str:
    """Return a table of the `stacks` of *scenario*, simulated by *run*. Raises `ScenarioError` for a collective."""
    check_trains(scenario, "software stack")
    rows, far = [], []
    first = 0.0
    for name in stacks(scenario):
        try:
            own = name == scenario.stack
            # keys beside the preset of the given stack stay
            result = run(scenario if own else scenario.changed({"software": name}, f"software: {name}"))
        except SimulatorError as error:
            rows.append([name, "-", "", "", str(error).partition("\n")[0]])
            continue
        assert isinstance(result, StepNumbers)
        seconds = result.timeline.step_time
        first = first or seconds
        more = seconds / first - 1.0 if first else 0.0
        if abs(more) > DIFFERS:
            far.append(name)
        rows.append(
            [
                name,
                show(seconds, "time"),
                "" if own else f"{more:+.1%}",
                result.need.amount,
                specification(name).description,
            ]
        )
    stack, reason, _ = scenario.stack_choice
    lines = [
        f"{stack}: {reason or 'as given'}",
        "",
        plain_text.table(rows, ["", "step", "", "memory", ""], "lrrrl"),
        "",
    ]
    if len(rows) == 1:
        return "\n".join(
            [*lines, "no other stack is usual here; clustersim list software has all, software: NAME takes one."]
        )
    told = f"more than {DIFFERS:.0%} from {stack}: {', '.join(far)}" if far else f"none is {DIFFERS:.0%} from {stack}"
    return "\n".join([*lines, f"{told}. software: NAME takes one."])
