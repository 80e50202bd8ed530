"""The command line: `clustersim` runs, draws, compares and checks scenarios.

Exit status: 0 ok, 1 an expectation missed, 2 bad input, 3 does not fit (with ``--strict-memory``), 4 a deadlock.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated

import typer

from scenarios.application import BAD_INPUT, DEADLOCK, INTERRUPTED, app
from simulator.errors import DeadlockError, SimulatorError

GARBAGE = 20_000
"""New objects after which the youngest are looked through; Python's own number is 700."""


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print("clustersim", version("clustersim"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, help="Print the version and exit.", callback=_print_version)
    ] = False,
) -> None:
    """Simulate distributed deep-learning training on GPU clusters."""


def main() -> None:
    """Run the command line and end the process with its exit status."""
    # a process makes much and drops little: looking for garbage as often as Python does by itself costs a sixth
    gc.set_threshold(GARBAGE, 50, 50)
    status = run(sys.argv[1:])
    # what is left goes with the process; it need not be looked through for garbage once more
    gc.freeze()
    raise SystemExit(status)


def run(arguments: list[str]) -> int:
    """The exit status of the command line *arguments*; faults of the input are told on stderr, without a traceback."""
    import scenarios.commands  # noqa: F401 - the commands put themselves into the app

    try:
        status = app(arguments, prog_name="clustersim", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # what read the output has gone, on which click exits; nothing more can be flushed to it at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (SimulatorError, OSError) as error:
        print(error, file=sys.stderr)
        return DEADLOCK if isinstance(error, DeadlockError) else BAD_INPUT
    except Exception as error:
        # a usage error; its class is click's or, by version, typer's own
        if not hasattr(error, "show"):
            raise
        error.show()
        return BAD_INPUT
    return status if isinstance(status, int) else 0
