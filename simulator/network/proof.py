"""A proof that an algorithm is right: its steps run on symbolic chunks, and each rank must end with the right data.

A chunk of a vector is a number whose field r counts how often the contribution of rank r is in it. Costs do not need
`Step.blocks`, the proof does: a step without blocks carries whole vectors, over all its repetitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isclose, lcm, prod

from clustersim.simulator.network.step import Group, Step
from clustersim.simulator.reading.errors import SimulatorError

Vector = list[int]
"""By chunk the contributions that a rank holds of it."""

Algorithm = Callable[..., list[Step]]

ROOTED = ("broadcast", "reduce", "gather", "scatter")
"""Collectives with a root, which their algorithms take as third argument."""

ADDED = "all_reduce", "reduce_scatter", "reduce"
"""Collectives that add the vectors of all ranks."""

BITS = 16
"""Of the count of each contribution: more than any algorithm adds."""

MOST_DELIVERIES = 100_000
"""Chunks that a proof delivers at most, a fraction of a second. A larger group is represented by a smaller one."""

SHOWN = 4
"""Ranks that a message names at most."""


def contribution(rank: int) -> int:
    """Return the chunk that holds the contribution of *rank* once."""
    return 1 << BITS * rank


def built(algorithm: Algorithm, kind: str, group: Group, nbytes: float, root: int) -> list[Step]:
    """Return the steps of *algorithm*, without steps that have no transfers."""
    steps = algorithm(group, nbytes, root) if kind in ROOTED else algorithm(group, nbytes)
    return [step for step in steps if step.transfers]


def prove(algorithm: Algorithm, kind: str, group: Group, nbytes: float = 1.0, root: int = 0) -> None:
    """Execute *algorithm* for the collective *kind* over *group*.

    A group with too many chunks to deliver is represented by the largest smaller one of its structure that is not, and
    that the algorithm takes (`taken`). Raises `SimulatorError` with the chunk and the rank that are wrong.
    """
    for one, its_root in represented(group, root):
        if not taken(algorithm, one.size):
            continue
        steps = built(algorithm, kind, one, nbytes, its_root)
        parts = lcm(one.size**2 if kind == "all_to_all" else one.size, *(max(1, step.parts) for step in steps))
        if deliveries(steps, parts) <= MOST_DELIVERIES:
            break
    if fault := _fault(kind, one, its_root, nbytes, steps, parts):
        raise SimulatorError(f"{kind} over {one.size} ranks is wrong: {fault}")


def taken(algorithm: Algorithm, ranks: int) -> bool:
    """Return whether *algorithm* is for so many *ranks*: what `ranks_allowed` of it or its module says, if there is."""
    allowed = getattr(algorithm, "ranks_allowed", None) or getattr(algorithm, "__globals__", {}).get("ranks_allowed")
    return allowed is None or bool(allowed(ranks))


def represented(group: Group, root: int = 0) -> Iterator[tuple[Group, int]]:
    """Yield *group* and smaller ones of its structure: half the servers each time, then half the ranks of each."""
    yield group, root
    count, each = len(group.servers), max(map(len, group.servers))
    sides = tuple(min(side, 4) for side in group.dims)
    while count > 2 or each > 4:
        if count > 2:
            count = (count + 1) // 2
        elif group.dims:
            if each == prod(sides):
                return
            each = prod(sides)
        else:
            each = (each + 1) // 2
        dims = sides if group.dims and each == prod(sides) else group.dims
        yield _part(group, root, [server[:each] for server in group.servers[:count]], dims)


def _part(group: Group, root: int, servers: Sequence[Sequence[int]], dims: tuple[int, ...]) -> tuple[Group, int]:
    """The positions of *servers* as a group of their own, and the root in it."""
    number = {position: place for place, position in enumerate(sorted(p for server in servers for p in server))}
    nodes = tuple(tuple(number[p] for p in server) for server in servers)
    rings = tuple(tuple(number[p] for p in ring if p in number) for ring in group.rings)
    return Group(len(number), nodes if group.nodes else (), rings, dims), number.get(root, 0)


def deliveries(steps: Iterable[Step], parts: int) -> int:
    """Return how many chunks *steps* deliver if vectors have *parts* chunks."""
    return sum(
        step.repeat * len(step.transfers) * len(_blocks(step, 0, 0)) * (parts // max(1, step.parts)) for step in steps
    )


def start(kind: str, size: int, parts: int, root: int) -> list[Vector]:
    """The data that each rank holds before: its own vector, its own block, or the root's vector at the root alone."""

    def holds(rank: int, part: int) -> bool:
        if kind in ADDED:
            return True
        if kind in ("broadcast", "scatter"):
            return rank == root
        return rank == part * size // parts

    return [[contribution(rank) if holds(rank, part) else 0 for part in range(parts)] for rank in range(size)]


