"""The `model:` sections of models of images: kinds vision and convolutional, and those that make images, diffusion and
unet.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import Count, Flag, Index, Section, number
from clustersim.simulator.reading.validation import Fault
from clustersim.workloads.architectures.model_keys import KNOWN, MOST_FEATURES, MOST_LAYERS, Named, divides, most
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import Fused, fuses

if TYPE_CHECKING:
    from clustersim.workloads.architectures.image_models import ConvolutionalBuilder


class VisionSpecification(Named):
    """A vision transformer; keys as in Hugging Face's ViTConfig."""

    kind: Annotated[Literal["vision"], KNOWN]
    """vision: a vision transformer. Required."""
    num_layers: Count
    """Layers. Also num_hidden_layers. Required."""
    hidden_size: Count
    """Features of the hidden state. Required."""
    num_attention_heads: Count
    """Attention heads; they must divide hidden_size. Required."""
    ffn_hidden_size: Count | None = None
    """Features inside the MLP; by default 4 times hidden_size. Also intermediate_size."""
    image_size: Count = 224
    """Height and width of an image, pixels."""
    patch_size: Count = 16
    """Height and width of a patch, pixels; it must divide image_size."""
    num_channels: Count = 3
    """Channels of an image."""
    num_classes: Count = 1000
    """Classes that the head tells apart."""
    class_token_length: Index = 1
    """Class tokens beside the patches: 8 in Megatron-LM and NeMo, whose scores then have aligned rows; 0: the patches
    are averaged."""
    attention: Literal["unfused", "flash"] = "unfused"
    """unfused stores the scores, flash does not."""
    dropout: Annotated[float, BeforeValidator(number(0.0, 1.0))] = 0.0
    """Probability of dropout, 0 to 1; above 0 its kernels and masks count."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        most("num_layers", self.num_layers, MOST_LAYERS)
        most("hidden_size", self.hidden_size, MOST_FEATURES)
        divides("num_attention_heads", self.num_attention_heads, "hidden_size", self.hidden_size)
        divides("patch_size", self.patch_size, "image_size", self.image_size)
        return self

    def build(self, precision: str = "fp32", fused: Fused = True, folder: Path | None = None) -> Model:
        """The model with products in *precision*, its elementwise kernels *fused* or not."""
        from clustersim.workloads.architectures.image_models import vision_transformer
        from clustersim.workloads.architectures.shape import Embedding, Mlp, SelfAttention, Shape
        from clustersim.workloads.operators.convolution import Image

        heads = self.num_attention_heads
        shape = Shape(
            self.num_layers,
            self.hidden_size,
            (self.image_size // self.patch_size) ** 2 + self.class_token_length,
            self.num_classes,
            SelfAttention(heads, heads, kind=self.attention, mask="full"),
            Mlp(self.ffn_hidden_size or 4 * self.hidden_size),
            embedding=Embedding(tied=False),
            dropout=bool(self.dropout),
            precision=precision,
            software=Software(fused=fused),
        )
        image = Image(self.num_channels, self.image_size, self.image_size)
        return vision_transformer(shape, image, self.patch_size, self.title)


class ConvolutionEntry(Section):
    """`conv` output channels, *repeat* times over; with `norm` a batch norm in place of a bias."""

    conv: Count
    """Output channels of a convolution. Required."""
    kernel_size: Count | tuple[Count, Count] = 3
    """Height and width of the kernel, one number for both."""
    stride: Count = 1
    """Step between positions of the kernel."""
    padding: Index | None = None
    """Pixels added at each border; by default half of the kernel, so that stride 1 keeps the size."""
    norm: Flag = False
    """A batch norm follows, in place of a bias."""
    activation: Flag = True
    """A ReLU follows."""
    repeat: Count = 1
    """How many of them, one after the other."""

    def add(self, builder: "ConvolutionalBuilder", number: int) -> None:
        """Append it to the model."""
        for index in range(self.repeat):
            builder.convolution(
                f"conv{number}" + (f".{index}" if self.repeat > 1 else ""),
                self.conv,
                self.kernel_size,
                stride=self.stride,
                padding=self.padding,
                norm=self.norm,
                activation=self.activation,
            )


class BottleneckEntry(Section):
    """*blocks* of ResNet's bottlenecks with `bottleneck` inner channels; the first of them has the *stride*."""

    bottleneck: Count
    """Inner channels of ResNet's bottleneck; its output has four times as many. Required."""
    blocks: Count = 1
    """How many of them, one after the other."""
    stride: Count = 1
    """Stride of the first block."""

    def add(self, builder: "ConvolutionalBuilder", number: int) -> None:
        """Append it to the model."""
        for index in range(self.blocks):
            builder.bottleneck(f"layer{number}.{index}", self.bottleneck, self.stride if index == 0 else 1)


