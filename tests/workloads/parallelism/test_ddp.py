"""Data parallelism: buckets as torch cuts them, and what each variant sends when."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Collective
from clustersim.workloads.data_parallel.buckets import Weights
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.operators.model import Layer, Model
from clustersim.workloads.operators.operator import parameter_tensors
from clustersim.workloads.parallelism._parallelism import TrainingStep
from clustersim.workloads.parallelism.ddp import (
    DistributedDataParallel,
    buckets,
    data_parallel,
    initial_broadcast,
)
from clustersim.workloads.parallelism.methods.parameter_server import parameter_server
from clustersim.workloads.parallelism.naive import naive
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b


class Plain(Layer):
    kind = "plain"

    def __init__(self, name, tensors):
        self.name, self._tensors = name, parameter_tensors(*tensors)

    @property
    def tensors(self):
        return self._tensors

    def forward(self, micro_batch_size):
        return (measured(1.0),)

    def backward_input(self, micro_batch_size):
        return (measured(1.0),)

    def backward_weights(self, micro_batch_size):
        return (measured(1.0),)

    def activation_bytes(self, micro_batch_size):
        return 10.0 * micro_batch_size

    def output_bytes(self, micro_batch_size):
        return 0.0


def model(*layers):
    made = [Plain(f"layer{i}", tensors) for i, tensors in enumerate(layers)]
    return Model("plain", made, sample_bytes=100.0, optimizer_seconds=1.0)


def one_stage(what, micro_batches=1):
    return compute(what, one_f_one_b(1, micro_batches), micro_batch_size=2)


def collectives(program):
    return [op for op in program.ops if isinstance(op, Collective)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(1, 20_000_000), max_size=4), min_size=1, max_size=8), st.booleans())
def test_buckets_are_those_of_torch(layers, given_size):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    distributed = pytest.importorskip("torch.distributed")
    tensors = [n for tensors in layers for n in tensors]
    limits = [10 * 2**20] if given_size else [2**20, 25 * 2**20]
    if tensors:
        empty = [torch.empty(n, device="meta") for n in reversed(tensors)]
        indices, _ = distributed._compute_bucket_assignment_by_size(empty, limits, [False] * len(empty))
        expected = [sum(4 * list(reversed(tensors))[i] for i in bucket) for bucket in indices]
    else:
        expected = []
    made = buckets(
        [Weights(layer.name, layer.tensors) for layer in model(*layers).layers],
        "fp32",
        10 * 2**20 if given_size else None,
    )
    assert [b.nbytes for b in made] == expected


def test_a_bucket_begins_when_its_last_layer_is_through():
    what = model([100], [3_000_000], [200_000, 200_000])
    schedule = data_parallel(one_stage(what), what, 4)
    check(schedule)
    first, second = collectives(schedule.programs[0])
    # the first bucket closes at 1 MiB inside the last layer, the second holds the middle layer too
    assert (first.nbytes, first.after) == (1_600_000, ("0B0.layer2",))
    assert (second.nbytes, second.after) == (12_000_400, ("0B0.layer0",))


def test_with_no_sync_only_the_last_micro_batch_communicates():
    what = model([1000], [1000])
    with_it = data_parallel(one_stage(what, 3), what, 2)
    without = data_parallel(one_stage(what, 3), what, 2, no_sync=False)
    assert [str(op.action) for op in collectives(with_it.programs[0])] == ["0B2"]
    assert [str(op.action) for op in collectives(without.programs[0])] == ["0B0", "0B1", "0B2"]


def test_without_overlap_one_all_reduce_follows_the_backward_pass():
    what = model([1_000_000], [30_000_000])
    schedule = data_parallel(one_stage(what), what, 2, overlap=False)
    check(schedule)
    names = [op.name for op in schedule.programs[0].ops]
    (op,) = collectives(schedule.programs[0])
    assert (op.nbytes, op.stream) == (4 * 31_000_000, "compute")
    assert names.index(op.name) == len(names) - 2


@pytest.mark.parametrize("blocking", [False, True])
def test_software_that_overlaps_nothing_reduces_after_the_backward_pass(blocking):
    what = model([1_000_000], [30_000_000])
    step = TrainingStep(what, 1, 1, software=Software(blocking_all_reduces=blocking))
    made = DistributedDataParallel(method="ddp").apply(one_stage(what).replicate("dp", 2), step)
    streams = {op.stream for op in collectives(made.programs[0])}
    assert ("compute" in streams) == blocking
    assert len(streams) == 1


def test_one_replica_communicates_nothing():
    what = model([1000])
    for schedule in (data_parallel(one_stage(what), what, 1), naive(one_stage(what), what, 1, samples=2)):
        assert not collectives(schedule.programs[0])


def test_the_naive_main_gpu_hands_out_gathers_and_sends_back():
    what = model([1000], [500])
    schedule = naive(one_stage(what), what, 4, samples=2)
    check(schedule)
    main = [op.name for op in schedule.programs[0].ops]
    assert main[0] == "send batch"
    assert main[-4:] == ["gather gradients", "average", "send average", "0O"]
    nbytes = {op.name: op.nbytes for op in collectives(schedule.programs[0])}
    assert nbytes == {"send batch": 800.0, "gather gradients": 4 * 6000.0, "send average": 6000.0}


def test_the_naive_main_gpu_may_update_alone_and_send_the_model():
    what = model([1000], [500])
    schedule = naive(one_stage(what), what, 4, samples=2, update="main")
    check(schedule)
    assert [op.name for op in schedule.programs[0].ops][:2] == ["send model", "send batch"]
    assert schedule.programs[0].ops[-1].name == "0O"
    assert schedule.programs[1].ops[-1].name == "gather gradients"


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_servers_shard_the_parameters(servers):
    what = model([600], [600])
    schedule = parameter_server(one_stage(what, 2), what, 4, servers=servers)
    check(schedule)
    assert schedule.mesh.world_size == 4 + servers
    assert [op.nbytes for op in collectives(schedule.programs[0])] == [4800 / servers] * (2 * servers)
    assert [program.on for program in schedule.programs] == ["gpu"] + ["host"] * servers


def test_the_initial_broadcast_is_a_schedule_of_its_own():
    what = model([600], [600])
    schedule = initial_broadcast(data_parallel(one_stage(what), what, 4), what)
    check(schedule)
    (op,) = schedule.programs[0].ops
    assert (op.kind, op.nbytes) == ("broadcast", 4800.0)


def test_activations_are_freed_layer_by_layer():
    what = model([1], [1])
    schedule = one_stage(what, 2)
    assert sum(op.allocates.get("activations", 0) for op in schedule.programs[0].ops) == 2 * 2 * 20.0
    check(schedule)
