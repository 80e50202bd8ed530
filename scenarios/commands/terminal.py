"""Output for a terminal: lines broken at its width, streams that never end a run, and progress.

Progress goes to stderr with an estimate of the time left: a bar after a second on a terminal, a line every ten seconds
elsewhere.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, TextIO

from clustersim.simulator.reading.plain_text import printable

if TYPE_CHECKING:
    from clustersim.simulator.simulate import SimulationRun


LEAST = 40
"""Columns below which lines are left to the terminal."""


def say(text: object, to: TextIO | None = None) -> None:
    """Print *text* on *to* (default: stdout), broken at the width of the terminal if that is one."""
    stream = to or sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else 0
    print(broken(str(text), width), file=stream)


def broken(text: str, width: int) -> str:
    """Return *text* with its lines broken at *width* columns; 0: as it is.

    A broken line goes on below its own begin, or below the second of two columns. Lines of several columns and lines
    of a file after their number stay whole.

    >>> print(broken("hello  Four GPUs train a toy model of four layers with DDP", 42))
    hello  Four GPUs train a toy model of four
           layers with DDP
    """
    if width < LEAST:
        return text
    return "\n".join(_broken(line, width) for line in text.split("\n"))


def _broken(line: str, width: int) -> str:
    columns = re.split(r"(?<=\S) {2,}(?=\S)", line)
    if len(line) <= width or len(columns) > 2 or re.match(r" *\d+ \| ", line):
        return line
    begin = len(line) - len(columns[-1]) if len(columns) == 2 else len(line) - len(line.lstrip()) + 2
    if begin > width // 2:
        return line
    return textwrap.fill(
        line, width, subsequent_indent=" " * begin, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


PLAIN = {"█": "#", "·": ".", "…": "...", "µ": "u", "×": "x", "–": "-", "—": "-", "°": " deg", "→": "->", "≤": "<="}
"""What stands for a character of reports where the output's encoding lacks it."""

ERRORS = "clustersim"


class _Tolerant(io.FileIO):
    """A file whose reader may go away, or whose disk may be full: later output is dropped, and *faults* says why.

    What the command writes to other files is not lost.
    """

    faults: ClassVar[list[str]] = []

    def write(self, data: object) -> int:
        try:
            return super().write(data) or 0  # type: ignore[arg-type]
        except BrokenPipeError:
            return len(data)  # type: ignore[arg-type]
        except OSError as error:
            self.faults.append(f"cannot write standard output: {error.strerror}")
            return len(data)  # type: ignore[arg-type]


class _Plain(io.TextIOWrapper):
    """Text without control characters: names and descriptions of others do not steer the terminal."""

    def write(self, text: str) -> int:
        super().write(printable(text))
        return len(text)


def prepare() -> None:
    """Make standard output and standard error of this process tolerant."""
    codecs.register_error(ERRORS, _plain)
    sys.stdout, sys.stderr = _prepared(sys.stdout, 1), _prepared(sys.stderr, 2)


def fault() -> str:
    """Return why a part of the output was dropped; empty if all was written, or if the reader went away."""
    sys.stdout.flush()
    return next(iter(_Tolerant.faults), "")


def _prepared(stream: TextIO | None, number: int) -> TextIO:
    if stream is None:
        # closed by the shell: >&-
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - open until the process ends
    tolerant = io.BufferedWriter(_Tolerant(number, "w", closefd=False))
    # progress bars on standard error are control characters
    form = _Plain if number == 1 else io.TextIOWrapper
    return form(tolerant, stream.encoding, ERRORS, line_buffering=number == 2 or stream.isatty())


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Return the characters in place of those that *error* is about, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(PLAIN.get(one, ascii(one)[1:-1]) for one in found), error.end


PATIENCE, INTERVAL = 1.0, 0.1
"""Seconds before the bar appears, and between its updates."""

LINES = 10.0
"""Seconds between lines where stderr is no terminal, counted over all that a command does in turn."""


