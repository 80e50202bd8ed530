"""Names of ops are resolved as if they were written out."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.schedule.dependencies import dependencies, well_named
from clustersim.simulator.schedule.ops import Compute
from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER_TEXT
from clustersim.simulator.schedule.program import OpBlock, Program, TemplatedOps


@st.composite
def waiting_programs(draw):
    """Programs of ops on three streams that wait for ops of any block, named with and without a placeholder."""
    kinds = draw(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3), min_size=1, max_size=3))
    chosen = draw(
        st.lists(st.tuples(st.integers(0, len(kinds) - 1), st.integers(0, 2)), min_size=1, max_size=6, unique=True)
    )
    every = [f"{kind}.{place}.{own}" for kind, own in chosen for place in range(len(kinds[kind]))]
    known, blocks = {}, []
    for kind, own in chosen:
        if kind not in known:
            known[kind] = tuple(
                Compute(
                    name=f"{kind}.{place}.{PLACEHOLDER_TEXT}",
                    kernels=(),
                    stream=stream,
                    after=draw(
                        st.lists(st.sampled_from([*every, f"{kind}.0.{PLACEHOLDER_TEXT}"]), max_size=3).map(tuple)
                    ),
                )
                for place, stream in enumerate(kinds[kind])
            )
        blocks.append(OpBlock(known[kind], own))
    return Program("any", TemplatedOps(blocks))


@given(waiting_programs())
def test_dependencies_are_those_of_the_names_written_out(program):
    place = {op.name: index for index, op in enumerate(program.ops)}
    pairs = [(index, place[name]) for index, op in enumerate(program.ops) for name in op.after]
    pairs = [(one, other) for one, other in pairs if program.ops[one].stream != program.ops[other].stream]
    waiting, awaited = dependencies(program)
    assert list(zip(waiting.tolist(), awaited.tolist(), strict=True)) == pairs


ODD = [
    name.replace("_", PLACEHOLDER_TEXT)
    for name in ("_", "1", "11", "1_", "_1", "__", "a1", "a_", "a01", "a_a1", "a1a_", "a_a_", "a1a1")
]
"""Names with digits, placeholders, both beside each other, or several."""


def test_names_are_judged_as_if_they_were_written_out():
    """All pairs of odd names: as names of two ops, and as name and awaited name."""
    wanted = [(), *((name,) for name in ODD)]
    for name, first, second in product(ODD, (None, 1, 11), (None, 1, 11)):
        blocks = [OpBlock((Compute(name=name, kernels=()),), first)]
        others = [(other, ()) for other in ODD] + [("b", after) for after in wanted]
        for other, after in others:
            block = OpBlock((Compute(name=other, kernels=(), after=after),), second)
            program = Program("any", TemplatedOps([*blocks, block]))
            one, two = program.ops
            assert well_named(program) == (one.name != two.name and set(two.after) <= {one.name}), program
