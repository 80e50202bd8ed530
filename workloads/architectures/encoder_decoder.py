"""An encoder and a decoder: T5, the original transformer, Switch; and Whisper, whose encoder is one of sound.

A decoder layer has cross attention between its self-attention and its feed-forward block (Raffel et al. 2020,
arXiv:1910.10683, section 2.1). Both stacks look up tokens in one table, and end with a norm. The encoder's norm is in
its last layer. A decoder layer passes on its hidden state and the encoder's output, which all decoder layers read, so
that a pipeline sends both (Megatron-LM, core/pipeline_parallel/schedules.py, ``get_tensor_shapes``).

An encoder of sound and a decoder of text: Whisper.

Radford et al. 2022 (arXiv:2212.04356, section 2.2): two convolutions over the log-mel spectrogram, the second of stride
2, make the positions of an encoder with fixed sinusoids; the decoder is one of text with cross attention and learned
positions. Norms stand before each block. Products of keys have no bias (openai/whisper, model.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from clustersim.simulator.hardware.kernel import BYTES, Operation
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.architectures.head import head_operators
from clustersim.workloads.architectures.image_models import PIXEL_BYTES
from clustersim.workloads.architectures.layer_parts import first_product, second_product
from clustersim.workloads.architectures.shape import Shape
from clustersim.workloads.architectures.transformer import (
    TOKEN_BYTES,
    Transformer,
    embedding_operators,
    layers_of_operators,
    transformer_operators,
)
from clustersim.workloads.operators.attentions.cross_attention import CrossAttention, FlashCrossAttention
from clustersim.workloads.operators.convolution import Convolution, Image
from clustersim.workloads.operators.elementwise import Elementwise, dropout, gelu, layer_norm
from clustersim.workloads.operators.embedding_and_loss import (
    EMBEDDING,
    RelativePositionBias,
    embedding,
    vocabulary_parallel_embedding,
)
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.model import Model, OperatorLayer
from clustersim.workloads.operators.operator import Operator, fuses, matrix
from clustersim.workloads.operators.sharded import ShardedOperator, column_parallel, second_parallel

ENCODED = Operation("output of the encoder", "elementwise")

ENCODER, DECODER = "encoder", "decoder"
"""Kinds of the layers; a pipeline splits between them."""


@dataclass(frozen=True, kw_only=True)
class EncoderDecoder(Transformer):
    """A model with an encoder and a decoder, both of one *shape* but for their numbers of layers and tokens."""

    def reshaped(self, **changes: Any) -> EncoderDecoder:
        """The model with *changes* to fields of its shape."""
        return encoder_decoder(replace(self.shape, **changes), self.name, self.notes)


def encoder_decoder(shape: Shape, name: str = "encoder-decoder", notes: tuple[str, ...] = ()) -> EncoderDecoder:
    """The model of *shape*: an embedding, encoder layers, decoder layers, a head.

    >>> from clustersim.workloads.architectures.shape import Decoder, Embedding, Mlp, Norm, SelfAttention
    >>> sizes = SelfAttention(12, 12, bias=False), Mlp(3072, "relu", bias=False), Norm("rmsnorm")
    >>> base = Shape(12, 768, 512, 32128, *sizes, Embedding(positions="relative"), decoder=Decoder(12, 114))
    >>> encoder_decoder(base).parameters
    222903552
    """
    behind = shape.decoder
    assert behind is not None
    encoder = replace(shape, attention=replace(shape.attention, mask="full"), decoder=None)
    decoder = replace(shape, seq_length=behind.seq_length, decoder=None)
    both = encoder.hidden_bytes + decoder.hidden_bytes
    kept = float(encoder.hidden_bytes)
    layers = [OperatorLayer("embedding", "embedding", embedding_operators(encoder), encoder.hidden_bytes)]
    layers += [
        OperatorLayer(f"encoder layer {number}", ENCODER, operators, encoder.hidden_bytes)
        for number, operators in enumerate(_encoder_layers(encoder, shape.num_layers))
    ]
    layers += [
        OperatorLayer(f"decoder layer {number}", DECODER, operators, both, passed_on=kept)
        for number, operators in enumerate(_decoder_layers(decoder, encoder, behind.num_layers))
    ]
    layers.append(OperatorLayer("head", "head", head_operators(decoder), 4.0))
    lookups = (f"{DECODER} layer 0", *(("head",) if shape.embedding.tied else ()))
    return EncoderDecoder(
        name=name,
        layers=layers,
        sample_bytes=TOKEN_BYTES * (encoder.seq_length + decoder.seq_length),
        tokens_per_sample=shape.seq_length,
        precision=shape.precision,
        fused=shape.software.fused,
        tied_parameters=shape.vocabulary * shape.hidden_size,
        tied_layers=lookups,
        notes=notes,
        boundary_axis="" if shape.cut.sequence else shape.cut.over,
        shape=shape,
    )


def _encoder_layers(shape: Shape, count: int) -> list[tuple[Operator, ...]]:
    """Layers, the first with the table of relative positions, the last with a norm at its end."""
    made = list(layers_of_operators(shape, count))
    norm = made[0][0]
    made[0] = (*_relative_positions(shape), *made[0])
    made[-1] = (*made[-1], norm, *_dropout(shape))
    return made


def _decoder_layers(shape: Shape, encoder: Shape, count: int) -> list[tuple[Operator, ...]]:
    """Layers, the first of which looks up the tokens of the decoder and has its table of relative positions.

    It also keeps the encoder's output for all. Which of them have experts, and their loads, begins anew.
    """
    own = list(layers_of_operators(shape, count))
    norm, residual = own[0][0], own[0][-1]
    behind = own[0].index(residual) + 1  # self-attention ends with the first residual sum
    cross = (norm, *cross_attention(shape, encoder), residual)
    layers = [(*layer[:behind], *cross, *layer[behind:]) for layer in own]
    kept = Elementwise(
        encoder.seq_length * encoder.hidden_size // encoder.cut.sequence_shards,
        0.0,
        0.0,
        kept=BYTES[shape.precision],
        precision=shape.precision,
        operation=ENCODED,
    )
    return [(*_lookup(shape), *_relative_positions(shape), kept, *layers[0]), *layers[1:]]


def _lookup(shape: Shape) -> tuple[Operator, ...]:
    """Tokens of the decoder, looked up in the encoder's table."""
    table = embedding((shape.vocabulary,), shape.seq_length, shape.hidden_size, shape.precision)
    nbytes = shape.hidden_bytes * shape.cut.sequence_shards
    return vocabulary_parallel_embedding(replace(table, parameters=()), shape.cut, nbytes), *_dropout(shape)


