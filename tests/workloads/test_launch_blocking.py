"""With CUDA_LAUNCH_BLOCKING=1 the kernels of a GPU run one after the other, and the host launches none ahead."""

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.hardware.accelerator import Accelerator, Software
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Collective

RANKS, GIGABYTES = 4, 3.0


def replicas(**software: object) -> Scenario:
    """Four GPUs at 1 GB/s with a model of four layers, 12 s of computation and 3 GB of gradients."""
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {
                "preset": "uniform",
                "gpus": RANKS,
                "bandwidth": "1 GB/s",
                "latency": "0 s",
                "accelerator": "unit",
            },
            "model": {"kind": "unit", "num_layers": 4, "forward": "1 s", "backward": "2 s", "parameters": 0.75e9},
            "training": {"global_batch_size": RANKS},
            "parallelism": {"data": {"method": "ddp", "bucket": "750 MB", "first_bucket": "750 MB"}},
            "network": {"transport": "ideal", "algorithms": {"all_reduce": "ring"}},
            "software": {"preset": "ideal", **software},
        }
    )


def test_host_and_gpu_take_turns() -> None:
    gpu = Accelerator(peak_flops=1e12, memory_bandwidth=1e12)
    kernels = [Kernel(flops=3e6), Kernel(nbytes=2e6)]
    host = 2 * 10e-6
    blocking = Software(launch_seconds=10e-6, launch_blocking=True)
    assert gpu.seconds(kernels, blocking) == pytest.approx(gpu.seconds(kernels) + host)
    assert gpu.seconds(kernels, Software(launch_seconds=10e-6)) < gpu.seconds(kernels, blocking)


def test_gradients_are_reduced_while_nothing_is_computed() -> None:
    exchange = 2 * (RANKS - 1) / RANKS * GIGABYTES
    assert replicas(launch_blocking=True).run().summary()["step_time_s"] == pytest.approx(12.0 + exchange)
    # all but the last bucket are hidden: it is reduced after the backward pass of the first layer
    assert replicas().run().summary()["step_time_s"] == pytest.approx(12.0 + exchange / 4)


@pytest.mark.parametrize(
    "parallelism",
    [
        {"data": {"method": "ddp"}},
        {"data": {"method": "zero", "stage": 1, "overlap": True}},
        {"data": {"method": "zero", "stage": 3}},
        {"data": {"method": "fsdp", "hybrid": 2}},
        {"tp": 2, "sequence_parallel": True, "tp_overlap": True},
        {"pp": 2, "schedule": "interleaved", "virtual_stages": 2, "data": {"method": "zero", "stage": 1}},
    ],
    ids=str,
)
def test_every_collective_blocks_and_no_step_is_shorter(parallelism: dict[str, object]) -> None:
    scenario = {
        "version": 1,
        "cluster": {"preset": "dgx_a100_80gb", "node": {"accelerators": 4, "nics": 4}},
        "model": {"preset": "gpt2", "num_layers": 4},
        "training": {"global_batch_size": 32, "micro_batch_size": 4, "precision": "bf16"},
        "parallelism": parallelism,
    }
    blocking, plain = (
        Scenario.model_validate({**scenario, "software": {"preset": "megatron_core", "launch_blocking": on}})
        for on in (True, False)
    )
    schedule = blocking.schedule()
    check(schedule)
    streams = {op.stream for program in schedule.programs for op in program.distinct(Collective)}
    assert streams == {"compute"}
    assert blocking.run().summary()["step_time_s"] > plain.run().summary()["step_time_s"]