class BasicEntry(Section):
    """*blocks* of two 3x3 convolutions with `basic` channels, as in ResNet-18; the first of them has the *stride*."""

    basic: Count
    """Channels of ResNet's basic block. Required."""
    blocks: Count = 1
    """How many of them, one after the other."""
    stride: Count = 1
    """Stride of the first block."""

    def add(self, builder: "ConvolutionalBuilder", number: int) -> None:
        """Append it to the model."""
        for index in range(self.blocks):
            builder.basic(f"layer{number}.{index}", self.basic, self.stride if index == 0 else 1)


class MaxPoolEntry(Section):
    """A window of `max_pool` x `max_pool`; the *stride* is the window's size unless given."""

    max_pool: Count
    """Height and width of the window of a max pooling. Required."""
    stride: Count | None = None
    """Step between windows; by default the size of the window."""
    padding: Index = 0
    """Pixels added at each border."""

    def add(self, builder: "ConvolutionalBuilder", number: int) -> None:
        """Add it to the layer before."""
        builder.max_pool(self.max_pool, self.stride or self.max_pool, self.padding)


class AveragePoolEntry(Section):
    """Down to `average_pool` x `average_pool` pixels."""

    average_pool: Count
    """Height and width of the image after an average pooling. Required."""

    def add(self, builder: "ConvolutionalBuilder", number: int) -> None:
        """Add it to the layer before."""
        builder.average_pool(self.average_pool)


class LinearEntry(Section):
    """`linear` output features, a *dropout* before and an *activation* after it where asked for."""

    linear: Count
    """Output features of a fully connected operator. Required."""
    activation: Flag = False
    """A ReLU follows."""
    dropout: Flag = False
    """A dropout precedes."""

    def add(self, builder: "ConvolutionalBuilder", number: int) -> None:
        """Append it to the model."""
        builder.linear(f"fc{number}", self.linear, activation=self.activation, drop=self.dropout)


class BranchesEntry(Section):
    """`branches` over one image, each a list of entries; their channels are concatenated, as in Inception."""

    branches: Annotated[list[Annotated[list["Entry"], Field(min_length=1)]], Field(min_length=2)]
    """Lists of operators over the same image. Required."""

    def add(self, builder: "ConvolutionalBuilder", number: int) -> None:
        """Append them to the model, one after the other."""
        builder.branches(f"branches{number}", [partial(add_entries, builder, branch) for branch in self.branches])


def add_entries(builder: "ConvolutionalBuilder", entries: Sequence["Entry"]) -> None:
    """Append *entries* to the model of *builder*; those of a kind are numbered from 1."""
    numbers: dict[type, int] = {}
    for entry in entries:
        numbers[type(entry)] = numbers.get(type(entry), 0) + 1
        entry.add(builder, numbers[type(entry)])


def _operator(value: Any) -> str:
    names = ("conv", "bottleneck", "basic", "max_pool", "average_pool", "linear", "branches")
    return next((name for name in names if isinstance(value, dict) and name in value), "conv")


Entry = Annotated[
    Annotated[ConvolutionEntry, Tag("conv")]
    | Annotated[BottleneckEntry, Tag("bottleneck")]
    | Annotated[BasicEntry, Tag("basic")]
    | Annotated[MaxPoolEntry, Tag("max_pool")]
    | Annotated[AveragePoolEntry, Tag("average_pool")]
    | Annotated[LinearEntry, Tag("linear")]
    | Annotated[BranchesEntry, Tag("branches")],
    Discriminator(_operator),
]
"""One operator, several equal ones, or branches, of a convolutional model."""


