"""`clustersim serve` opens a local page in which a scenario is changed by menus and simulated after each change."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clustersim.scenarios.commands.application import Settings, command, complete_scenarios, load


@command()
def serve(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO",
            help="What the page begins with; of several variants the first.",
            autocompletion=complete_scenarios,
        ),
    ] = "gpt_6_7b_64a100",
    settings: Settings = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Open a page on this machine in which menus change a scenario, which is simulated at once."""
    import webbrowser

    from clustersim.scenarios.commands.terminal import say
    from clustersim.scenarios.report import serve as web
    from clustersim.scenarios.report.widgets import plain

    web.check()

    def opened(address: str) -> None:
        say(f"{address}\nThe page is for this machine alone; Ctrl-C ends it.")
        sys.stdout.flush()
        if browser:
            webbrowser.open(address)

    web.Site(plain(load(scenario, settings))).serve(port, opened)
