"""What each compression sends, holds and keeps, against formulas; times at infinite speed of computation."""

from dataclasses import dataclass, replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.analysis import network_traffic
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.architectures.image_model_keys import ConvolutionalSpecification
from clustersim.workloads.architectures.timed_models import UnitLayer
from clustersim.workloads.data_parallel.buckets import Bucket, Coding
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import matrix, parameter_tensors
from clustersim.workloads.parallelism.ddp import data_parallel
from clustersim.workloads.parallelism.zero import zero
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b
from clustersim.workloads.reductions._compression import PACKAGE, methods
from clustersim.workloads.reductions.all_reduce import all_reduce
from clustersim.workloads.reductions.powersgd import powersgd

TENSORS = matrix(512, 256), *parameter_tensors(512), matrix(64, 9), matrix(1000, 512), *parameter_tensors(1000)
N = sum(tensor.count for tensor in TENSORS)
BANDWIDTH = 1e6
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels and stride of the stages of ResNet-18."""


@dataclass(frozen=True)
class Weighted(UnitLayer):
    @property
    def tensors(self):
        return TENSORS


MODEL = Model("matrices", [Weighted("layer 0", 1.0, 2.0)], sample_bytes=0.0, optimizer_seconds=0.0)

METHODS = [method for method in methods() if method != "zeropp"]
"""Those of whole gradients; ZeRO++ has a test of its own."""


def single():
    return compute(MODEL, one_f_one_b(1, 1), micro_batch_size=1)


def reduced(ranks, method, overlap=False, by=data_parallel, **options):
    """The schedule of *ranks* replicas with one bucket, gradients in fp32."""
    function = lookup.function(PACKAGE, method)
    made = by(single(), MODEL, ranks, overlap=overlap, bucket=1e9, compressed=lambda plain: function(plain, **options))
    check(made)
    return made


def run(schedule, ranks):
    gpu = Accelerator(peak_flops=1e50)
    return simulate(schedule, uniform(gpus=ranks, hosts=0, bandwidth=BANDWIDTH, latency=0.0, accelerator=gpu))


def sent(ranks, method, **options):
    """Bytes that all ranks send in a step."""
    return network_traffic.by_axis(run(reduced(ranks, method, **options), ranks))["dp"]


def gathered(size, p):
    return p * (p - 1) * size


def all_reduced(size, p):
    return 2 * (p - 1) * size


def in_parts(size, size_of_part, p):
    return (p - 1) * size + gathered(size_of_part, p)


def bits(count, width, group=512):
    return count * width / 8 + 4 * ceil(count / group)


def low_rank(rank, rate):
    """Elements of P, of Q, and of the tensors that are sent whole."""
    worth = [(n, m) for n, m in ((512, 256), (64, 9), (1000, 512)) if (n + m) * min(n, m, rank) * rate < n * m]
    whole = N - sum(n * m for n, m in worth)
    return sum(n * rank for n, _ in worth), sum(m * rank for _, m in worth), whole, len(worth)


@pytest.mark.parametrize("p", [2, 4, 7])
def test_bytes_on_the_wire(p):
    k = ceil(0.01 * N)
    left, right, whole, _ = low_rank(4, 2)
    exact = low_rank(3, 1)
    sketch = 5 * ceil(0.05 * N / 5)
    expected = {
        ("fp16", ()): all_reduced(2 * N, p),
        ("fp16", (("dtype", "bf16"),)): all_reduced(2 * N, p),
        ("quantise", (("bits", 4),)): gathered(bits(N, 4), p),
        ("quantise", (("bits", 2), ("group", 64))): gathered(bits(N, 2, 64), p),
        ("quantise", (("bits", 8), ("exchange", "all_to_all"))): in_parts(bits(N, 8), bits(N / p, 8), p),
        ("sign", ()): gathered(N / 8, p),
        ("sign", (("exchange", "all_to_all"),)): in_parts(N / 8, N / p / 8, p),
        # signs in parts, and two scales of each rank to all
        ("one_bit_adam", ()): in_parts(N / 8, N / p / 8, p) + 2 * gathered(4, p),
        ("one_bit_adam", (("phase", "warm_up"),)): all_reduced(4 * N, p),
        ("top_k", (("density", 0.01),)): gathered(8 * k, p),
        ("random_k", (("density", 0.01),)): all_reduced(4 * k, p),
        ("powersgd", (("rank", 4),)): all_reduced(4 * (left + right + whole), p),
        ("gradzip", (("rank", 4),)): all_reduced(4 * ((left + right) / 2 + whole), p),
        ("atomo", (("rank", 3),)): gathered(4 * (exact[0] + exact[1] + 3 * exact[3]), p) + all_reduced(4 * exact[2], p),
        ("sketched", ()): all_reduced(4 * (sketch + 4 * ceil(0.001 * N)), p),
    }
    assert {method for method, _ in expected} == set(METHODS)
    for (method, options), nbytes in expected.items():
        assert sent(p, method, **dict(options)) == pytest.approx(nbytes, rel=1e-9), method


@pytest.mark.parametrize("method", METHODS)
def test_at_infinite_speed_a_step_takes_its_messages(method):
    """No kernel takes time on an accelerator without limits: what is left is the closed form of each collective."""
    p = 4
    made = reduced(p, method)
    share = {"all_reduce": 2 * (p - 1) / p, "all_gather": (p - 1) / p, "all_to_all": (p - 1) / p}
    messages = [op for op in made.programs[0].ops if isinstance(op, Collective)]
    seconds = sum(share[op.kind] * op.nbytes for op in messages) / BANDWIDTH
    assert run(made, p).step_time == pytest.approx(3.0 + seconds, rel=1e-9)


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 16))
def test_top_k_meets_the_dense_ring_at_density_one_over_p(p):
    """Values of 4 bytes with indices of 4 bytes: 8 (p - 1) k = 2 (p - 1) / p 4 N at k = N / p; bytes and times."""
    plain = data_parallel(single(), MODEL, p, overlap=False)
    dense = run(plain, p)
    sparse = run(reduced(p, "top_k", density=1 / p), p)
    # the number of elements is rounded up
    assert sparse.step_time == pytest.approx(dense.step_time, rel=p / N)
    assert network_traffic.by_axis(sparse)["dp"] == pytest.approx(network_traffic.by_axis(dense)["dp"], rel=p / N)


def kept(method, ranks=4, **options):
    """Bytes of buffers that a rank keeps throughout the step."""
    return reduced(ranks, method, **options).programs[0].resident["buffers"]


def test_errors_that_are_fed_back_are_kept():
    """A copy of the gradients; 1-bit Adam one of each rank's part of the sum too, PowerSGD both factors."""
    left, right, *_ = low_rank(2, 2)
    assert kept("top_k") == kept("random_k") == kept("sketched") == 4 * N
    assert kept("sign", error_feedback=True) == kept("quantise", error_feedback=True) == 4 * N
    assert kept("one_bit_adam") == 4 * N + 4 * N / 4
    assert kept("powersgd", rank=2) == 4 * N + 4 * (left + right)
    assert kept("powersgd", rank=2, error_feedback=False) == 4 * (left + right)
    for method in ("fp16", "quantise", "sign", "atomo"):
        assert kept(method) == 0
    assert kept("top_k", error_feedback=False) == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("overlap", [False, True])
