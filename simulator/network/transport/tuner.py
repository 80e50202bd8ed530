"""The tuner picks algorithm and protocol: what the user fixed, else the least time by the library's own model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from simulator import lookup
from simulator.errors import SimulatorError
from simulator.network.step import Group, Step
from simulator.network.transport.transport import Setting, Transport
from simulator.schedule import COLLECTIVES

FOLDER = "simulator.network.collectives"

ROOTED = ("broadcast", "reduce", "gather", "scatter")


def check(algorithms: Mapping[str, str]) -> None:
    """Hold the user's choice against what there is.

    Keys are a collective or ``axis.collective``, values ``auto``, a file of the folder, or a dotted name of the user's
    own. Raises `UnknownName` or `SimulatorError`.
    """
    for key, name in algorithms.items():
        kind = key.rpartition(".")[2]
        if kind not in COLLECTIVES:
            near = ", ".join(lookup.nearest(kind, list(COLLECTIVES)))
            raise SimulatorError(f'algorithms: "{key}" names no collective; there are: {near}')
        if name != "auto":
            function(name, kind)


@lru_cache(maxsize=1024)
def function(name: str, kind: str) -> Callable[..., list[Step]]:
    """The function *kind* of the algorithm *name*; raises `UnknownName`, or `SimulatorError` where it has none."""
    module: Any = lookup.find(FOLDER, name)
    found: Callable[..., list[Step]] | None = getattr(module, kind, None)
    if found is None:
        having = [other for other in lookup.names(FOLDER) if hasattr(lookup.find(FOLDER, other), kind)]
        raise SimulatorError(f"{name} has no {kind}; those that have it: {', '.join(having)}")
    return found


def steps(name: str, kind: str, group: Group, nbytes: float, root: int) -> list[Step]:
    """What the algorithm *name* makes of one collective; steps in which no one sends are left out."""
    build = function(name, kind)
    built = build(group, nbytes, root) if kind in ROOTED else build(group, nbytes)
    return [step for step in built if step.transfers]


def candidates(transport: Transport, algorithms: Mapping[str, str], axis: str, kind: str, asked: str) -> Iterable[str]:
    """The algorithms to choose among.

    What is fixed for the axis comes first, then what the op itself *asked* for, then what is fixed for the collective.
    """
    for name in (algorithms.get(f"{axis}.{kind}", "auto"), asked, algorithms.get(kind, "auto")):
        if name != "auto":
            return (name,)
    return transport.algorithms.get(kind, ("direct",))


def offered(
    transport: Transport, algorithms: Mapping[str, str], axis: str, kind: str, asked: str, setting: Setting
) -> list[str]:
    """The `candidates` that *transport* can use in *setting*. Raises `SimulatorError` where it can use none."""
    names = list(candidates(transport, algorithms, axis, kind, asked))
    usable = [name for name in names if transport.offered(name, setting)]
    if not usable:
        kinds = " or ".join(transport.switch_only.get(names[0], ()))
        raise SimulatorError(
            f"{kind} over {axis}: {names[0]} needs GPUs of one server behind switches of {kinds}; try auto"
        )
    return usable
