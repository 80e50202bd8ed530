"""Matching against the rule applied op by op, on random programs of blocks with and without placeholders."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.schedule.matching import NONE, CollectiveKey, CopyKey, Matching, MessageKey
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Delay, Recv, Send
from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER, Action
from clustersim.simulator.schedule.program import OpBlock, Program, TemplatedOps
from clustersim.simulator.schedule.schedule import Schedule

STREAMS = st.sampled_from(["compute", "other"])
AXES = st.sampled_from(["tp", "pp"])
SIZES = st.sampled_from([4.0, 8.0])
ACTIONS = st.one_of(
    st.none(), st.builds(Action, st.sampled_from("FB"), st.integers(0, 1), st.sampled_from([None, PLACEHOLDER, 0, 1]))
)
MESSAGES = {"name": st.just("op"), "over": AXES, "peer": st.integers(0, 1), "nbytes": SIZES, "action": ACTIONS}
OPS = st.one_of(
    st.builds(Collective, name=st.just("op"), kind=st.just("all_reduce"), over=AXES, nbytes=SIZES, stream=STREAMS),
    st.builds(Send, stream=STREAMS, buffered=st.booleans(), **MESSAGES),
    st.builds(Recv, stream=STREAMS, **MESSAGES),
    st.builds(Copy, name=st.just("op"), nbytes=SIZES, to=st.sampled_from(["host", "gpu"])),
    st.just(Compute(name="op", kernels=(measured(1.0),))),
    st.just(Delay(name="op", seconds=1.0)),
)


@st.composite
def programs(draw):
    templates = draw(st.lists(st.lists(OPS, max_size=5).map(tuple), min_size=1, max_size=3))
    blocks = draw(st.lists(st.tuples(st.sampled_from(templates), st.sampled_from([None, 0, 1, 2])), max_size=6))
    return Program("any", TemplatedOps(OpBlock(ops, micro_batch) for ops, micro_batch in blocks))


def written_out(program):
    """The expected meaning of the key of each op, counted op by op."""
    count = Counter()
    for op in program.ops:
        match op:
            case Collective():
                where = op.over, op.stream
                yield CollectiveKey(*where, count[where])
            case Send() | Recv():
                where = type(op), op.peer, op.over, op.action
                yield MessageKey(op.over, op.action, count[where])
            case Copy():
                where = Copy
                yield CopyKey(count[where])
            case _:
                where = None
                yield None
        count[where] += 1


@given(st.lists(programs(), min_size=1, max_size=3))
def test_keys_stand_for_the_rule_and_are_equal_where_it_is(chosen):
    mesh = Mesh.regular({"tp": 2, "pp": 2})
    schedule = Schedule(mesh, tuple(chosen), tuple(rank % len(chosen) for rank in range(4)))
    matching = schedule.matching
    of_meaning, used = {}, set()
    for program, keys in zip(schedule.programs, matching.key, strict=True):
        assert len(keys) == len(program.ops)
        for key, meaning in zip(keys.tolist(), written_out(program), strict=True):
            assert (key == NONE) == (meaning is None)
            if meaning is not None:
                used.add(key)
                assert matching.meaning(key) == meaning
                assert of_meaning.setdefault(meaning, key) == key
    assert used == set(range(matching.keys))
    assert len(of_meaning) == len(used)


@given(programs())
def test_ops_have_one_request_if_they_ask_the_same_of_the_same(program):
    matching = Matching((program,))
    (requests,), (request,) = matching.requests, matching.request
    fields = "over", "peer", "kind", "nbytes", "root", "algorithm", "to", "buffered"
    asked = [tuple(getattr(op, name, None) for name in fields) for op in program.ops]
    for op, number, mine in zip(program.ops, request.tolist(), asked, strict=True):
        assert (number == NONE) == isinstance(op, Compute | Delay)
        if number != NONE:
            assert type(requests[number]) is type(op)
            assert tuple(getattr(requests[number], name, None) for name in fields) == mine
    assert len({(type(op), *(getattr(op, name, None) for name in fields)) for op in requests}) == len(requests)
