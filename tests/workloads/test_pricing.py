"""Models priced by GPUs of the catalogue against measured times: the right order of things.

The bounds are those of first estimates, wider than those of the fits that the GPUs' figures are from.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.topologies.catalogue import GPUS, device
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.timed_models import profile
from clustersim.workloads.architectures.transformer import Transformer
from clustersim.workloads.operators.model import Layer
from clustersim.workloads.parallelism.tensor import sharded
from clustersim.workloads.software_stack import software

MEASURED = Path(__file__).parents[2] / "scenarios/published/layer_profiles_v100.csv"

V100 = device(GPUS, "v100_16gb").accelerator()
A100 = device(GPUS, "a100_80gb").accelerator()


def total(layers: list[Layer], samples: int, accelerator: Accelerator = V100) -> float:
    stack = software("ddp")
    return sum(
        accelerator.seconds(layer.forward(samples), stack) + accelerator.seconds(layer.backward(samples), stack)
        for layer in layers
    )


@pytest.mark.parametrize(
    ("name", "samples", "bound"),
    [("alexnet", 256, 0.15), ("vgg16", 128, 0.15), ("resnet50", 128, 0.2), ("resnet101", 64, 0.25)],
)
def test_convolutional_models_on_a_v100(name: str, samples: int, bound: float) -> None:
    """A profile times each layer alone, which costs the small ones most: ResNet-101's is the furthest off."""
    measured = total(list(profile(MEASURED, name, samples).layers), samples)
    assert total(list(model(name, fused=False).layers), samples) == pytest.approx(measured, rel=bound)


def test_a_layer_of_22_billion_parameters_on_8_a100() -> None:
    """Korthikanti et al. 2022, table 4: 7.7 ms forward, 11.9 backward, four all-reduces of 100 MB in that."""
    gpt = model("gpt_22b", "bf16")
    assert isinstance(gpt, Transformer)
    layer, stack = sharded(gpt, 8).layers[1], software("megatron")
    reductions = 2 * 2 * 7 / 8 * 2048 * 4 * 6144 * 2 / 235e9  # busbw of 8 A100 over NVSwitch, nccl-tests
    assert A100.seconds(layer.forward(4), stack) + reductions == pytest.approx(7.7e-3, rel=0.15)
    assert A100.seconds(layer.backward(4), stack) + reductions == pytest.approx(11.9e-3, rel=0.15)


def test_weight_gradients_cost_about_what_the_forward_pass_does() -> None:
    """Their products are narrow and deep, so that they must be split among the SMs."""
    layers = model("resnet50", "fp16").layers

    def products(phase: str) -> float:
        kernels: list[Kernel] = [k for layer in layers for k in getattr(layer, phase)(128) if k.flops]
        return sum(map(V100.kernel_seconds, kernels))

    assert 0.3 < products("backward_weights") / products("forward") < 1.5


def test_winograd_helps_where_there_are_no_tensor_cores() -> None:
    kernels = [k for layer in model("vgg16").layers for k in layer.forward(32) if k.winograd]
    pairs = [(kernel, replace(kernel, winograd=None)) for kernel in kernels]
    assert all(A100.kernel_seconds(kernel) == A100.kernel_seconds(plain) for kernel, plain in pairs)
    gains = [V100.kernel_seconds(plain) / V100.kernel_seconds(kernel) for kernel, plain in pairs]
    # the first convolution has 3 input channels, too few to gain; none gains more than the multiplications saved
    assert gains[0] == 1.0
    assert all(1.0 < gain <= 2.25 for gain in gains[1:])


@pytest.mark.parametrize("samples", [1, 8, 64])
def test_more_samples_never_take_less(samples: int) -> None:
    for name in ("resnet50", "gpt2"):
        layers = list(model(name).layers)
        assert total(layers, samples, A100) < total(layers, 2 * samples, A100) <= 2.2 * total(layers, samples, A100)
