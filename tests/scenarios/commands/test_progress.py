"""Progress as lines, where stderr is no terminal: what is done, what is left, an estimate."""

from __future__ import annotations

import threading

import pytest

from clustersim.scenarios.commands import terminal as module
from clustersim.scenarios.commands.terminal import Progress, progress


class Half:
    """A simulation that is half done."""

    fraction = 0.5
    ranks = ()


def test_a_line_says_what_is_done_what_is_left_and_how_long_it_may_take() -> None:
    shown = Progress("simulating 8 runs", parts=8)
    shown.advance()
    shown.advance()
    assert shown.line(20.0) == "simulating 8 runs: 2 of 8 done, 6 left, 20 s so far, about 60 s more"
    shown(Half())  # type: ignore[arg-type]
    assert shown.line(20.0) == "simulating 8 runs: 2 of 8 done, 6 left, 20 s so far, about 44 s more"
    shown.begin("estimating", parts=4)
    assert shown.line(0.0) == "estimating: 0 of 4 done, 4 left, 0 s so far"
    shown.advance()
    shown.expect(1)  # bounds left one of three
    assert shown.line(200.0) == "estimating: 1 of 2 done, 1 left, 3 min so far, about 3 min more"


def test_a_line_without_a_known_end_makes_no_estimate() -> None:
    shown = Progress("planning")
    assert shown.line(10.0) == "planning: 10 s so far"
    shown(Half())  # type: ignore[arg-type]
    assert shown.line(10.0) == "planning: 50% done, 10 s so far, about 10 s more"
    shown(Half())  # type: ignore[arg-type]
    assert shown.line(6000.0) == "planning: simulation 2, 1.7 h so far"


def test_lines_stand_on_stderr_where_it_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = threading.Event()
    monkeypatch.setattr(module, "LINES", 0.0)
    line = Progress.line

    def told(self: Progress, elapsed: float) -> str:
        printed.set()
        return line(self, 0.0)

    monkeypatch.setattr(Progress, "line", told)
    with progress("sweeping", parts=3) as shown:
        shown.advance()
        assert printed.wait(60)
    out, err = capsys.readouterr()
    assert not out and "sweeping: " in err


def test_many_short_parts_share_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINES", 10.0)
    assert module.Due.wait(100.0) == 10.0
    assert module.Due.wait(107.0) == 3.0
    assert module.Due.wait(111.0) == 0.0
    assert module.Due.wait(500.0) == 10.0  # long after the last line
