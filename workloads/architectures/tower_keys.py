"""The `model:` sections of kinds towers (CLIP, SigLIP) and speech (Whisper), and the tower of a model of text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from clustersim.simulator.reading.quantities import Count, Flag, Index, Section
from clustersim.simulator.reading.validation import Fault
from clustersim.workloads.architectures.model_keys import KNOWN, MOST_FEATURES, MOST_LAYERS, Named, divides, most
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import Fused

if TYPE_CHECKING:
    from clustersim.workloads.architectures.shape import Shape
    from clustersim.workloads.architectures.towers import VisionTower


class TowerKeys(Section):
    """The sizes of one tower."""

    num_layers: Count
    """Layers. Required."""
    hidden_size: Count
    """Features of the hidden state. Required."""
    num_attention_heads: Count
    """Attention heads; they must divide hidden_size. Required."""
    ffn_hidden_size: Count | None = None
    """Features inside the MLP; by default 4 times hidden_size."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        most("num_layers", self.num_layers, MOST_LAYERS)
        most("hidden_size", self.hidden_size, MOST_FEATURES)
        divides("num_attention_heads", self.num_attention_heads, "hidden_size", self.hidden_size)
        return self

    def shape(
        self, positions: int, vocabulary: int, mask: str, attention: str, precision: str, fused: Fused
    ) -> "Shape":
        """Its shape: norms before each block, biases, and no dropout."""
        from clustersim.simulator.hardware.accelerator import Software
        from clustersim.workloads.architectures.shape import Mlp, SelfAttention, Shape

        heads = self.num_attention_heads
        width = self.ffn_hidden_size or 4 * self.hidden_size
        return Shape(
            self.num_layers,
            self.hidden_size,
            positions,
            vocabulary,
            SelfAttention(heads, heads, kind=attention, mask=mask),
            Mlp(width),
            dropout=False,
            precision=precision,
            software=Software(fused=fused),
        )


class ImageTowerKeys(TowerKeys):
    """The tower of images."""

    image_size: Count = 224
    """Height and width of an image, pixels."""
    patch_size: Count = 16
    """Height and width of a patch, pixels. What is left at the borders is not seen."""


class TextTowerKeys(TowerKeys):
    """The tower of text."""

    seq_length: Count = 77
    """Tokens of a text."""
    vocab_size: Count
    """Entries of the vocabulary. Required."""


class ProjectorKeys(Section):
    """Products that bring states of patches to the features of a text model."""

    widths: Annotated[list[Count], Field(min_length=1)]
    """Features that the products give, the last those of the text model. Required."""
    merge: Count = 1
    """So many patches in height and in width become one token."""
    pooled: Flag = False
    """Patches of a token are averaged (Gemma 3), else their features stand side by side."""
    norm: Flag = True
    """A norm of each patch, or of each average, stands first."""
    norm_bias: Flag = True
    """That norm is as those of the tower; false: an RMS norm (Gemma 3)."""
    bias: Flag = True
    """Products have biases."""
    copies: Index = 0
    """Further projectors, of states of middle layers (Qwen3-VL's DeepStack)."""


