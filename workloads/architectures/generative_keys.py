"""The `model:` sections of models that make images: kinds diffusion (transformers) and unet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from clustersim.simulator.reading.quantities import Count, Flag, Index
from clustersim.simulator.reading.validation import Fault
from clustersim.workloads.architectures.model_keys import KNOWN, MOST_FEATURES, MOST_LAYERS, Named, divides, most
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator_names import Fused


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
    def _sound(self) -> DiffusionSpecification:
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
    def _sound(self) -> UNetSpecification:
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
        from clustersim.workloads.architectures.diffusion import TextTokens
        from clustersim.workloads.architectures.unet import UNet, UNetLevel
        from clustersim.workloads.operators.convolution import Image

        image = Image(self.num_channels, self.image_size, self.image_size)
        text = TextTokens(self.text_length, self.text_features, self.pooled_features)
        levels = [UNetLevel(*pair) for pair in zip(self.block_out_channels, self.transformer_layers, strict=True)]
        made = UNet(image, text, self.head_dim, precision, fused)
        return made.model(self.title, levels, self.layers_per_block, self.out_channels or self.num_channels)
