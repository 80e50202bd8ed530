"""The application, its exit statuses and its commands, whose files are imported when they are called.

The signature of a command lists its options; therefore some of these functions are over 40 lines long.
"""

from __future__ import annotations

import typer

from clustersim.simulator.reading.lookup import module

BAD_INPUT, DEADLOCK, INTERRUPTED = 2, 4, 130


class InterruptedRunError(Exception):
    """The user has interrupted a command; the message says what of it is missing."""


app = typer.Typer(
    name="clustersim",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

MODULES = {
    "accuracy": "accuracy",
    "calibrate": "calibrate",
    "campaign": "campaign",
    "check": "check",
    "compare": "compare",
    "explain": "explain",
    "init": "init",
    "list": "listing",
    "memory": "memory",
    "mfu": "mfu",
    "plan": "plan",
    "plot": "plot",
    "run": "run",
    "schema": "schema",
    "sensitivity": "sensitivity",
    "show": "show",
    "sweep": "sweep",
    "validate": "validate",
    "export": "export",
    "import": "importing",
    "report": "report",
}
"""The module of each command, below this package, in the order of the help."""


def register(name: str = "") -> None:
    """Import the command *name*, which registers it with the application; all commands if there is none of that name.

    Typer reads the signatures of all registered commands, which takes longer than many a command.
    """
    for one in [name] if name in MODULES else MODULES:
        module(f"{__package__}.{MODULES[one]}")
    order = list(MODULES)
    app.registered_commands.sort(key=lambda command: order.index(command.name or command.callback.__name__))  # type: ignore[union-attr]