def expected(kind: str, size: int, parts: int, root: int, rank: int) -> dict[int, int]:  # noqa: PLR0911
    """The data that *rank* must hold after, by chunk."""
    everyone = sum(map(contribution, range(size)))
    owner = [part * size // parts for part in range(parts)]
    mine = [part for part in range(parts) if owner[part] == rank]
    if kind == "all_reduce":
        return dict.fromkeys(range(parts), everyone)
    if kind == "reduce":
        return dict.fromkeys(range(parts), everyone) if rank == root else {}
    if kind == "reduce_scatter":
        return dict.fromkeys(mine, everyone)
    if kind == "broadcast":
        return dict.fromkeys(range(parts), contribution(root))
    if kind == "scatter":
        return dict.fromkeys(mine, contribution(root))
    if kind == "all_to_all":
        block = parts // size // size
        return {part: contribution(owner[part]) for part in range(parts) if part // block % size == rank}
    wants_all = kind == "all_gather" or rank == root
    return {part: contribution(owner[part]) for part in range(parts)} if wants_all else {}


def execute(steps: Iterable[Step], vectors: list[Vector]) -> None:
    """Execute *steps* on *vectors*. Raises `SimulatorError` if a rank sends what it does not have.

    Rounds: all sends of a repetition read the state before it. Pipelined: transfers in order, chunk by chunk. A step
    that forwards sends what arrived in the repetition before.
    """
    for step in steps:
        arrived = vectors
        for repetition in range(step.repeat if step.blocks is not None else 1):
            every = range(len(step.transfers))
            if step.forwards:
                arriving = _messages(step, repetition, every, arrived)
                _deliver(vectors, arriving)
                arrived = [[0] * len(vector) for vector in vectors]
                _deliver(arrived, arriving)
            elif step.pipelined:
                for number in every:
                    _deliver(vectors, _messages(step, repetition, [number], vectors))
            else:
                _deliver(vectors, _messages(step, repetition, every, vectors))


def _blocks(step: Step, repetition: int, number: int) -> Sequence[int]:
    return step.blocks(repetition, number) if step.blocks is not None else range(max(1, step.parts))


def _messages(
    step: Step, repetition: int, numbers: Iterable[int], vectors: list[Vector]
) -> list[tuple[int, int, int, bool]]:
    """(receiver, chunk, data sent, whether it is added) in the present state."""
    parts = len(vectors[0])
    fine = parts // max(1, step.parts)
    found = []
    for number in numbers:
        sender, receiver = step.transfers[number]
        for block in _blocks(step, repetition, number):
            for part in range(block * fine, (block + 1) * fine):
                if not vectors[sender][part]:
                    if step.blocks is None:
                        continue
                    raise SimulatorError(f"rank {sender} sends chunk {part} of {parts}, of which it has nothing")
                found.append((receiver, part, vectors[sender][part], step.adds(number)))
    return found


def _deliver(vectors: list[Vector], arriving: Iterable[tuple[int, int, int, bool]]) -> None:
    for receiver, part, sent, adds in arriving:
        vectors[receiver][part] = vectors[receiver][part] + sent if adds else sent


def _fault(kind: str, group: Group, root: int, nbytes: float, steps: Sequence[Step], parts: int) -> str:
    """The first fault of *steps*, or nothing."""
    whole = nbytes * group.size if kind == "all_to_all" else nbytes
    for number, step in enumerate(steps, 1):
        if fault := _of_step(step, group, whole):
            return f"step {number} {fault}"
    vectors = start(kind, group.size, parts, root)
    try:
        execute(steps, vectors)
    except SimulatorError as error:
        return str(error)
    for rank, vector in enumerate(vectors):
        for part, wanted in expected(kind, group.size, parts, root, rank).items():
            if vector[part] != wanted:
                return f"rank {rank} ends with {held(vector[part], wanted, group.size)} in chunk {part} of {parts}"
    return ""


def _of_step(step: Step, group: Group, whole: float) -> str:
    """What is wrong with *step* alone: its ranks, or its bytes, which are those of its blocks."""
    for sender, receiver in step.transfers:
        if sender == receiver:
            return f"has a transfer of rank {sender} to itself"
        for rank in (sender, receiver):
            if not 0 <= rank < group.size:
                return f"names rank {rank} of {group.size}"
    carried = len(_blocks(step, 0, 0)) / max(1, step.parts)
    if step.blocks is None and not isclose(step.nbytes * step.repeat, whole, rel_tol=1e-6):
        share = step.nbytes * step.repeat / whole
        return f"sends {share:.3g} of a vector and does not say which part: give Step parts and blocks"
    if step.blocks is not None and not isclose(step.nbytes, carried * whole, rel_tol=1e-6):
        return f"says {step.nbytes / whole:.3g} of a vector for each transfer, but its blocks are {carried:.3g} of it"
    return ""


def held(found: int, wanted: int, size: int) -> str:
    """Return the difference of a chunk that was *found* from that *wanted*, in words."""
    mask = (1 << BITS) - 1
    counts = [(rank, found >> BITS * rank & mask, wanted >> BITS * rank & mask) for rank in range(size)]
    if not found:
        return "nothing"
    missing = [rank for rank, count, right in counts if count < right]
    several = [rank for rank, count, right in counts if count > right]
    if missing:
        return f"no contribution of {_ranks(missing)}"
    return f"too much of {_ranks(several)}"


def _ranks(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:SHOWN]))}{more}"
