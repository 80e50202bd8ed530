"""Write the reference of the commands as Markdown, from the command line itself: each command, argument and option.

`docs/conf.py` calls `page` at build time. A new command is in it as soon as it is registered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from clustersim.scenarios.commands.application import app, register

TITLE = """\
# Command reference

Every command of `clustersim`, generated from the command line itself; `clustersim COMMAND --help` prints the same.

A scenario is a path or the name of a shipped one (`clustersim list scenarios`). `--set key.path=value` changes any key
of the [scenario reference](scenario.md). Exit status: 0 ok, 1 an expectation missed, 2 bad input, 3 does not fit (with
`--strict-memory`), 4 a simulated deadlock. Long commands show a bar on a terminal and elsewhere print a line on stderr
every ten seconds."""

GROUPS = {
    "Predict": ("run", "memory", "mfu", "check", "show", "plot", "compare", "report", "serve"),
    "Search": ("plan", "sweep", "sensitivity", "campaign"),
    "Begin and exchange": ("init", "import", "export", "list", "schema"),
    "Measure": ("validate", "calibrate", "explain", "accuracy"),
}
"""Commands by what they are for; others stand at the end."""


def page() -> str:
    """Return the reference as one MyST Markdown page."""
    register()
    commands: dict[str, Any] = dict(typer.main.get_group(app).commands)
    parts = [TITLE, _overview(commands)]
    for heading, names in _groups(commands).items():
        parts.append(f"## {heading}")
        for name in names:
            parts += [f"### clustersim {name}", *_described(name, commands[name])]
    return "\n\n".join(parts) + "\n"


def _groups(commands: dict[str, Any]) -> dict[str, list[str]]:
    """Return the names of *commands* by heading; those without one last."""
    found = {heading: [name for name in names if name in commands] for heading, names in GROUPS.items()}
    grouped = {name for names in found.values() for name in names}
    if rest := sorted(set(commands) - grouped):
        found["Others"] = rest
    return {heading: names for heading, names in found.items() if names}


def _overview(commands: dict[str, Any]) -> str:
    """Return a table of all commands with the first sentence of each."""
    rows = ["| command | what it does |", "|---|---|"]
    for names in _groups(commands).values():
        for name in names:
            first = _text(commands[name].help or "").partition("\n\n")[0]
            rows.append(f"| [`{name}`](#clustersim-{name}) | {_cell(first)} |")
    return "\n".join(rows)


def _described(name: str, command: Any) -> Iterator[str]:
    """Yield the usage of *command*, its description, and the table of its parameters, as ``--help`` has them."""
    context = command.make_context(f"clustersim {name}", [], resilient_parsing=True)
    yield f"```text\n{' '.join(command.get_usage(context).removeprefix('Usage:').split())}\n```"
    yield _text(command.help or "")
    records = [one.get_help_record(context) for one in command.params if one.name != "help"]
    rows = [
        f"| `{re.sub(' <(str|path)>', '', left).strip()}` | {_cell(_text(meaning))} |"
        for left, meaning in filter(None, records)
    ]
    if rows:
        yield "\n".join(["| argument or option | meaning |", "|---|---|", *rows])


def _text(text: str) -> str:
    """Return *text* without the line breaks of its source; paragraphs stay apart."""
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text.replace("\b", "")))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
