"""Gathers of sharded weights ahead of their products, and reduce-scatters of their gradients beside what follows.

An operator names these exchanges where it needs them, on the stream ``compute`` (`workloads.operators.grids.agarwal`).
The passes here move them to a stream named like their axis, as AxoNN overlaps them (Singh et al. 2025,
arXiv:2502.08145, section V-D; axonn/intra_layer/overlap_communication.py). NCCL runs the collectives of one group in
order, so one stream has both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from simulator.schedule import Collective, Compute, Op, Program
from simulator.schedule.order import Action
from simulator.schedule.program import TemplatedOps

Ops = tuple[Op, ...]

Place = tuple[int | None, str | None]
"""(stage, layer)."""


def gathered_once(program: Program, over: str) -> Program:
    """*program* without the gathers of the backward pass of a layer that is recomputed just before.

    The backward pass uses the weights that the last recomputation has gathered (AxoNN,
    ``cache_weights_in_all_gather``). So these are held until then.
    """

    def change(ops: Ops) -> Iterator[Op]:
        begins = _last_recomputations(ops)
        last = [i for i, op in enumerate(ops) if _gathers(op, over) and i >= begins.get(_place(op), len(ops))]
        phases = {phase: {_place(ops[i]) for i in last if _phase(ops[i]) == phase} for phase in "RBI"}
        again = phases["R"] & (phases["B"] | phases["I"])
        held = 0.0
        for index, op in enumerate(ops):
            if isinstance(op, Collective) and index in last and _place(op) in again:
                held += op.nbytes if _phase(op) == "R" else 0.0
                yield from (op,) * (_phase(op) == "R")
            elif held and isinstance(op, Compute):
                yield replace(op, frees={**op.frees, "buffers": op.frees.get("buffers", 0.0) - held})
                held = 0.0
            else:
                yield op

    return _by_template(program, change)


def gathered_ahead(program: Program, over: str) -> Program:
    """*program* with each gather over *over* issued one product ahead: when the product before it can begin."""

    def change(ops: Ops) -> Iterator[Op]:
        places = [place for place, op in enumerate(ops) if _gathers(op, over)]
        moved = [replace(ops[place], stream=over, after=_before(ops, issue)) for place, issue in _issues(places)]
        issued: defaultdict[int, list[Op]] = defaultdict(list)
        for op, (_, issue) in zip(moved, _issues(places), strict=True):
            issued[issue].append(op)
        awaited: tuple[str, ...] = ()
        for place, op in enumerate(ops):
            if _gathers(op, over):
                yield from issued[place]
                awaited += (op.name,)
            elif awaited and isinstance(op, Compute):
                yield replace(op, after=(*op.after, *awaited))
                awaited = ()
            else:
                yield op

    return _by_template(program, change)


def _issues(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(place of a gather, place where it is issued): that of the gather before it."""
    return zip(places, [*places[:1], *places[:-1]], strict=True)


def _before(ops: Ops, place: int) -> tuple[str, ...]:
    """The name of the last computation before *place*, if there is one."""
    names = [op.name for op in ops[:place] if isinstance(op, Compute)]
    return tuple(names[-1:])


def scattered_beside(program: Program, over: str) -> Program:
    """*program* with reduce-scatters over *over* beside what follows; only the optimizer step waits for them.

    A computation without kernels at the end of a layer's backward pass is ready when all of the layer's gradients are,
    so that data parallelism can reduce them further.
    """

    def change(ops: Ops) -> Iterator[Op]:
        last: dict[tuple[Action | None, str | None], int] = {
            (op.action, op.layer): place for place, op in enumerate(ops) if isinstance(op, Compute) and op.layer
        }
        pending: set[tuple[Action | None, str | None]] = set()
        for place, op in enumerate(ops):
            key: tuple[Action | None, str | None] = (op.action, op.layer)
            if isinstance(op, Collective) and op.kind == "reduce_scatter" and _on(op, over):
                yield replace(op, stream=over, after=_before(ops, place))
                pending.add(key)
                continue
            if op.action and op.action.phase == "O":
                ready = Compute(name=f"{op.name}.reduced", stream=over, kernels=())
                yield from (ready, replace(op, after=(*op.after, ready.name)))
                continue
            yield op
            if last.get(key) == place and key in pending:
                name = f"{op.name}.reduced"
                yield Compute(name=name, action=op.action, layer=op.layer, stream=over, after=(op.name,), kernels=())

    return _by_template(program, change)


def _last_recomputations(ops: Ops) -> dict[Place, int]:
    """By place, the index of the first op of the last recomputation before the backward pass."""
    found: dict[Place, int] = {}
    latest: Place | None = None
    for index, op in enumerate(ops):
        if op.action and op.layer:
            place = _place(op) if op.action.phase == "R" else None
            if place and place != latest:
                found[place] = index
            latest = place
    return found


def _phase(op: Op) -> str:
    return op.action.phase if op.action else ""


def _place(op: Op) -> Place:
    """(stage, layer)."""
    return op.action.stage if op.action else None, op.layer


def _gathers(op: Op, over: str) -> bool:
    return isinstance(op, Collective) and op.kind == "all_gather" and _on(op, over)


def _on(op: Collective, over: str) -> bool:
    return op.over == over and op.stream == "compute"


def _by_template(program: Program, change: Callable[[Ops], Iterator[Op]]) -> Program:
    ops = program.templated
    mapped = [tuple(change(tuple(template))) for template in ops.templates]
    return program.with_templated_ops(TemplatedOps.from_columns(mapped, ops.which, ops.micro_batches))
