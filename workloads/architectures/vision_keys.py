"""The `model:` section of kind vision. The model is built in `workloads.architectures.vision`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, model_validator

from simulator.document import Count
from simulator.document.quantities import number
from workloads.architectures.keys import KNOWN, MOST_FEATURES, MOST_LAYERS, Named, divides, most
from workloads.model import Model
from workloads.operators.fusion import Fused


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
    attention: Literal["unfused", "flash"] = "unfused"
    """unfused stores the scores, flash does not."""
    dropout: Annotated[float, BeforeValidator(number(0.0, 1.0))] = 0.0
    """Probability of dropout, 0 to 1; above 0 its kernels and masks count."""

    @model_validator(mode="after")
    def _sound(self) -> VisionSpecification:
        most("num_layers", self.num_layers, MOST_LAYERS)
        most("hidden_size", self.hidden_size, MOST_FEATURES)
        divides("num_attention_heads", self.num_attention_heads, "hidden_size", self.hidden_size)
        divides("patch_size", self.patch_size, "image_size", self.image_size)
        return self

    def build(self, precision: str = "fp32", fused: Fused = True, folder: Path | None = None) -> Model:
        """The model with products in *precision*, its elementwise kernels *fused* or not."""
        from workloads.architectures.vision import vision_transformer
        from workloads.operators.convolution import Image
        from workloads.shape import Shape

        shape = Shape(
            self.num_layers,
            self.hidden_size,
            self.num_attention_heads,
            self.num_attention_heads,
            self.ffn_hidden_size or 4 * self.hidden_size,
            (self.image_size // self.patch_size) ** 2 + 1,
            self.num_classes,
            tie_embeddings=False,
            attention=self.attention,
            attention_mask="full",
            dropout=bool(self.dropout),
            precision=precision,
            fused=fused,
        )
        image = Image(self.num_channels, self.image_size, self.image_size)
        return vision_transformer(shape, image, self.patch_size, self.title)