def _dropout(shape: Shape) -> tuple[Operator, ...]:
    """Of the hidden state."""
    elements = shape.seq_length * shape.hidden_size // shape.cut.sequence_shards
    return (dropout(elements, shape.precision),) if shape.dropout else ()


def _relative_positions(shape: Shape) -> tuple[Operator, ...]:
    if not shape.relative_positions:
        return ()
    buckets = shape.embedding.relative_buckets
    return (RelativePositionBias(shape.seq_length, shape.heads, buckets, shape.precision),)


def cross_attention(shape: Shape, encoder: Shape) -> tuple[Operator, ...]:
    """Queries of the decoder's state, keys and values of the encoder's output, attention, and its output."""
    precision, cut, bias = shape.precision, shape.cut, shape.attention.bias
    queries, keys = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
    question = Linear(shape.seq_length, shape.hidden_size, queries, bias, precision, kept_share=shape.kept_share)
    answer = Linear(
        encoder.seq_length,
        shape.hidden_size,
        2 * keys,
        bias,
        precision,
        splits=(keys, keys) if shape.norm.kind == "rmsnorm" else (),
        kept_share=shape.kept_share,
        keeps_input=False,
    )
    output = Linear(shape.seq_length, queries, shape.hidden_size, bias, precision)
    sizes = (shape.seq_length, shape.heads, shape.key_value_heads, shape.head_size)
    soft = fuses(shape.software.fused, "softmax")
    core = (
        FlashCrossAttention(*sizes, shape.dropout, soft, precision, keys=encoder.seq_length)
        if shape.attention.kind == "flash"
        else CrossAttention(
            *sizes,
            shape.dropout,
            soft,
            precision,
            shape.software.softmax_group,
            shape.software.fp32_scores,
            keys=encoder.seq_length,
        )
    )
    return (
        column_parallel(first_product(shape, question), cut),
        _summed_gradient(encoder),
        column_parallel(first_product(shape, answer), cut),
        core,
        second_parallel(second_product(shape, output), cut),
    )


def _summed_gradient(encoder: Shape) -> Operator:
    """Backward, the gradient of the encoder's output from this layer is added to that from the layers behind."""
    elements = encoder.seq_length * encoder.hidden_size // encoder.cut.sequence_shards
    return Elementwise(elements, 0.0, 3.0 * BYTES[encoder.precision], precision=encoder.precision, operation=ENCODED)


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
