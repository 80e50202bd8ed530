"""The application that collects the commands, and common exit statuses."""

from __future__ import annotations

import typer

BAD_INPUT, DEADLOCK, INTERRUPTED = 2, 4, 130

app = typer.Typer(
    name="clustersim",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
