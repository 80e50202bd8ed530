"""The elements that torch's own hooks reduce, against those of the simulated methods, for the same tensors."""

from itertools import product

import pytest

from clustersim.workloads.data_parallel.buckets import Bucket
from clustersim.workloads.parallelism.ddp import BUCKET_BYTES
from clustersim.workloads.reductions._compression import split
from clustersim.workloads.reductions.all_reduce import all_reduce
from clustersim.workloads.reductions.fp16 import fp16
from clustersim.workloads.reductions.powersgd import powersgd
from tests.extras import require

require("torch")

STEPS = 3
"""PowerSGD may begin after two steps, since DDP builds its buckets again after the first."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A process group of this process only, which needs no network."""
    import torch.distributed as dist

    store = tmp_path_factory.mktemp("store") / "file"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model():
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3),
        torch.nn.BatchNorm2d(64),
        torch.nn.Conv2d(64, 128, 3, bias=False),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 300),
        torch.nn.Linear(300, 10),
    )


def as_bucket(net):
    """The gradients of *net*, all in one bucket as they are here, the last tensor first."""
    import torch

    shapes = [tuple(tensor.shape) for tensor in net.parameters()][::-1]
    matrices = tuple((one[0], torch.Size(one[1:]).numel()) for one in shapes)
    elements = sum(rows * columns for rows, columns in matrices)
    return Bucket(4.0 * elements, "net", name="bucket", matrices=matrices, ranks=2)


def reduced_by_torch(monkeypatch, hook, state):
    """Bytes of the tensors that *hook* all-reduces in a step, in order."""
    import torch
    import torch.distributed as dist

    net = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=BUCKET_BYTES // 2**20)
    net.register_comm_hook(state, hook)
    sizes = []
    real = dist.all_reduce
    monkeypatch.setattr(
        dist, "all_reduce", lambda t, *a, **b: (sizes.append(t.numel() * t.element_size()), real(t, *a, **b))[1]
    )
    for _ in range(STEPS):
        sizes.clear()
        net(torch.randn(2, 3, 8, 8)).sum().backward()
    return [size for size in sizes if size]


def simulated(reduction, bucket):
    return [message.nbytes for one in reduction.code(bucket).rounds for message in one.messages]


@pytest.mark.parametrize(
    ("rate", "rank"),
    [
        pytest.param(*one, marks=[pytest.mark.exhaustive] * (one not in [(0.5, 16), (2, 1)]))
        for one in product([0.5, 2], [1, 2, 4, 16])
    ],
)
def test_powersgd_reduces_what_torchs_hook_reduces(alone, monkeypatch, rank, rate):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=rank, start_powerSGD_iter=2, min_compression_rate=rate
    )
    by_torch = reduced_by_torch(monkeypatch, powerSGD_hook.powerSGD_hook, state)
    bucket = as_bucket(model())
    assert simulated(powersgd(all_reduce(), rank, rate), bucket) == by_torch
    # torch counts what is left after compression itself
    found = split(bucket, rank, rate)
    assert found.left + found.right + found.elements == state.compression_stats()[2]
    # the error, and both factors for the next step
    kept = sum(
        one.numel() * 4
        for group in (state.error_dict, state.p_memory_dict, state.q_memory_dict)
        for one in group.values()
    )
    assert powersgd(all_reduce(), rank, rate).code(bucket).kept == kept


def test_fp16_reduces_what_torchs_hook_reduces(alone, monkeypatch):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    by_torch = reduced_by_torch(monkeypatch, default_hooks.fp16_compress_hook, None)
    assert simulated(fp16(all_reduce()), as_bucket(model())) == by_torch
