"""A progress bar on stderr for runs of more than a second; nothing if stderr is not a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.engine.simulate import Simulation

PATIENCE, INTERVAL = 1.0, 0.1
"""Seconds before the bar appears, and between its updates."""


@contextmanager
def progress(title: str, ranks: Sequence[int] | None = None) -> Iterator[Callable[[Simulation], None]]:
    """Show the progress of simulations; yield the function to be called with each of them before it starts.

    *ranks*: the ranks whose spans are kept if a run is too large to keep all.
    """
    simulations: list[Simulation] = []

    def watch(simulation: Simulation) -> None:
        simulation.ranks = ranks or ()
        simulations.append(simulation)

    if not sys.stderr.isatty():
        yield watch
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(title, simulations, done), daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        done.set()
        thread.join()


def _show(title: str, simulations: list[Simulation], done: threading.Event) -> None:
    if done.wait(PATIENCE):
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        while not done.wait(INTERVAL):
            if simulations:
                bar.update(task, completed=simulations[-1].fraction)
