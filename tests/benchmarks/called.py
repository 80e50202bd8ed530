"""A plugin of pytest that records which functions of the package each test calls, and how long it takes.

`pytest -p tests.benchmarks.called --called FILE` appends a line of JSON for each test that passes: its name, its
processor time (s) without compilation, which is that of whatever test is the first, and the functions. Functions that
numba has compiled are not seen, nor those in other processes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from types import CodeType, FrameType

import pytest
from numba.core import event

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


class Compilation(event.Listener):
    """Adds up the processor time of numba's compilations, in *seconds*; those within others are part of them."""

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0

    def on_start(self, event: event.Event) -> None:
        """Take the time."""
        self._depth += 1
        if self._depth == 1:
            self._begin = process_time()

    def on_end(self, event: event.Event) -> None:
        """Add what has passed."""
        self._depth -= 1
        if not self._depth:
            self.seconds += process_time() - self._begin


compilation = Compilation()
event.register("numba:compile", compilation)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the code of every call while the test runs, its fixtures included."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        codes.add(frame.f_code)

    begin, compiling = process_time(), compilation.seconds
    sys.settrace(note)
    yield
    sys.settrace(None)
    seconds = process_time() - begin - (compilation.seconds - compiling)
    named = ((code.co_filename, code.co_qualname) for code in codes)
    called = {function(file.removeprefix(PACKAGE), name) for file, name in named if file.startswith(PACKAGE)}
    if item.nodeid not in not_passed and called:
        line = json.dumps({"test": item.nodeid, "seconds": round(seconds, 3), "functions": sorted(called)})
        with item.config.getoption("called").open("a") as file:
            file.write(line + "\n")
