"""Progress on stderr with an estimate: a bar after a second on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clustersim.simulator.engine.simulate import Simulation

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
        self._followed: list[Simulation] = []
        self._parts, self._done = parts, 0
        self.begun = time.monotonic()

    def __call__(self, simulation: Simulation) -> None:
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
