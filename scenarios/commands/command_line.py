"""The command line: `clustersim` runs, draws, compares and checks scenarios.

Exit status: 0 ok, 1 an expectation missed, 2 bad input, 3 does not fit (with ``--strict-memory``), 4 a deadlock.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated

try:
    import typer

    from clustersim.scenarios.commands import terminal
    from clustersim.scenarios.commands.application import BAD_INPUT, DEADLOCK, INTERRUPTED, InterruptedRunError, app
    from clustersim.simulator.reading.errors import DeadlockError, SimulatorError
    from clustersim.simulator.reading.plain_text import printable
except KeyboardInterrupt:
    # nothing has been done yet, and nothing that could report it is loaded
    raise SystemExit(130) from None

GC_THRESHOLD = 200_000
"""New objects between collections of the youngest generation; Python's default is 700."""


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
    # few objects are dropped: with Python's default thresholds, garbage collection takes a sixth of the time
    gc.set_threshold(GC_THRESHOLD, 50, 50)
    terminal.prepare()
    # charts are files: what shows figures on a screen is not needed, and its name may be wrong
    os.environ["MPLBACKEND"] = "agg"
    # pydantic looks for plugins in the metadata of every installed package; here they would only watch the validation
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # numpy's OpenBLAS starts threads that wait in a loop: 0.1 s of each start, while no product here is large
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    status = run(sys.argv[1:])
    if fault := terminal.fault():
        print(fault, file=sys.stderr)
        status = status or BAD_INPUT
    # no collection at the end of the process
    gc.freeze()
    raise SystemExit(status)


def run(arguments: list[str]) -> int:
    """Run the command line *arguments*; return the exit status. Bad input is reported on stderr without a traceback."""
    try:
        from clustersim.scenarios.commands import application
        from clustersim.scenarios.commands.terminal import Due

        application.register(next((text for text in arguments if not text.startswith("-")), ""))
        Due.restart()
        status = application.read()(arguments, prog_name="clustersim", standalone_mode=False)
        sys.stdout.flush()
    except InterruptedRunError as error:
        print(f"interrupted: {error}", file=sys.stderr)
        return INTERRUPTED
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # the reader of the output has gone, and click exits; later output is discarded
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (SimulatorError, OSError) as error:
        from clustersim.scenarios.commands.terminal import say

        say(printable(str(error)), sys.stderr)
        return DEADLOCK if isinstance(error, DeadlockError) else BAD_INPUT
    except Exception as error:
        # a usage error; its class is click's or typer's, depending on the version
        if not hasattr(error, "show"):
            raise
        error.show()
        return BAD_INPUT
    if status == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return status if isinstance(status, int) else 0
