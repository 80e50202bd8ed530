"""Convolutional models against published counts: parameters, multiply-accumulates and activations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.topologies.catalogue import GPUS, device
from clustersim.workloads.architectures.image_models import ConvolutionalBuilder
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.operators.convolution import Convolution, Image
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.model import OperatorLayer

# parameters and GMAC: torchvision.models, table of pre-trained weights; millions of outputs of convolutions and
# linear layers: timm's benchmark-infer tables, "infer_macts" at 224 x 224
PUBLISHED = {
    "resnet18": (11_689_512, 1.81, 2.48),
    "resnet50": (25_557_032, 4.09, 11.11),
    "resnet101": (44_549_160, 7.80, 16.23),
    "vgg16": (138_357_544, 15.47, 13.56),
    "alexnet": (61_100_840, 0.71, None),
    # without the auxiliary classifier, which has 3,326,696 of torchvision's 27,161,264; GMAC with it, in inference
    "inception_v3": (23_834_568, 5.71, None),
}


def convolutions(name: str) -> list[Convolution]:
    layers = model(name).layers
    operators = [one for layer in layers if isinstance(layer, OperatorLayer) for one in layer.operators]
    return [one for one in operators if isinstance(one, Convolution)]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name: str) -> None:
    parameters, gmac, _ = PUBLISHED[name]
    made = model(name)
    assert made.parameters == parameters
    forward = sum(kernel.flops for layer in made.layers for kernel in layer.forward(1))
    assert round(forward / 2e9, 2) == gmac


@pytest.mark.parametrize(
    ("name", "layers"),
    [("resnet18", 20), ("resnet50", 53), ("resnet101", 104), ("vgg16", 13), ("alexnet", 5), ("inception_v3", 94)],
)
def test_number_of_convolutions(name: str, layers: int) -> None:
    assert len(convolutions(name)) == layers


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet101", "vgg16"])
def test_published_outputs(name: str) -> None:
    operators = [one for layer in model(name).layers if isinstance(layer, OperatorLayer) for one in layer.operators]
    outputs = sum(one.target.elements for one in operators if isinstance(one, Convolution))
    outputs += sum(one.outputs for one in operators if isinstance(one, Linear))
    assert round(outputs / 1e6, 2) == PUBLISHED[name][2]


def test_resnet50_stages() -> None:
    """He et al. 2015, table 1: 112, 56, 28, 14 and 7 pixels."""
    sizes = list(dict.fromkeys((part.target.channels, part.target.height) for part in convolutions("resnet50")))
    assert [size for size in sizes if size[0] in (64, 256, 512, 1024, 2048)] == [
        (64, 112), (64, 56), (256, 56), (512, 28), (256, 28), (256, 14), (1024, 14), (512, 14), (512, 7), (2048, 7),
    ]  # fmt: skip


def test_names_are_unique_and_torchvisions_for_blocks() -> None:
    names = [layer.name for layer in model("resnet50").layers]
    assert len(set(names)) == len(names) == 54
    assert names[1:5] == ["layer1.0.conv1", "layer1.0.conv2", "layer1.0.conv3", "layer1.0.downsample"]


def test_a_block_hands_on_its_input_until_it_is_added() -> None:
    by_name = {layer.name: layer for layer in model("resnet50").layers}
    narrow, wide = 64 * 56 * 56 * 4, 256 * 56 * 56 * 4
    outputs = [by_name[f"layer1.1.conv{n}"].output_bytes(2) for n in (1, 2, 3)]
    assert outputs == [2 * (narrow + wide), 2 * (narrow + wide), 2 * wide]
    first = [by_name[f"layer1.0.{name}"].output_bytes(1) for name in ("conv2", "conv3", "downsample")]
    assert first == [narrow + narrow, wide + narrow, wide]


def test_the_images_need_no_gradient() -> None:
    first, *rest = model("vgg16").layers
    assert not sum(kernel.flops for kernel in first.backward_input(1))
    for layer in rest:
        forward, halves = layer.forward(3), (layer.backward_input(3), layer.backward_weights(3))
        assert [sum(k.flops for k in half) for half in halves] == [sum(k.flops for k in forward)] * 2


def products(name: str, precision: str) -> list[Kernel]:
    layers = model(name, precision).layers
    return [kernel for layer in layers for kernel in (*layer.forward(1), *layer.backward(1)) if kernel.flops]


def test_convolutions_run_in_tf32_and_linear_layers_in_fp32() -> None:
    kernels = products("vgg16", "fp32")
    assert [kernel.precision for kernel in kernels].count("tf32") == 3 * 13 - 1
    assert [kernel.precision for kernel in kernels].count("fp32") == 3 * 3
    assert {kernel.precision for kernel in products("vgg16", "fp16")} == {"fp16"}


def executed(shape: tuple[int, int, int, int] | None) -> int:
    assert shape is not None
    batch, m, n, k = shape
    return 2 * batch * m * n * k


def test_shapes_of_unit_stride_execute_the_convolutions_flops() -> None:
    assert all(executed(kernel.shape) == kernel.flops for kernel in products("vgg16", "fp32"))


def test_winograd_multiplies_two_and_a_quarter_times_less() -> None:
    """Lavin and Gray 2015, section 4.1: 16 multiplications for 36. All 3 x 3 of unit stride, nothing else."""
    vgg = [kernel for kernel in products("vgg16", "fp32") if kernel.winograd]
    assert len(vgg) == 3 * 13 - 1
    assert all(kernel.flops / executed(kernel.winograd) == 2.25 for kernel in vgg)
    assert not [kernel for kernel in products("vgg16", "bf16") if kernel.winograd]
    assert len([kernel for kernel in products("resnet50", "fp32") if kernel.winograd]) == 3 * (16 - 3)


@given(size=st.integers(8, 64), window=st.integers(1, 7), stride=st.integers(1, 3), channels=st.integers(1, 64))
def test_image_sizes_are_those_of_counted_windows(size: int, window: int, stride: int, channels: int) -> None:
    made = Image(3, size, size).through(channels, window, stride, 0)
    assert made.height == len(range(0, size - window + 1, stride))
    assert made.elements == channels * made.height**2


def test_fusing_norm_and_relu_saves_traffic_and_only_the_loss_keeps_less() -> None:
    fused, apart = model("resnet50", fused=True), model("resnet50", fused=False)
    assert fused.flops(2) == apart.flops(2)
    traffic = [
        sum(kernel.nbytes for layer in made.layers for kernel in (*layer.forward(2), *layer.backward(2)))
        for made in (fused, apart)
    ]
    assert traffic[0] < traffic[1]
    kept, more = ([layer.activation_bytes(2) for layer in made.layers] for made in (fused, apart))
    # eager torch keeps the logits beside the log-softmax
    assert more == [*kept[:-1], kept[-1] + 2 * 4 * 1000]


def test_what_is_kept_is_the_input_of_each_convolution_and_norm() -> None:
    builder = ConvolutionalBuilder(Image(3, 8, 8))
    builder.convolution("conv", 16, 3, norm=True)
    builder.max_pool(2, 2)
    builder.linear("fc", 10)
    image, filtered, pooled = 3 * 64, 16 * 64, 16 * 16
    kept = [layer.activation_bytes(1) for layer in builder.model("small").layers]
    # images, norm's input, pool's input and its int64 indices; the linear layer's input, logits and log-softmax
    assert kept == [4 * (image + filtered + filtered) + 8 * pooled, 4 * pooled + (4 + 4) * 10]


def test_branches_are_concatenated_and_must_be_of_one_size() -> None:
    builder = ConvolutionalBuilder(Image(3, 32, 32))
    builder.convolution("conv", 8, 3)
    builder.branches(
        "mixed", [lambda: builder.convolution("a", 4, (1, 7)), lambda: builder.convolution("b", 6, (7, 1))]
    )
    assert builder.image == Image(10, 32, 32)
    assert [layer.name for layer in builder.layers] == ["conv", "mixed.0.a", "mixed.1.b"]
    assert [layer.parameters for layer in builder.layers[1:]] == [4 * 8 * 7 + 4, 6 * 8 * 7 + 6]
    with pytest.raises(ScenarioError, match="the branches of mixed make images of 32 x 32, 16 x 16"):
        builder.branches(
            "mixed", [lambda: builder.convolution("a", 4, 3), lambda: builder.convolution("b", 4, 3, stride=2)]
        )


@pytest.mark.parametrize(("precision", "converted"), [("fp16", 2), ("bf16", 2), ("fp32", 0)])
def test_contiguous_images_are_converted_in_16_bits(precision: str, converted: int) -> None:
    """Each pass reads and writes an image of the size of the input and one of the size of the output."""
    source, target = Image(4, 8, 8), Image(16, 4, 4)
    plain, contiguous = (
        Convolution(source, target, 3, 2, False, precision, channels_last=last) for last in (True, False)
    )
    for name in ("forward", "backward_input", "backward_weights"):
        kernels, more = getattr(plain, name)(5), getattr(contiguous, name)(5)
        assert len(more) - len(kernels) == converted
        moved = sum(kernel.nbytes for kernel in more) - sum(kernel.nbytes for kernel in kernels)
        assert moved == (converted and 2 * 5 * (4 * 64 + 16 * 16) * 2)


# seconds of a step with contiguous images, and with the channels last: pytorch-image-models, results/
# benchmark-train-amp-nchw/nhwc-pt112-cu113-rtx3090.csv; batch
MEMORY_FORMATS = {
    "resnet18": (0.184877, 0.146713, 512),
    "resnet50": (0.618983, 0.419528, 512),
    "resnet101": (0.448321, 0.34074, 256),
    "inception_v3": (0.636205, 0.489427, 384),
    "vgg16": (0.824954, 0.702994, 384),
}


@pytest.mark.parametrize("name", MEMORY_FORMATS)
def test_contiguous_images_are_as_much_slower_as_measured(name: str) -> None:
    contiguous, last, batch = MEMORY_FORMATS[name]
    steps = []
    for memory_format in ("contiguous", "channels_last"):
        document = {
            "version": 1,
            "cluster": {"preset": "rtx_4090_workstation", "node": {"accelerator": "rtx_3090", "accelerators": 1}},
            "model": {"preset": name, "memory_format": memory_format},
            "training": {"global_batch_size": batch, "precision": "fp16", "optimizer": "momentum"},
        }
        steps.append(Scenario.model_validate(document).run().timeline.step_time)
    assert steps[0] / steps[1] == pytest.approx(contiguous / last, rel=0.1)


def test_batch_norms_of_contiguous_images_take_as_long_as_measured() -> None:
    """ResNet-50, 256 samples in fp16 on one H200 (torch 2.11, cuDNN): 13.9 ms forward, 24.5 ms backward."""
    layers = model("resnet50", precision="fp16", fused=False).layers
    gpu = device(GPUS, "h200").accelerator()
    for method, milliseconds in (("forward", 13.9), ("backward_input", 24.5)):
        kernels = [
            kernel
            for layer in layers
            if isinstance(layer, OperatorLayer)
            for operator in layer.operators
            for kernel in getattr(operator, method)(256)
            if kernel.blocks
        ]
        assert len(kernels) == 53
        assert 1e3 * gpu.seconds(kernels) == pytest.approx(milliseconds, rel=0.1)


def test_images_lie_as_the_stack_wants_them() -> None:
    """Batch norms are fused with the channels last alone; torch's own order is contiguous."""
    for fused, last in ((True, True), (frozenset({"batch_norm"}), True), (False, False)):
        layers = model("resnet50", precision="fp16", fused=fused).layers
        operators = [one for layer in layers if isinstance(layer, OperatorLayer) for one in layer.operators]
        found = {one.channels_last for one in operators if isinstance(one, Convolution)}
        assert found == {last}