def test_what_a_bucket_holds_is_freed(method, overlap):
    made = reduced(4, method, overlap=overlap)
    balance = 0.0
    for op in made.programs[0].ops:
        balance += op.allocates.get("buffers", 0.0) - op.frees.get("buffers", 0.0)
    assert balance == 0.0


def test_where_the_kernels_of_a_hook_run():
    """As torch: encoding on the stream of the backward pass, decoding beside it, unless the hook synchronises."""

    def streams(method, **options):
        made = reduced(2, method, **options)
        return [(op.name.rpartition(".")[2], op.stream) for op in made.programs[0].ops if isinstance(op, Coding)]

    assert streams("fp16", overlap=True) == [("encode0", "compute"), ("decode", "dp.hook")]
    assert streams("powersgd", overlap=True) == [("encode0", "compute"), ("encode1", "compute"), ("decode", "compute")]
    beside = streams("powersgd", overlap=True, synchronous=False)
    assert beside == [("encode0", "compute"), ("encode1", "dp.hook"), ("decode", "dp.hook")]
    assert {stream for method in METHODS for _, stream in streams(method)} == {"compute"}


def test_sharded_gradients():
    """A reduce-scatter becomes one of fewer bytes, or an all-to-all; other methods refuse."""
    p = 4

    def total(method, **options):
        made = reduced(p, method, by=zero, **options)
        return {op.kind: op.nbytes for op in made.programs[0].ops if isinstance(op, Collective) and op.nbytes > 16}

    # stage 1 gathers the parameters, 4 N bytes
    assert total("fp16") == {"reduce_scatter": 2 * N, "all_gather": 4 * N}
    assert total("random_k") == {"reduce_scatter": 4 * ceil(0.01 * N), "all_gather": 4 * N}
    assert total("quantise", bits=4) == {"all_to_all": bits(N, 4), "all_gather": 4 * N}
    assert total("sign") == {"all_to_all": N / 8, "all_gather": 4 * N}
    for method in ("top_k", "powersgd", "one_bit_adam", "atomo", "gradzip", "sketched"):
        with pytest.raises(ScenarioError, match=rf"{method} is not possible here.*take ddp"):
            total(method)


