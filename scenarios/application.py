"""The application that collects the commands, and common exit statuses."""

from __future__ import annotations

import typer

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
