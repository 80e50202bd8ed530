"""Names in a scenario stand for files of the house, or with a dot for what the user has written."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.document import Fault
from simulator.document.validation import listed, near
from simulator.errors import SimulatorError
from simulator.lookup import find, names


def known(name: str, package: str, extra: Sequence[str] = (), only: Sequence[str] = ()) -> str:
    """*name* if *package* offers it (*only* some of it, and *extra*), or if it is an import path of the user's own.

    Raises `Fault` with the names that there are, or with what keeps the user's module from being imported.
    """
    choices = [*extra, *(only or names(package))]
    if name in choices:
        return name
    if "." not in name.strip("."):
        raise Fault((), f'must be {listed(choices)}, not "{name}"', near(name, choices))
    try:
        find(package, name)
    except SimulatorError:
        home, _, stem = name.rpartition(".")
        raise Fault((), f"there is no {stem} in {home}; it must be {listed(choices)}, or can be imported") from None
    except Exception as error:  # whatever the user's module raises
        raise Fault((), f"{name} cannot be imported: {type(error).__name__}: {error}") from None
    return name
