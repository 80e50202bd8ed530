"""A plugin of pytest that records which functions of the package each test calls, and how long it takes.

`pytest -p tests.benchmarks.called --called FILE` appends a line of JSON for each test that passes: its name, its
processor time (s) and the functions. Functions that numba has compiled are not seen, nor those in other processes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from types import CodeType, FrameType

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = f"{ROOT / 'clustersim'}/"


def function(file: str, name: str) -> str:
    """Return the key of the function with the qualified *name* in *file*, a path below the package."""
    return f"{file}:{name}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--called", type=Path, required=True, help="the file with a line for each test")


not_passed: set[str] = set()
"""The tests that failed in their set-up, body or end, or that were skipped."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that does not pass."""
    if not report.passed:
        not_passed.add(report.nodeid)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the code of every call while the test runs, its fixtures included."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        codes.add(frame.f_code)

    begin = process_time()
    sys.settrace(note)
    yield
    sys.settrace(None)
    seconds = process_time() - begin
    named = ((code.co_filename, code.co_qualname) for code in codes)
    called = {function(file.removeprefix(PACKAGE), name) for file, name in named if file.startswith(PACKAGE)}
    if item.nodeid not in not_passed and called:
        line = json.dumps({"test": item.nodeid, "seconds": round(seconds, 3), "functions": sorted(called)})
        with item.config.getoption("called").open("a") as file:
            file.write(line + "\n")
