"""Names in a scenario: files of the project or, with a dot, import paths of the user's own."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.document.validation import Fault, listed, near
from simulator.errors import SimulatorError
from simulator.lookup import find, names, plain


def known(name: str, package: str, extra: Sequence[str] = (), only: Sequence[str] | None = None) -> str:
    """Return *name* if *package* has such a file (*only*: some of them; *extra*: more), or if it can be imported.

    The import path of a file of *package*, such as ``simulator.network.transport.nccl``, becomes its name: ``nccl``.
    Raises `Fault` with the existing names, or with the error of the user's module.
    """
    choices = [*extra, *(names(package) if only is None else only)]
    name = plain(package, name)
    if name in choices:
        return name
    if "." not in name.strip("."):
        raise Fault((), f'must be {listed(choices)}, not "{name}"', near(name, choices))
    try:
        find(package, name)
    except SimulatorError:
        home, _, stem = name.rpartition(".")
        built_in = f"; it must be {listed(choices)}, or can be imported" if choices else ""
        raise Fault((), f"there is no {stem} in {home}{built_in}") from None
    except Exception as error:  # whatever the user's module raises
        raise Fault((), f"{name} cannot be imported: {type(error).__name__}: {error}") from None
    return name
