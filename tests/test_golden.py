"""Every shipped scenario has the stored numbers; `tests/golden/__main__.py` says when they may be written anew.

Allowed differences: of a time, 1e-9 of the makespan; of a sum of times, that for each span of the sum; of a fraction of
the step time, 1e-9 of the makespan divided by the step time; of bytes, 1e-9 of the number; of memory by category, 1e-9
of the peak. Counts and names must be equal.
"""

import pytest

from tests.golden.measure import Quantities, Value, golden, measured, scenarios
from tests.samples import sample
from tests.shipped import HEAVY, SLOW

TOLERANCE = 1e-9

SHARES = ("bubble_fraction", "link_utilisation", "mfu")
"""Quantities that are ratios to the step time."""

SHOWN = 20
"""The most differences that a failure shows."""


@pytest.mark.parametrize("name", sample(scenarios(), heavy=[*HEAVY, *SLOW]))
def test_the_numbers_are_those_stored(name: str) -> None:
    now, stored = measured(name), golden()[name]
    assert list(now) == list(stored)
    different = [
        f"{variant} {line}".strip() for variant in stored for line in differences(now[variant], stored[variant])
    ]
    assert not different, f"{len(different)} numbers of {name} differ\n" + "\n".join(different[:SHOWN])


def test_every_shipped_scenario_is_stored() -> None:
    assert list(golden()) == scenarios()


def differences(now: Quantities, stored: Quantities) -> list[str]:
    """One line for each quantity outside its tolerance. A quantity that one side lacks counts as 0."""
    lines = []
    for name in stored | now:
        value, expected = now.get(name, 0), stored.get(name, 0)
        allowed = tolerance(name, stored)
        if not agree(value, expected, allowed):
            lines.append(f"{name}: now {value!r}, stored {expected!r}, allowed difference {allowed:.3g}")
    return lines


def agree(value: Value, expected: Value, allowed: float) -> bool:
    if isinstance(value, str) or isinstance(expected, str):
        return value == expected
    return abs(value - expected) <= allowed


def tolerance(name: str, stored: Quantities) -> float:
    """The allowed difference of the quantity *name* from the stored one, in its unit."""
    makespan = number(stored, "makespan_s")
    if name.startswith("spans.") and name.endswith("_s"):
        return TOLERANCE * makespan * number(stored, f"{name.rpartition('.')[0]}.count")
    if name.endswith("_s") or name.startswith("breakdown_s."):
        return TOLERANCE * makespan
    if name.startswith(SHARES):
        return TOLERANCE * makespan / number(stored, "step_time_s")
    if name.startswith("memory.by_category_bytes."):
        return TOLERANCE * number(stored, "memory.peak_bytes")
    return TOLERANCE * number(stored, name) if "_bytes" in name else 0.0


def number(stored: Quantities, name: str) -> float:
    value = stored.get(name, 0)
    assert not isinstance(value, str)
    return value


@pytest.mark.parametrize(
    ("name", "change", "seen"),
    [
        ("step_time_s", 1.9e-9, False),
        ("step_time_s", 2.1e-9, True),
        ("breakdown_s.bubble", 2.1e-9, True),
        ("bubble_fraction", 1.9e-9, False),
        ("bubble_fraction", 2.1e-9, True),
        ("spans.dp.all_reduce.waiting_s", 19e-9, False),
        ("spans.dp.all_reduce.waiting_s", 21e-9, True),
        ("spans.dp.all_reduce.count", 1, True),
        ("spans.tp.all_reduce.count", 1, True),
        ("memory.peak_bytes", 0.9e-3, False),
        ("memory.peak_bytes", 1.1e-3, True),
        ("memory.by_category_bytes.buffers", 0.9e-3, False),
        ("traffic_bytes.dp", 1.1e-6, True),
    ],
)
def test_a_change_beyond_the_tolerance_is_reported(name: str, change: float, seen: bool) -> None:
    """A run of 2 s with two steps of 1 s, ten all-reduces of 1 kB in all, and a peak of 1 MB."""
    stored: Quantities = {
        "makespan_s": 2,
        "step_time_s": 1,
        "breakdown_s.bubble": 0.25,
        "bubble_fraction": 0.25,
        "spans.dp.all_reduce.count": 10,
        "spans.dp.all_reduce.waiting_s": 3,
        "memory.peak_bytes": 1e6,
        "memory.by_category_bytes.buffers": 0,
        "traffic_bytes.dp": 1e3,
    }
    now = stored | {name: number(stored, name) + change}
    assert [line.partition(":")[0] for line in differences(now, stored)] == [name] * seen


def test_other_names_are_reported() -> None:
    stored: Quantities = {"makespan_s": 1, "collective.0.algorithm": "ring"}
    assert not differences(dict(stored), stored)
    assert differences({"makespan_s": 1, "collective.0.algorithm": "tree"}, stored)
    assert differences({"makespan_s": 1}, stored)
