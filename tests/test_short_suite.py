"""The short suite: which cases it has, how many examples it generates; and the faults by which it is judged."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios.commands import terminal
from tests.benchmarks.faults import Fault, Faults, drawn, functions_of
from tests.benchmarks.mutations import BUDGET, Recorded, importing, selected
from tests.benchmarks.processes import ROOT
from tests.conftest import shorten
from tests.samples import sample
from tests.shipped import HEAVY, SLOW


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
    assert all((ROOT / f"scenarios/{name}.yaml").is_file() for name in (*HEAVY, *SLOW))


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


@pytest.mark.exhaustive
def test_faults_are_drawn_from_all_parts_and_change_the_source() -> None:
    faults = drawn(10, seed=3)
    assert faults == drawn(10, seed=3)
    assert [one.part for one in faults] == ["engine", "collectives", "pipelines", "memory", "pricing"] * 2
    for one in faults:
        source = (ROOT / one.file).read_bytes()
        mutant = source[: one.begin] + one.after.encode() + source[one.end :]
        assert ast.dump(ast.parse(mutant)) != ast.dump(ast.parse(source)), one


SOURCE = """
a = 1
class B:
    c = 2
    def d(self):
        def e():
            return 3
        return e() + 4
def f(): return 5
"""


def test_functions_are_named_as_the_interpreter_names_them() -> None:
    def named(code: CodeType) -> Iterator[str]:
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                yield inner.co_qualname
                yield from named(inner)

    found = functions_of(ast.parse(SOURCE))
    assert found == {"B.d": (5, 8), "B.d.<locals>.e": (6, 7), "f": (9, 9)}
    assert set(found) == set(named(compile(SOURCE, "source", "exec"))) - {"B"}


def fault(file: str, function: str) -> Fault:
    return Fault("part", file, 1, function, 0, 0, "1", "(2)")


def test_a_fault_is_given_to_the_tests_that_call_its_function() -> None:
    file = "workloads/pipelines/varuna.py"
    users = "tests/scenarios/test_varuna.py", "tests/workloads/pipelines/test_varuna.py"
    known = [
        Recorded("tests/a.py::calls", 1.0, frozenset({f"{file}:varuna"})),
        Recorded("tests/a.py::neighbour", 2.0, frozenset({"workloads/pipelines/gpipe.py:gpipe"})),
        *(Recorded(f"{user}::reads", 3.0, frozenset({"scenarios/scenario.py:load"})) for user in users),
        Recorded("tests/a.py::late", BUDGET, frozenset({f"{file}:varuna"})),
    ]

    def tests(function: str) -> list[str]:
        return [one.test for one in selected(fault(file, function), known)]

    assert tests("varuna") == ["tests/a.py::calls"]
    # no test calls it; `workloads/pipelines/__init__.py` has no functions, so those of the folder are left
    assert tests("compiled") == ["tests/a.py::calls", "tests/a.py::neighbour"]
    assert tests("") == [*(f"{user}::reads" for user in users if user in importing(file)), "tests/a.py::calls"]
    assert "tests/workloads/pipelines/test_varuna.py" in importing(file)
