"""An encoder of sound and a decoder of text: Whisper.

Radford et al. 2022 (arXiv:2212.04356, section 2.2): two convolutions over the log-mel spectrogram, the second of stride
2, make the positions of an encoder with fixed sinusoids; the decoder is one of text with cross attention and learned
positions. Norms stand before each block. Products of keys have no bias (openai/whisper, model.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from clustersim.simulator.hardware.kernel import BYTES
from clustersim.workloads.architectures.encoder_decoder import DECODER, ENCODED, ENCODER, cross_attention
from clustersim.workloads.architectures.image_models import PIXEL_BYTES
from clustersim.workloads.architectures.shape import Shape
from clustersim.workloads.architectures.transformer import (
    TOKEN_BYTES,
    embedding_operators,
    head_operators,
    transformer_operators,
)
from clustersim.workloads.operators.convolution import Convolution, Image
from clustersim.workloads.operators.elementwise import Elementwise, gelu, layer_norm
from clustersim.workloads.operators.embedding import EMBEDDING
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.model import Model, OperatorLayer
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.parameter import matrix
from clustersim.workloads.operators.sharded import ShardedOperator

KERNEL = 1, 3
"""Height and width of the convolutions: along time only."""


def speech_model(encoder: Shape, decoder: Shape, mel_bins: int, name: str = "speech") -> Model:
    """The model of both shapes: the encoder takes *mel_bins* of twice as many frames as it has positions.

    Products and the logits share the table of tokens, as T5's do; it counts with the first layer.
    """
    frames = Image(mel_bins, 1, 2 * encoder.seq_length)
    kept, both = encoder.hidden_bytes, encoder.hidden_bytes + decoder.hidden_bytes
    table = Elementwise(0, 0.0, 0.0, parameters=(matrix(decoder.vocab_size, decoder.hidden_size, hidden=False),))
    begin = (table, *_frames(encoder, frames))
    layers = [OperatorLayer("embedding", "embedding", begin, kept)]
    layers += (OperatorLayer(f"encoder layer {n}", ENCODER, one, kept) for n, one in enumerate(_encoded(encoder)))
    layers += (
        OperatorLayer(f"decoder layer {n}", DECODER, one, both, passed_on=kept)
        for n, one in enumerate(_decoded(decoder, encoder))
    )
    layers.append(OperatorLayer("head", "head", head_operators(decoder), 4.0))
    return Model(
        name,
        layers,
        sample_bytes=float(PIXEL_BYTES * frames.elements + TOKEN_BYTES * decoder.seq_length),
        tokens_per_sample=decoder.seq_length,
        precision=decoder.precision,
        fused=decoder.software.fused,
        tied_parameters=decoder.vocab_size * decoder.hidden_size,
        tied_layers=("decoder layer 0", "head"),
    )


def _frames(shape: Shape, frames: Image) -> tuple[Operator, ...]:
    """Two convolutions with their activations, and the sinusoids, which are stored but not trained."""
    hidden, precision, width = shape.hidden_size, shape.precision, BYTES[shape.precision]
    first = frames.through(hidden, KERNEL, 1, (0, 1))
    second = first.through(hidden, KERNEL, 2, (0, 1))
    fixed = replace(matrix(shape.seq_length, hidden, hidden=False), trainable=False)
    positions = Elementwise(
        second.elements, 3.0 * width, 0.0, parameters=(fixed,), precision=precision, operation=EMBEDDING
    )
    return (
        Convolution(frames, first, KERNEL, 1, True, precision, first=True),
        gelu(first.elements, precision),
        Convolution(first, second, KERNEL, 2, True, precision),
        gelu(second.elements, precision),
        positions,
    )


def _encoded(shape: Shape) -> Iterator[tuple[Operator, ...]]:
    """Equal layers, the last with a norm at its end."""
    layer = _without_key_bias(transformer_operators(shape), shape.hidden_size)
    for number in range(shape.num_layers):
        last = (layer_norm(shape.seq_length, shape.hidden_size, shape.precision),) * (number == shape.num_layers - 1)
        yield *layer, *last


def _decoded(shape: Shape, encoder: Shape) -> Iterator[tuple[Operator, ...]]:
    """Equal layers, the first with the lookup of tokens; it keeps the encoder's output for all."""
    own = transformer_operators(shape)
    norm, added = own[0], own[-1]
    behind = own.index(added) + 1  # self-attention ends with the first residual sum
    made = (*own[:behind], norm, *cross_attention(shape, encoder), added, *own[behind:])
    layer = _without_key_bias(made, shape.hidden_size)
    vectors, *others = embedding_operators(shape)
    lookup = ShardedOperator(vectors, vectors.tensors[1:])  # its table counts with the first layer
    elements = encoder.seq_length * encoder.hidden_size
    kept = Elementwise(elements, 0.0, 0.0, kept=BYTES[shape.precision], precision=shape.precision, operation=ENCODED)
    for number in range(shape.num_layers):
        yield (lookup, *others, kept, *layer) if number == 0 else layer


def _without_key_bias(operators: Sequence[Operator], hidden: int) -> tuple[Operator, ...]:
    """*operators* whose products of queries, keys and values, or of keys and values, have no bias of keys."""
    return tuple(
        ShardedOperator(one, (one.tensors[0], replace(one.tensors[1], count=one.outputs - hidden)))
        if isinstance(one, Linear) and one.outputs in (2 * hidden, 3 * hidden)
        else one
        for one in operators
    )
