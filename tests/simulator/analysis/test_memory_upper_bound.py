"""The bound of memory, summed by template, against following every op."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.analysis.memory_upper_bound import held_at_most
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER_TEXT
from clustersim.simulator.schedule.program import OpBlock, Program, TemplatedOps

BYTES = st.dictionaries(st.sampled_from(["activations", "buffers", "host.optimizer"]), st.integers(0, 9).map(float))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Blocks of random templates, whose ops allocate, free and wait on three streams."""
    templates: list[tuple[Op, ...]] = []
    for number in range(draw(st.integers(1, 4))):
        names = [f"{PLACEHOLDER_TEXT}.{number}.{place}" for place in range(draw(st.integers(1, 5)))]
        ops: list[Op] = []
        for place, name in enumerate(names):
            held: dict[str, Any] = {"allocates": draw(BYTES), "frees": draw(BYTES)}
            after = tuple(draw(st.lists(st.sampled_from(names[:place]), max_size=2, unique=True))) if place else ()
            stream = draw(st.sampled_from(["compute", "compute", "dp.reduce", "dp.gather"]))
            if stream == "compute":
                ops.append(Compute(name=name, kernels=(), after=after, **held))
            else:
                kind: dict[str, Any] = {"kind": "all_reduce", "over": "dp", "nbytes": 1.0}
                ops.append(Collective(name=name, stream=stream, after=after, **kind, **held))
        templates.append(tuple(ops))
    which = draw(st.lists(st.integers(0, len(templates) - 1), min_size=1, max_size=8))
    blocks = [OpBlock(templates[one], micro_batch) for micro_batch, one in enumerate(which)]
    return Program("rank", TemplatedOps(blocks), {"parameters": 3.0})


def followed(program: Program, host: bool) -> float:
    """The most bytes, by following every op in program order."""
    held = most = 0.0 if host else 3.0
    pending: dict[str, Op] = {}

    def own(amounts: dict[str, float]) -> float:
        return sum(nbytes for name, nbytes in amounts.items() if name.startswith("host.") == host)

    for op in program.ops:
        waits = op.after if op.stream == "compute" else ()
        for stream in [stream for stream, last in pending.items() if stream == op.stream or last.name in waits]:
            held -= own(dict(pending.pop(stream).frees))
        held += own(dict(op.allocates))
        most = max(most, held)
        if op.stream == "compute":
            held -= own(dict(op.frees))
        elif op.frees:
            pending[op.stream] = op
    return most


@given(programs())
def test_the_bound_by_template_is_that_of_every_op(program: Program) -> None:
    for host in (False, True):
        found = held_at_most(program, host=host)
        assert found.nbytes == followed(program, host)
        assert sum(found.by_category.values()) == found.nbytes