class Progress:
    """How far a command is: the *title* of what it does, and the fraction of it that is done.

    Called with a simulation before it starts, it follows it. *simulations*: how many there will be. *ranks*: the ranks
    whose spans are kept if a run is too large to keep all. *parts*: of the command, 0 if simulations are all of it.
    """

    def __init__(self, title: str, ranks: Sequence[int] = (), simulations: int = 1, parts: int = 0) -> None:
        self.title = title
        self.ranks, self.simulations = ranks, simulations
        self._followed: list[SimulationRun] = []
        self._parts, self._done = parts, 0
        self.begun = time.monotonic()

    def __call__(self, simulation: SimulationRun) -> None:
        """Follow *simulation*."""
        simulation.ranks = self.ranks
        self._followed.append(simulation)

    def begin(self, title: str, parts: int = 0) -> None:
        """Go on with something else, in *parts*; 0 if that is not known."""
        self._parts, self._done = parts, 0
        self._followed = []
        self.title = title
        self.begun = time.monotonic()

    def advance(self) -> None:
        """One part is done."""
        self._done += 1
        self._followed = []

    def expect(self, left: int) -> None:
        """So many parts are *left*, as it seems now."""
        self._parts = self._done + left

    @property
    def fraction(self) -> float | None:
        """The fraction that is done; None if it is not known."""
        if self._parts:
            return min(1.0, (self._done + self._simulated()) / self._parts)
        return self._simulated() if self._followed else None

    def line(self, elapsed: float) -> str:
        """Return one line: the title, what is done, what is left, and an estimate after *elapsed* s of this title."""
        done = self.fraction
        if self._parts:
            parts = f"{self._done:,} of {self._parts:,} done, {self._parts - self._done:,} left"
        elif done is not None and len(self._followed) > max(self.simulations, 1):
            # more simulations than were announced: their number is all that is known
            parts, done = f"simulation {len(self._followed):,}", None
        elif done:
            parts = f"{done:.0%} done"
        else:
            parts = f"{self._done:,} done" if self._done else ""
        left = f"about {_duration(elapsed * (1.0 / done - 1.0))} more" if done else ""
        return f"{self.title}: " + ", ".join(filter(None, (parts, f"{_duration(elapsed)} so far", left)))

    def _simulated(self) -> float:
        """The fraction of the simulations that is done."""
        started = len(self._followed)
        return (started - 1 + self._followed[-1].fraction) / max(self.simulations, started) if started else 0.0


@contextmanager
def progress(
    title: str, ranks: Sequence[int] | None = None, simulations: int = 1, parts: int = 0
) -> Iterator[Progress]:
    """Show the progress of what is done inside; see `Progress` for the arguments."""
    shown = Progress(title, ranks or (), simulations, parts)
    done = threading.Event()
    thread = threading.Thread(target=_show if sys.stderr.isatty() else _print, args=(shown, done), daemon=True)
    thread.start()
    try:
        yield shown
    finally:
        done.set()
        thread.join()


def _duration(seconds: float) -> str:
    """Return *seconds* as a person says it: 40 s, 12 min, 3.4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Due:
    """When the next line is due (s of the monotonic clock), for all that a process does in turn."""

    at: float | None = None

    @classmethod
    def restart(cls) -> None:
        """A command begins: its first line is due after a whole interval."""
        cls.at = None

    @classmethod
    def wait(cls, now: float) -> float:
        """Return the seconds until the next line. What begins long after the last line waits a whole interval."""
        if cls.at is None or now > cls.at + LINES:
            cls.at = now + LINES
        return max(0.0, cls.at - now)


def _print(shown: Progress, done: threading.Event) -> None:
    """Print a line of *shown* every `LINES` seconds until it is *done*."""
    while not done.wait(Due.wait(time.monotonic())):
        now = time.monotonic()
        print(shown.line(now - shown.begun), file=sys.stderr, flush=True)
        Due.at = now + LINES


def _show(shown: Progress, done: threading.Event) -> None:
    if done.wait(PATIENCE):
        return
    from rich import progress
    from rich.console import Console

    columns = progress.Progress.get_default_columns()
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        title = shown.title
        task = bar.add_task(title, total=None)
        while not done.wait(INTERVAL):
            if shown.title != title:
                # a new task: the estimate of the time left begins anew
                title = shown.title
                bar.remove_task(task)
                task = bar.add_task(title, total=None)
            fraction = shown.fraction
            bar.update(task, total=None if fraction is None else 1.0, completed=fraction or 0.0)
