"""The short suite: which cases it has, how many examples it generates; and the faults by which it is judged."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios.commands import terminal
from tests.benchmarks.mutations import Faults, drawn, near
from tests.benchmarks.processes import ROOT
from tests.conftest import shorten
from tests.samples import sample
from tests.shipped import HEAVY


def kept(parameters: list[Any]) -> list[Any]:
    return [one.values[0] for one in parameters if not one.marks]


def test_a_sample_is_the_same_whatever_other_cases_there_are() -> None:
    cases = [f"scenario {number}" for number in range(300)]
    few = kept(sample(cases, 3, heavy=["scenario 7"]))
    assert 80 < len(few) < 120
    assert "scenario 7" not in few
    assert kept(sample(cases[100:], 3)) == [case for case in few if int(case.split()[1]) >= 100]
    assert kept(sample(cases, heavy=["scenario 7"])) == [case for case in cases if case != "scenario 7"]


def test_heavy_scenarios_are_shipped() -> None:
    assert all((ROOT / f"scenarios/{name}.yaml").is_file() for name in HEAVY)


def test_the_short_suite_generates_fewer_examples() -> None:
    seen: list[int] = []

    @settings(max_examples=50, database=None)
    @given(st.integers())
    def generated(number: int) -> None:
        seen.append(number)

    generated()
    asked = len(seen)
    shorten(generated)
    generated()
    assert (asked, len(seen) - asked) == (50, 10)


@pytest.mark.parametrize("command", ["first", "second"])
def test_a_command_begins_without_the_lines_of_an_earlier_one(command: str) -> None:
    assert terminal.Due.at is None
    terminal.Due.at = 1e9


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ("a + b", ["a - b", "a"]),
        ("a < 3", ["4", "a <= 3"]),
        ("not a and b", ["a", "not a or b", "not a"]),
        ("min(a)", ["max"]),
        ("2.0", ["2.4"]),
        ("if a > b:\n    raise ValueError(a + b)", []),
        ("assert a > b", []),
        ("def f(a: int = 1) -> str:\n    'Add 1 + 1.'", ["2"]),
    ],
)
def test_faults_of_a_source(source: str, faults: list[str]) -> None:
    assert [ast.unparse(instead) for _, instead in Faults(source).found] == faults


def test_faults_are_drawn_from_all_parts_and_change_the_source() -> None:
    faults = drawn(10, seed=3)
    assert faults == drawn(10, seed=3)
    assert [one.part for one in faults] == ["engine", "collectives", "pipelines", "memory", "pricing"] * 2
    for fault in faults:
        source = (ROOT / fault.file).read_bytes()
        mutant = source[: fault.begin] + fault.after.encode() + source[fault.end :]
        assert ast.dump(ast.parse(mutant)) != ast.dump(ast.parse(source)), fault


def test_near_tests_import_the_module() -> None:
    assert near("workloads/pipelines/varuna.py")[-2:] == ["tests/workloads/pipelines", "workloads/pipelines/varuna.py"]
    assert "tests/simulator/engine/interface/test_pricing.py" in near("simulator/engine/interface/pricing.py")
