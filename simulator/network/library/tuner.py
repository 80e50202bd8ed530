"""The tuner's choice among algorithms (the user's, else those of the library that a group can use) and their steps; of
an all-to-all also with unequal blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from clustersim.simulator.network.algorithm_files import algorithm_file
from clustersim.simulator.network.proof import ROOTED, prove, taken
from clustersim.simulator.network.step import Group, Step
from clustersim.simulator.network.transport import GroupProperties, Transport
from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.schedule.ops import COLLECTIVES, BySender, PerPeer

FOLDER = "clustersim.simulator.network.collectives"

NVLS = "nvls"
"""The algorithm of the folder that needs the same switches as a file whose operations are `multimem` instructions."""


def check(algorithms: Mapping[str, str]) -> None:
    """Check the user's choice of algorithms.

    Keys are a collective or ``axis.collective``. Values are ``auto``, a file of the folder, a dotted name of the
    user's own, or an algorithm file of MSCCL. Raises `UnknownName` or `SimulatorError`.
    """
    for key, name in algorithms.items():
        kind = key.rpartition(".")[2]
        if kind not in COLLECTIVES:
            near = ", ".join(lookup.nearest(kind, list(COLLECTIVES)))
            raise SimulatorError(f'algorithms: "{key}" is not a collective; there are: {near}')
        if name != "auto":
            function(name, kind)


@lru_cache(maxsize=1024)
def function(name: str, kind: str) -> Callable[..., list[Step]]:
    """Return the function *kind* of the algorithm *name*. Raises `UnknownName` or `SimulatorError`."""
    if algorithm_file.is_file(name):
        own = algorithm_file.algorithm(name)
        if own.kind != kind:
            raise SimulatorError(f"{name} is an {own.kind}, not an {kind}")
        return own
    module: Any = lookup.find(FOLDER, name)
    found: Callable[..., list[Step]] | None = getattr(module, kind, None)
    if found is None:
        having = [other for other in lookup.names(FOLDER) if hasattr(lookup.find(FOLDER, other), kind)]
        raise SimulatorError(f"{name} has no {kind}; algorithms with {kind}: {', '.join(having)}")
    return found


def steps(name: str, kind: str, group: Group, nbytes: float, root: int) -> list[Step]:
    """Return the steps of the algorithm *name* for one collective, without steps that have no transfers.

    The user's own are proved first. Raises `SimulatorError` if they are wrong.
    """
    if is_own(name):
        prove_own(name, kind, group, nbytes, root)
    build = function(name, kind)
    built = build(group, nbytes, root) if kind in ROOTED else build(group, nbytes)
    return [step for step in built if step.transfers]


@lru_cache(maxsize=1024)
def prove_own(name: str, kind: str, group: Group, nbytes: float, root: int) -> None:
    """Execute the user's algorithm *name* on symbolic chunks. Raises `SimulatorError` with the chunk that is wrong."""
    try:
        prove(function(name, kind), kind, group, nbytes, root)
    except SimulatorError as error:
        raise SimulatorError(f"{name}: {error}") from None


def is_own(name: str) -> bool:
    """Return whether *name* is the import path of an algorithm of the user's own. A file is proved when it is read."""
    return "." in name and not algorithm_file.is_file(name)


def ranks_allowed(name: str) -> str:
    """Return for which numbers of ranks the algorithm *name* is, in words: the docstring of its `ranks_allowed`."""
    if algorithm_file.is_file(name):
        return f"{algorithm_file.algorithm(name).ranks} ranks"
    allowed = lookup.attribute_of(FOLDER, name, "ranks_allowed")
    words = "" if allowed is None else " ".join((allowed.__doc__ or "some numbers of ranks").split()).rstrip(".")
    return words[:1].lower() + words[1:]


def thread_blocks(name: str) -> int:
    """Return the thread blocks of a GPU that the algorithm *name* has; 0: as many as the library's channels."""
    return algorithm_file.algorithm(name).thread_blocks if algorithm_file.is_file(name) else 0


def algorithm_names(
    transport: Transport, algorithms: Mapping[str, str], axis: str, kind: str, requested: str
) -> Iterable[str]:
    """Return the algorithms to choose from.

    First comes the user's choice for the axis, then the request of the op, then the user's choice for the collective.
    """
    for name in (algorithms.get(f"{axis}.{kind}", "auto"), requested, algorithms.get(kind, "auto")):
        if name != "auto":
            return (name,)
    return transport.algorithms.get(kind, ("direct",))


def usable_algorithms(
    transport: Transport, algorithms: Mapping[str, str], axis: str, kind: str, requested: str, group: GroupProperties
) -> list[str]:
    """Return the `algorithm_names` that *transport* can use in *group*. Raises `SimulatorError` if there are none."""
    names = list(algorithm_names(transport, algorithms, axis, kind, requested))
    if (
        algorithm_file.is_file(names[0])
        and algorithm_file.algorithm(names[0]).switched
        and not (transport.usable_protocols(NVLS, group))
    ):
        raise SimulatorError(f"{kind} over {axis}: {names[0]} needs {transport.needs(NVLS)}, which add and copy")
    usable = [name for name in names if transport.usable_protocols(name, group)]
    fitting = [name for name in usable if taken(function(name, kind), group.ranks)]
    if usable and not fitting:
        needed = f"{usable[0]} is for {ranks_allowed(usable[0])}"
        raise SimulatorError(f"{kind} over {axis}: {needed}, and the group has {group.ranks} ranks; try auto")
    if not usable:
        raise SimulatorError(f"{kind} over {axis}: {names[0]} needs {transport.needs(names[0])}; try auto")
    return fitting


def unequal(steps: Sequence[Step], per_peer: PerPeer) -> list[Step]:
    """Return *steps*, whose transfers carry the block for their receiver, with ``per_peer[j]`` bytes for receiver j.

    With `BySender`, sender i sends ``per_peer.nbytes[i]`` bytes to every receiver.

    A step becomes one step for each size of block: all transfers send the bytes of the smallest block, then transfers
    with larger blocks continue, and so on. The further steps pay no latency. A transfer of no bytes is left out. Raises
    `SimulatorError` for an algorithm that forwards blocks.
    """
    end, nbytes = (0, per_peer.nbytes) if isinstance(per_peer, BySender) else (1, per_peer)
    return [part for step in steps for part in _divided(step, nbytes, end)]


def _divided(step: Step, nbytes: Sequence[float], end: int) -> Iterator[Step]:
    if step.repeat != 1 or step.pipelined or step.coupled:
        raise SimulatorError("an all-to-all with unequal blocks needs an algorithm that sends each block directly")
    sent = 0.0
    for size in sorted({nbytes[transfer[end]] for transfer in step.transfers if nbytes[transfer[end]]}):
        transfers = tuple(transfer for transfer in step.transfers if nbytes[transfer[end]] >= size)
        yield replace(step, transfers=transfers, nbytes=size - sent, blocks=None, continues=sent > 0)
        sent = size