def test_batched_matrices_share_launches():
    """As many elements and FLOPs in fewer launches, for the copies to and from stacks."""
    shapes = ((64, 32),) * 5 + ((128, 64), (64, 1))
    bucket = Bucket(4.0 * sum(n * m for n, m in shapes), "a", matrices=shapes, name="bucket", ranks=2)
    single, batched = (powersgd(all_reduce(), rank=2, batched=choice).code(bucket) for choice in (False, True))
    assert [one.messages for one in single.rounds] == [one.messages for one in batched.rounds]
    few, many = (
        [kernel for part in (*(one.kernels for one in code.rounds), code.decode) for kernel in part]
        for code in (batched, single)
    )
    assert sum(kernel.flops for kernel in few) == sum(kernel.flops for kernel in many)
    # P, Q and their product; each orthogonalisation has 2 r + 4 (r - 1) launches; stacks take two copies
    assert sum(kernel.launches for kernel in many) - sum(kernel.launches for kernel in few) == 4 * (3 + 2 * 8) - 2
    copies = 2 * 2 * 4 * 5 * 64 * 32
    assert sum(k.nbytes for k in few) - sum(k.nbytes for k in many) == pytest.approx(copies)


def test_a_bucket_of_unknown_ranks_is_reported():
    """A method of data parallelism that does not give the degrees cannot gather."""
    bucket = Bucket(4e6, "a", name="bucket")
    with pytest.raises(ScenarioError, match="must give reduce_gradients the degrees of the axes"):
        lookup.function(PACKAGE, "top_k")(all_reduce()).code(bucket)


CIFAR_RESNET18 = {
    "kind": "convolutional",
    "image": [3, 32, 32],
    "layers": [
        {"conv": 64, "kernel_size": 3, "padding": 1, "norm": True},
        *({"basic": channels, "blocks": 2, "stride": stride} for channels, stride in STAGES),
        {"average_pool": 1},
        {"linear": 10},
    ],
}
"""The ResNet-18 of PowerSGD's paper (epfml/powersgd, paper-code/tasks/cifar_architectures/resnet.py)."""


@pytest.mark.parametrize(("rank", "ratio"), [(1, 243), (2, 136), (4, 72)])
def test_powersgd_of_resnet18(rank, ratio):
    """Every convolution is a matrix outputs x (inputs window^2); vectors are whole. The ratios follow."""
    made = ConvolutionalSpecification.model_validate(CIFAR_RESNET18).build()
    matrices, last = [(64, 27), (10, 512)], 64
    for channels, stride in STAGES:
        matrices += [(channels, 9 * last)] + [(channels, 9 * channels)] * 3 + [(channels, last)] * (stride > 1)
        last = channels
    whole = made.parameters - sum(n * m for n, m in matrices)
    bucket = Bucket.of([tensor for layer in made.layers for tensor in layer.tensors], "fp32", "all")
    sent = powersgd(all_reduce(), rank, 1.0).code(replace(bucket, name="bucket", ranks=16)).sent
    assert sent == 4 * (sum((n + m) * rank for n, m in matrices) + whole)
    assert bucket.nbytes / sent == pytest.approx(ratio, abs=0.5)