class ConvolutionalSpecification(Named):
    """A convolutional model."""

    kind: Annotated[Literal["convolutional"], KNOWN]
    """convolutional: from its layers. Required."""
    image: tuple[Count, Count, Count] = (3, 224, 224)
    """Channels, height and width of a sample."""
    memory_format: Literal["auto", "channels_last", "contiguous"] = "auto"
    """Order of an image in memory: the channels of a pixel next to each other (channels_last, NHWC), as tensor cores
    need them, or each channel as a whole (contiguous, NCHW), from which a convolution in 16 bits converts. auto:
    channels_last where the stack fuses batch norms, which libraries and compilers do in that order alone (cuDNN's
    CUDNN_BATCHNORM_OPS_BN_ACTIVATION; torch/_inductor/config.py, layout_optimization); else contiguous, torch's own."""
    layers: Annotated[list[Entry], Field(min_length=1)]
    """Operators in order, with torch's keys. Required."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        copies = sum(getattr(entry, "repeat", 1) * getattr(entry, "blocks", 1) for entry in self.layers)
        most("layers", copies, MOST_LAYERS)
        if isinstance(self.layers[0], MaxPoolEntry | AveragePoolEntry):
            raise Fault(("layers", 0), "a pooling joins the layer before it, so it cannot be the first")
        try:
            self.build()
        except ScenarioError as error:
            raise Fault("layers", str(error)) from None
        return self

    def build(self, precision: str = "fp32", fused: Fused = True, folder: Path | None = None) -> Model:
        """The model with products in *precision*, norms fused with what follows them or not."""
        from clustersim.workloads.architectures.image_models import ConvolutionalBuilder
        from clustersim.workloads.operators.convolution import Image

        fused_norms = fuses(fused, "batch_norm")
        last = fused_norms if self.memory_format == "auto" else self.memory_format == "channels_last"
        builder = ConvolutionalBuilder(Image(*self.image), precision, fused_norms, channels_last=last)
        add_entries(builder, self.layers)
        return builder.model(self.title)


class TextKeys(Named):
    """Keys of the latent images and of the text of a sample."""

    image_size: Count
    """Height and width of the latent image, pixels: 128 for images of 1024 and an autoencoder of 8. Required."""
    num_channels: Count = 4
    """Channels of the latent image."""
    out_channels: Count | None = None
    """Channels of what is predicted; by default num_channels. DiT predicts a variance too, twice as many."""
    text_length: Index = 0
    """Vectors of text; 0: there is no text."""
    text_features: Index = 0
    """Features of a vector of text."""
    pooled_features: Index = 0
    """Features of one vector for the whole text; 0: there is none."""

    def check_text(self) -> None:
        """Raise `Fault` for text without features, or features without text."""
        if bool(self.text_length) != bool(self.text_features):
            missing = "text_features" if self.text_length else "text_length"
            raise Fault(missing, "text has vectors and features; give text_length and text_features, or neither")


class DiffusionSpecification(TextKeys):
    """A diffusion transformer; the autoencoder and the encoders of text are not part of it."""

    kind: Annotated[Literal["diffusion"], KNOWN]
    """diffusion: a diffusion transformer (DiT, Stable Diffusion 3, FLUX). Required."""
    num_layers: Count
    """Layers, with a stream of text beside that of the image if there is text. Required."""
    num_single_layers: Index = 0
    """Further layers with one stream of text and image, and attention beside the feed-forward network (FLUX)."""
    hidden_size: Count
    """Features of the hidden state. Required."""
    num_attention_heads: Count
    """Attention heads; they must divide hidden_size. Required."""
    ffn_hidden_size: Count | None = None
    """Features inside the feed-forward networks; by default 4 times hidden_size."""
    patch_size: Count = 2
    """Height and width of a patch of the latent image, pixels; it must divide image_size."""
    num_classes: Index = 0
    """Classes of images that are a condition; 0: none."""
    guidance: Flag = False
    """The scale of guidance is an input (FLUX.1 dev)."""
    qk_norm: Flag = False
    """RMS norms of queries and keys of each head, which rotary positions turn (FLUX)."""
    condition_per_layer: Flag = False
    """Each layer embeds time step and class by weights of its own, as diffusers' DiT; the paper's shares them."""
    attention: Literal["unfused", "flash"] = "flash"
    """unfused stores the scores, flash does not."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        most("num_layers", self.num_layers + self.num_single_layers, MOST_LAYERS)
        most("hidden_size", self.hidden_size, MOST_FEATURES)
        divides("num_attention_heads", self.num_attention_heads, "hidden_size", self.hidden_size)
        divides("patch_size", self.patch_size, "image_size", self.image_size)
        self.check_text()
        if self.num_single_layers and not self.text_length:
            raise Fault("num_single_layers", "joins the streams of text and image; give text_length too")
        return self

    def build(self, precision: str = "fp32", fused: Fused = True, folder: Path | None = None) -> Model:
        """The model with products in *precision*, its elementwise kernels *fused* or not."""
        from clustersim.workloads.architectures.diffusion import Denoiser, TextTokens, diffusion_transformer
        from clustersim.workloads.operators.convolution import Image

        made = Denoiser(
            self.num_layers,
            self.num_single_layers,
            self.hidden_size,
            self.num_attention_heads,
            self.ffn_hidden_size or 4 * self.hidden_size,
            Image(self.num_channels, self.image_size, self.image_size),
            self.patch_size,
            self.out_channels or self.num_channels,
            self.num_classes,
            TextTokens(self.text_length, self.text_features, self.pooled_features),
            self.guidance,
            self.qk_norm,
            self.condition_per_layer,
            self.attention == "flash",
            precision,
            fused,
        )
        return diffusion_transformer(made, self.title)


