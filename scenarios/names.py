"""Names in a scenario stand for files of the house, or with a dot for what the user has written."""

from __future__ import annotations

from simulator.document import Fault
from simulator.document.validation import listed, near
from simulator.lookup import names


def known(name: str, package: str, extra: tuple[str, ...] = ()) -> str:
    """*name* if *package* offers it, or if it is dotted, an import path of the user's own. Raises `Fault`."""
    choices = [*extra, *names(package)]
    if name in choices or "." in name:
        return name
    raise Fault((), f'must be {listed(choices)}, not "{name}"', near(name, choices))
