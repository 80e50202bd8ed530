"""A progress bar on stderr, with an estimate, for what takes more than a second; nothing if stderr is no terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.engine.simulate import Simulation

PATIENCE, INTERVAL = 1.0, 0.1
"""Seconds before the bar appears, and between its updates."""


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

    def __call__(self, simulation: Simulation) -> None:
        """Follow *simulation*."""
        simulation.ranks = self.ranks
        self._followed.append(simulation)

    def begin(self, title: str, parts: int = 0) -> None:
        """Go on with something else, in *parts*; 0 if that is not known."""
        self._parts, self._done = parts, 0
        self._followed = []
        self.title = title

    def advance(self) -> None:
        """One part is done."""
        self._done += 1
        self._followed = []

    @property
    def fraction(self) -> float | None:
        """The fraction that is done; None if it is not known."""
        if self._parts:
            return min(1.0, (self._done + self._simulated()) / self._parts)
        return self._simulated() if self._followed else None

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
    if not sys.stderr.isatty():
        yield shown
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(shown, done), daemon=True)
    thread.start()
    try:
        yield shown
    finally:
        done.set()
        thread.join()


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