class UNetSpecification(TextKeys):
    """A U-Net with cross attention to text; keys as in diffusers' UNet2DConditionModel."""

    kind: Annotated[Literal["unet"], KNOWN]
    """unet: convolutions and attention on images that shrink and grow (SDXL). Required."""
    block_out_channels: Annotated[list[Count], Field(min_length=1)]
    """Channels of each level; each has half the height and width of the one before. Required."""
    transformer_layers: list[Index]
    """Layers of the transformer behind each residual block of a level; 0: it has none. Required."""
    layers_per_block: Count = 2
    """Residual blocks of a level on the way down; there is one more on the way up."""
    head_dim: Count = 64
    """Features of an attention head; it must divide the channels of a level with transformers."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        self.check_text()
        levels = len(self.block_out_channels)
        if len(self.transformer_layers) != levels:
            raise Fault(
                "transformer_layers", f"must have a number for each of the {levels} levels of block_out_channels"
            )
        if any(self.transformer_layers) and not self.text_length:
            raise Fault("text_length", "transformers attend to text; give text_length and text_features")
        most("transformer_layers", sum(self.transformer_layers) * self.layers_per_block, MOST_LAYERS)
        for channels, layers in zip(self.block_out_channels, self.transformer_layers, strict=True):
            if layers:
                divides("head_dim", self.head_dim, "block_out_channels", channels)
        divides("image_size", 2 ** (levels - 1), "image_size", self.image_size)
        return self

    def build(self, precision: str = "fp32", fused: Fused = True, folder: Path | None = None) -> Model:
        """The model with products in *precision*, its elementwise kernels *fused* or not."""
        from clustersim.workloads.architectures.diffusion import TextTokens, UNet, UNetLevel
        from clustersim.workloads.operators.convolution import Image

        image = Image(self.num_channels, self.image_size, self.image_size)
        text = TextTokens(self.text_length, self.text_features, self.pooled_features)
        levels = [UNetLevel(*pair) for pair in zip(self.block_out_channels, self.transformer_layers, strict=True)]
        made = UNet(image, text, self.head_dim, precision, fused)
        return made.model(self.title, levels, self.layers_per_block, self.out_channels or self.num_channels)