class VisionTowerKeys(TowerKeys):
    """A tower of images ahead of the layers of a text model, and the projector between them."""

    projector: ProjectorKeys
    """The projector. Required."""
    images: Count = 1
    """Images of a sample."""
    image_size: Count = 448
    """Height and width of an image, pixels; what is left at the borders is not seen."""
    patch_size: Count = 14
    """Height and width of a patch, pixels."""
    frames: Count = 1
    """Frames of a patch: Qwen's have two, and an image stands for both."""
    activation: Literal["gelu", "gelu_new", "swiglu"] = "gelu"
    """Activation of the MLP."""
    normalization: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Kind of the norms."""
    rotary: Flag = False
    """Queries and keys have rotary positions."""
    position_rows: Index = 0
    """Rows of the learned table of positions; 0: there is none."""
    patch_bias: Flag = True
    """The product that makes states of patches has a bias."""
    class_token: Flag = False
    """A class token stands beside the patches."""
    first_norm: Flag = False
    """A norm stands ahead of the layers (CLIP, Llama 4)."""
    last_norm: Flag = False
    """A norm stands behind the layers."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.patch_size * self.projector.merge > self.image_size:
            side = self.patch_size * self.projector.merge
            raise Fault("image_size", f"{self.image_size} has no token of {side} x {side} pixels; take more")
        return self

    def tower(self) -> "VisionTower":
        """The tower; precision and software are those of the text model."""
        from clustersim.workloads.architectures.shape import Embedding, Mlp, Norm, SelfAttention, Shape
        from clustersim.workloads.architectures.towers import Projector, VisionTower
        from clustersim.workloads.operators.convolution import Image

        heads, way = self.num_attention_heads, self.projector
        # what does not make a whole token is not seen
        side = self.patch_size * way.merge * (self.image_size // (self.patch_size * way.merge))
        one = (side // self.patch_size) ** 2 + self.class_token
        shape = Shape(
            self.num_layers,
            self.hidden_size,
            self.images * one,
            1,
            SelfAttention(heads, heads, kind="flash", mask="full", document_length=(one,) * (self.images > 1)),
            Mlp(self.ffn_hidden_size or 4 * self.hidden_size, self.activation),
            Norm(self.normalization),
            Embedding(positions="rope" if self.rotary else "none"),
            dropout=False,
        )
        return VisionTower(
            shape,
            Image(3 * self.frames, side, side),
            self.patch_size,
            Projector(tuple(way.widths), way.merge, way.pooled, way.norm, way.norm_bias, way.bias, way.copies),
            self.images,
            self.patch_bias,
            self.position_rows,
            self.class_token,
            self.first_norm,
            self.last_norm,
        )


class TowersSpecification(Named):
    """Two towers, whose vectors of pairs are compared."""

    kind: Annotated[Literal["towers"], KNOWN]
    """towers: an encoder of images and one of text. Required."""
    image: ImageTowerKeys
    """The tower of images. Required."""
    text: TextTowerKeys
    """The tower of text. Required."""
    objective: Literal["clip", "siglip"] = "clip"
    """clip: a softmax over the pairs of a batch, and a class token; siglip: a sigmoid for each pair, and pooling by
    attention."""
    projection_size: Count | None = None
    """Features of the vectors that are compared; by default hidden_size of the tower of text."""
    attention: Literal["unfused", "flash"] = "flash"
    """unfused stores the scores, flash does not."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.image.patch_size > self.image.image_size:
            raise Fault(("image", "patch_size"), f"{self.image.patch_size} is more than image_size, so no patch fits")
        wanted = self.projection_size or self.text.hidden_size
        if self.objective == "siglip" and wanted != self.image.hidden_size:
            raise Fault(
                "projection_size", f"siglip compares the states themselves, of {self.image.hidden_size} features"
            )
        return self

    def build(self, precision: str = "fp32", fused: Fused = True, folder: Path | None = None) -> Model:
        """The model with products in *precision*, its elementwise kernels *fused* or not."""
        from clustersim.workloads.architectures.towers import Towers, two_towers
        from clustersim.workloads.operators.convolution import Image

        image, text, sigmoid = self.image, self.text, self.objective == "siglip"
        positions = (image.image_size // image.patch_size) ** 2 + (not sigmoid)
        made = Towers(
            image.shape(positions, 1, "full", self.attention, precision, fused),
            text.shape(
                text.seq_length, text.vocab_size, "full" if sigmoid else "causal", self.attention, precision, fused
            ),
            Image(3, image.image_size, image.image_size),
            image.patch_size,
            self.projection_size or text.hidden_size,
            sigmoid,
        )
        return two_towers(made, self.title)


class SpeechSpecification(Named):
    """An encoder of sound and a decoder of text."""

    kind: Annotated[Literal["speech"], KNOWN]
    """speech: Whisper. Required."""
    num_layers: Count
    """Layers of the encoder. Required."""
    num_decoder_layers: Count | None = None
    """Layers of the decoder; by default num_layers."""
    hidden_size: Count
    """Features of the hidden states. Required."""
    num_attention_heads: Count
    """Attention heads; they must divide hidden_size. Required."""
    ffn_hidden_size: Count | None = None
    """Features inside the MLP; by default 4 times hidden_size."""
    mel_bins: Count = 80
    """Bins of the spectrogram."""
    audio_length: Count = 1500
    """Positions of the encoder, of two frames each; 1500 by default, 30 seconds."""
    seq_length: Count = 448
    """Tokens of a sample in the decoder."""
    vocab_size: Count
    """Entries of the vocabulary. Required."""
    attention: Literal["unfused", "flash"] = "flash"
    """unfused stores the scores, flash does not."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        most("num_layers", self.num_layers, MOST_LAYERS)
        most("num_decoder_layers", self.num_decoder_layers or 0, MOST_LAYERS)
        most("hidden_size", self.hidden_size, MOST_FEATURES)
        divides("num_attention_heads", self.num_attention_heads, "hidden_size", self.hidden_size)
        return self

    def build(self, precision: str = "fp32", fused: Fused = True, folder: Path | None = None) -> Model:
        """The model with products in *precision*, its elementwise kernels *fused* or not."""
        from clustersim.workloads.architectures.encoder_decoder import speech_model

        sizes = {"hidden_size": self.hidden_size, "num_attention_heads": self.num_attention_heads}
        width = self.ffn_hidden_size
        encoder = TowerKeys(num_layers=self.num_layers, ffn_hidden_size=width, **sizes)
        decoder = TowerKeys(num_layers=self.num_decoder_layers or self.num_layers, ffn_hidden_size=width, **sizes)
        how = self.attention, precision, fused
        return speech_model(
            encoder.shape(self.audio_length, self.vocab_size, "full", *how),
            decoder.shape(self.seq_length, self.vocab_size, "causal", *how),
            self.mel_bins,
            self.title,
        )
