"""Folded equals unfolded, span by span, for any cause of asymmetry; and classes are as coarse as they can be."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clustersim import topologies
from clustersim.simulator.analysis import memory, network_traffic
from clustersim.simulator.engine.pricing import Variation
from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.mesh import Axis, Mesh
from clustersim.simulator.schedule.ops import Collective, Compute, Recv, Send
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.architectures.shape import Mlp, SelfAttention, Shape
from clustersim.workloads.architectures.transformer import transformer
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.memory.recompute import CHOICES, recompute
from clustersim.workloads.operators.lowering import Overlap
from clustersim.workloads.operators.stages import stages_of
from clustersim.workloads.parallelism.ddp import data_parallel
from clustersim.workloads.parallelism.pipeline import pipeline_parallel
from clustersim.workloads.parallelism.tensor import sharded, tensor_parallel
from clustersim.workloads.parallelism.zero import zero
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b
from clustersim.workloads.software_stack import software as stack
from tests.nodes import V100

FABRICS = [
    {"kind": "switch"},
    {"kind": "fat_tree", "oversubscription": 4.0},
    {"kind": "torus", "dims": [2, 2]},
    {"kind": "dragonfly"},
]


JITTER = st.sampled_from([0.0, 0.0, 0.1])


def cluster_of(fabric, nics):
    node = {**V100, "nics": nics}
    return topologies.cluster({"nodes": 4, "node": node, "fabric": fabric})


@st.composite
def schedules(draw, ranks):
    """Random programs on a random regular mesh: computation, collectives over its axes, a ring of messages."""
    sizes = draw(st.permutations(draw(st.sampled_from([(2, 4, 2), (4, 4, 1), (2, 2, 4), (16, 1, 1), (8, 2, 1)]))))
    mesh = Mesh.regular(dict(zip(("tp", "dp", "pp"), sizes, strict=True)))
    assert mesh.world_size == ranks
    stages = len(mesh.axes["pp"].groups[0])
    lengths = [draw(st.sampled_from([0.0, 1e-3, 3e-3])) for _ in range(stages)]
    kinds = st.sampled_from(["all_reduce", "all_gather", "broadcast", "all_to_all"])
    one = st.tuples(kinds, st.sampled_from(["tp", "dp"]), st.sampled_from([1e4, 3e6, 2e8]), st.booleans())
    rounds = draw(st.lists(one, max_size=4))
    programs = tuple(_program(stage, stages, lengths[stage], rounds) for stage in range(stages))
    place = mesh.axes["pp"].place
    return Schedule(mesh, programs, tuple(place(rank)[1] for rank in range(ranks)), steps=draw(st.integers(1, 2)))


def _program(stage, stages, seconds, rounds):
    ops = []
    for number, (kind, axis, nbytes, blocks) in enumerate(rounds):
        action = Action("F", 0, number)
        ops.append(Compute(name=f"work {number}", kernels=(measured(seconds),)))
        where = {"stream": "compute" if blocks else axis, "after": (ops[-1].name,)}
        ops.append(Collective(name=f"{kind} {number}", kind=kind, over=axis, nbytes=nbytes, **where))
        if stages > 1:
            ends = (stage + 1) % stages, (stage - 1) % stages
            common = {"over": "pp", "nbytes": 1e6, "action": action}
            ops.append(Send(name=f"send {number}", peer=ends[0], stream="to", after=(f"work {number}",), **common))
            ops.append(Recv(name=f"recv {number}", peer=ends[1], stream="from", **common))
            ops.append(Compute(name=f"more {number}", kernels=(measured(seconds),), after=(f"recv {number}",)))
    return Program(f"stage {stage}", tuple(ops))


RUNS = [(engine, fold) for engine in ("simpy", "compiled") for fold in (False, True)]


def assert_equal(schedule, cluster, **how):
    """Assert that spans, peaks and bytes are the same on both engines, folded and unfolded. Return a folded run."""
    check(schedule)
    runs = {run: simulate(schedule, cluster, engine=run[0], fold=run[1], **how) for run in RUNS}
    plain = runs["simpy", False]
    close = 1e-9 * plain.makespan
    for folded in runs.values():
        for rank in range(plain.world_size):
            mine, theirs = folded.of(rank), plain.of(rank)
            assert (mine.op == theirs.op).all()
            assert (mine.step == theirs.step).all()
            for name in ("ready", "begin", "end"):
                np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), rtol=0, atol=close, err_msg=name)
            assert_streams_in_order(folded, rank)
        assert dict(folded.axis_bytes) == pytest.approx(dict(plain.axis_bytes))
        for link, nbytes in folded.link_bytes.items():
            assert nbytes == pytest.approx(plain.link_bytes[link])
        counts = folded.multiplicity
        assert sum(n * counts.get(link, 1) for link, n in folded.link_bytes.items()) == pytest.approx(
            sum(plain.link_bytes.values())
        )
        assert memory.peak(folded).stages == pytest.approx(memory.peak(plain).stages)
    return runs["compiled", True]


def assert_streams_in_order(timeline, rank):
    """Assert that ops of one stream never overlap, not even by a unit in the last place, but for receives."""
    own, ops = timeline.of(rank), timeline.schedule.program(rank).ops
    which, place = np.unique(own.op, return_inverse=True)
    distinct = [ops[op] for op in which.tolist()]
    streams = np.array([op.stream for op in distinct], np.str_)[place]
    receives = np.array([isinstance(op, Recv) for op in distinct], np.bool_)[place]
    for stream in np.unique(streams):
        mine = streams == stream
        begin, end, ready = (column[mine] for column in (own.begin, own.end, own.ready))
        overlap = receives[mine][1:] & receives[mine][:-1]
        assert (ready[1:] >= np.where(overlap, begin[:-1], end[:-1])).all()
        assert (end[1:] >= end[:-1]).all()
        assert (begin >= ready).all()
        assert (end >= begin).all()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_folded_equals_unfolded_in_every_span(data):
    cluster = cluster_of(data.draw(st.sampled_from(FABRICS)), data.draw(st.sampled_from([1, 4])))
    gpu = st.integers(0, 15)
    broken = data.draw(st.lists(gpu, max_size=2, unique=True))
    cluster = cluster.degraded((f"gpu {g}", f"gpu {g ^ 1}", 0.25) for g in broken)
    placement = data.draw(st.sampled_from([None, "reversed", "shuffled"]))
    devices = list(cluster.gpus)
    if placement:
        devices = devices[::-1] if placement == "reversed" else data.draw(st.permutations(devices))
    late = data.draw(st.dictionaries(gpu, st.sampled_from([1.5, 2.0]), max_size=2))
    variation = Variation(jitter=data.draw(JITTER), stragglers=late)
    fidelity = data.draw(st.sampled_from(["flow", "chunk", "alpha_beta"]))
    how = {"placement": devices, "variation": variation, "fidelity": fidelity}
    if data.draw(st.booleans()):
        how["transport"] = nccl()
    assert_equal(data.draw(schedules(16)), cluster, **how)


SHAPE = Shape(2, 256, 128, 1024, SelfAttention(8, 8), Mlp(1024), precision="fp16")


@st.composite
def trained(draw):
    """A transformer with several parallelisms and communication that overlaps with long runs of computations.

    Exchanges of tensor parallelism in pieces beside their products, or asynchronous in the backward pass; gradients
    that are reduced while others are computed, and take multiprocessors; recomputation; several steps.
    """
    tp, pp, dp = draw(st.sampled_from([(2, 1, 2), (4, 1, 2), (2, 2, 2), (4, 2, 2), (2, 1, 8), (4, 1, 4)]))
    order = one_f_one_b(pp, draw(st.integers(1, 3)))
    sequence = draw(st.booleans())
    beside = draw(st.sampled_from([Overlap(), Overlap(asynchronous=True), Overlap(0.5), Overlap(1.0)]))
    model = transformer(replace(SHAPE, num_layers=2 * pp))
    share = sharded(model, tp, sequence_parallel=sequence)
    options = {"stages": stages_of(share, order.stages), "optimizer": "adam", "overlap": {"tp": beside}}
    schedule = compute(share, order, micro_batch_size=1, **options)
    schedule = pipeline_parallel(schedule, share, micro_batch_size=1)
    schedule = tensor_parallel(schedule, share, tp)
    schedule = recompute(schedule, share, draw(st.sampled_from(CHOICES)), micro_batch_size=1)
    size = draw(st.sampled_from([1e5, 1e6]))
    if draw(st.booleans()):
        schedule = zero(schedule, share, dp, stage=draw(st.sampled_from([1, 2])), bucket=size)
    else:
        schedule = data_parallel(schedule, share, dp, bucket=size, no_sync=draw(st.booleans()))
    return replace(schedule.arranged("tp", "dp", "pp"), steps=draw(st.integers(1, 2)))


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(trained(), st.data())
def test_overlapped_communication_is_the_same_folded_and_unfolded(schedule, data):
    gpu = st.integers(0, schedule.mesh.world_size - 1)
    late = data.draw(st.dictionaries(gpu, st.sampled_from([1.1, 2.0]), max_size=1))
    cluster = cluster_of(data.draw(st.sampled_from(FABRICS)), data.draw(st.sampled_from([1, 4])))
    software = data.draw(st.sampled_from([None, stack("megatron")]))
    variation = Variation(jitter=data.draw(JITTER), stragglers=late)
    assert_equal(schedule, cluster, transport=nccl(), software=software, variation=variation)


def all_reduce(ranks, **fields):
    work = Compute(name="work", kernels=(measured(1e-3),))
    op = Collective(name="reduce", kind="all_reduce", over="dp", nbytes=1e6, **fields)
    return Schedule(Mesh.regular({"dp": ranks}), (Program("all", (work, op)),), (0,) * ranks)


def test_equal_ranks_have_one_representative():
    assert len(assert_equal(all_reduce(16), cluster_of({"kind": "switch"}, 4)).distinct_ranks) == 1


def test_a_straggler_in_a_ring_of_equals_is_a_class_of_its_own():
    folded = assert_equal(
        all_reduce(16), cluster_of({"kind": "switch"}, 4), variation=Variation(stragglers={5: 2.0}), transport=nccl()
    )
    assert len(folded.distinct_ranks) <= 16
    assert folded.representative[5] != folded.representative[0]
    assert folded.of(5).end == pytest.approx([2e-3, folded.makespan])


def test_a_straggler_on_a_crossbar_makes_two_classes():
    folded = assert_equal(
        all_reduce(24),
        uniform(gpus=24, hosts=0, bandwidth=1e9, latency=0.0),
        variation=Variation(stragglers={5: 2.0}),
        algorithms={"all_reduce": "direct"},
    )
    assert len(folded.distinct_ranks) == 2


def test_with_jitter_every_rank_is_simulated():
    folded = assert_equal(all_reduce(16), cluster_of({"kind": "switch"}, 4), variation=Variation(jitter=0.1))
    assert len(folded.distinct_ranks) == 16


def test_folded_ranks_share_their_host():
    ops = (Compute(name="update", kernels=(measured(1.0),), on="host"),)
    schedule = Schedule(Mesh.regular({"dp": 6}), (Program("all", ops),), (0,) * 6)
    cluster = uniform(gpus=6, hosts=1, bandwidth=1e9, latency=0.0)
    folded = assert_equal(schedule, cluster)
    assert (len(folded.distinct_ranks), folded.makespan) == (1, 6.0)


def test_unequal_groups_of_one_axis_get_unequal_rates():
    # two groups of one axis; the second shares a port with a message, so one variable for the axis would be wrong
    mesh = Mesh(4, {"dp": Axis(((0, 1), (2, 3))), "pp": Axis(((2, 1),))})
    reduce = Collective(name="reduce", kind="all_reduce", over="dp", nbytes=1e9)
    send = Send(name="send", over="pp", peer=1, nbytes=1e9, stream="out")
    recv = Recv(name="recv", over="pp", peer=0, nbytes=1e9, stream="in")
    programs = (Program("plain", (reduce,)), Program("sends", (send, reduce)), Program("receives", (recv, reduce)))
    schedule = Schedule(mesh, programs, (0, 2, 1, 0))
    folded = assert_equal(schedule, uniform(gpus=4, hosts=0, bandwidth=1e9, latency=0.0))
    assert len(folded.distinct_ranks) == 4


@pytest.mark.parametrize("variation", [Variation(), Variation(jitter=0.1), Variation(stragglers={5: 1.5})])
@pytest.mark.parametrize("beside", [False, True])
def test_collectives_with_links_of_their_own(beside, variation):
    # tensor parallelism within nodes, at the same time as gradients between nodes, which reserve SMs
    mesh = Mesh.regular({"tp": 4, "dp": 4})
    ops = []
    for number in range(6):
        ops.append(Compute(name=f"work {number}", kernels=(measured(1e-3),)))
        ops.append(Collective(name=f"exchange {number}", kind="all_reduce", over="tp", nbytes=1e7))
        if beside and number == 2:
            after = (ops[-1].name,)
            ops.append(Collective(name="gradient", kind="all_reduce", over="dp", nbytes=1e7, stream="dp", after=after))
    schedule = Schedule(mesh, (Program("all", tuple(ops)),), (0,) * 16, steps=2)
    how = {"transport": nccl(), "variation": variation}
    folded = assert_equal(schedule, cluster_of({"kind": "switch"}, 4), **how)
    plain = simulate(schedule, cluster_of({"kind": "switch"}, 4), fold=False, **how)
    if variation == Variation():
        assert len(folded.distinct_ranks) == 1
    moved = [network_traffic.carried(timeline) for timeline in (folded, plain)]
    for link, nbytes in folded.link_bytes.items():
        assert moved[0][link] == pytest.approx(nbytes)
        assert moved[1][link] == pytest.approx(nbytes)


def test_a_rank_with_messages_to_several_peers_keeps_them_distinct():
    def message(kind, rank, peer):
        return kind(name=f"{kind.__name__} {peer}", over="dp", peer=peer, nbytes=1e9, stream=f"{kind.__name__} {peer}")

    mesh = Mesh.regular({"dp": 4})
    hub = Program("hub", tuple(message(kind, 0, peer) for peer in (1, 2, 3) for kind in (Send, Recv)))
    rim = Program("rim", (message(Recv, 1, 0), message(Send, 1, 0)))
    schedule = Schedule(mesh, (hub, rim), (0, 1, 1, 1))
    folded = assert_equal(schedule, uniform(gpus=4, hosts=0, bandwidth=1e9, latency=0.0))
    assert folded.makespan == pytest.approx(3.0)


def test_two_collectives_with_one_transfer_both_count_it():
    mesh = Mesh.regular({"tp": 4, "dp": 4})
    ops = (
        Collective(name="all", kind="all_to_all", over="dp", nbytes=1e4, algorithm="direct"),
        Collective(name="one", kind="broadcast", over="dp", nbytes=1e4, algorithm="direct"),
    )
    schedule = Schedule(mesh, (Program("rank", ops),), (0,) * 16)
    assert_equal(schedule, cluster_of({"kind": "switch"}, 1), transport=nccl())


def test_cables_of_two_leaves_do_not_both_follow_from_each_other():
    """The cables up from one leaf and down to the other carry a quarter of what their NICs can."""
    assert_equal(all_reduce(16, stream="dp"), cluster_of({"kind": "fat_tree", "oversubscription": 4.0}, 4))


@pytest.mark.parametrize("stream", ["compute", "to"])
def test_a_message_shares_the_links_of_a_concurrent_collective(stream):
    # four nodes of one GPU: a message to the next stage leaves by the NIC that the tensor group uses
    mesh = Mesh.regular({"tp": 2, "pp": 2})
    reduce = Collective(name="reduce", kind="all_reduce", over="tp", nbytes=1e8)
    send = Send(name="send", over="pp", peer=1, nbytes=1e8, stream=stream)
    recv = Recv(name="recv", over="pp", peer=0, nbytes=1e8, stream=stream)
    schedule = Schedule(mesh, (Program("first", (send, reduce)), Program("last", (recv, reduce))), (0, 0, 1, 1))
    cluster = topologies.cluster({"nodes": 4, "node": {**V100, "accelerators": 1}, "fabric": {"kind": "switch"}})
    assert len(assert_equal(schedule, cluster).distinct_ranks) == 2


def test_two_stragglers_among_tensor_and_data_groups():
    """The input that once broke a fast path: two ops of each kind, and two stragglers in different groups."""
    work = [Compute(name=f"work {number}", kernels=(measured(0.0),)) for number in range(2)]
    groups = [("tp", "compute"), ("dp", "dp")]
    ops = []
    for number, (axis, stream) in enumerate(groups):
        ops.append(work[number])
        ops.append(
            Collective(
                name=f"all_reduce {number}",
                kind="all_reduce",
                over=axis,
                nbytes=1e4,
                stream=stream,
                after=(work[number].name,),
            )
        )
    schedule = Schedule(Mesh.regular({"tp": 4, "dp": 4}), (Program("all", tuple(ops)),), (0,) * 16)
    variation = Variation(stragglers={0: 1.5, 5: 1.5})
    assert_equal(schedule, cluster_of({"kind": "switch"}, 4), variation=variation, transport=nccl())
