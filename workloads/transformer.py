"""A transformer is an embedding, a row of equal layers and a head, all from a handful of shapes.

FLOPs of a step over B samples come to 72 B s l h^2 (1 + s/6h + V/12lh), activations of a layer to s b h (34 + 5 a s/h)
bytes in 16 bits (Narayanan et al. 2021, arXiv:2104.04473, equation 3; Korthikanti et al. 2022, arXiv:2205.05198).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.errors import ScenarioError
from simulator.kernel import BYTES
from workloads.attention import CoreAttention, FlashAttention
from workloads.elementwise import cross_entropy, dropout, gelu, layer_norm, residual, rms_norm, rotary, swiglu
from workloads.model import Model
from workloads.part import Elementwise, Linear, Part, PartedLayer
from workloads.shape import Shape, nearest_divisors
from workloads.sharded_part import (
    column_parallel,
    on_the_sequence,
    row_parallel,
    sequence_gathered,
    vocabulary_parallel_embedding,
    vocabulary_parallel_loss,
)

TOKEN_BYTES = 8
"""A token on its way to the GPU is an int64, torch's index type."""


@dataclass(frozen=True, kw_only=True)
class Transformer(Model):
    """A model that knows its *shape*, so that it can be cut."""

    shape: Shape

    def sharded(self, tensor_parallel: int, sequence_parallel: bool = False) -> Transformer:
        """One rank's share under tensor parallelism. Raises `ScenarioError` for a degree that does not divide."""
        for key, word in (("num_attention_heads", "heads"), ("ffn_hidden_size", "ffn_hidden_size")):
            count: int = getattr(self.shape, key)
            if tensor_parallel < 1 or count % tensor_parallel:
                good = " or ".join(map(str, nearest_divisors(count, tensor_parallel)))
                raise ScenarioError(
                    f"tp = {tensor_parallel} does not divide the {count} {word} of {self.name}; try {good}"
                )
        if sequence_parallel and self.shape.seq_length % tensor_parallel:
            raise ScenarioError(
                f"tp = {tensor_parallel} does not divide seq_length = {self.shape.seq_length}, "
                "which sequence parallelism needs"
            )
        shape = replace(self.shape, tensor_parallel=tensor_parallel, sequence_parallel=sequence_parallel)
        return transformer(shape, self.name, self.notes)

    def with_softmax(self, group: int) -> Transformer:
        """The model whose fused softmax takes heads x samples by *group*."""
        return transformer(replace(self.shape, softmax_group=group), self.name, self.notes)


def transformer(shape: Shape, name: str = "transformer", notes: tuple[str, ...] = ()) -> Transformer:
    """The model of *shape*: an embedding, its layers, a head.

    >>> gpt2 = Shape(12, 768, 12, 12, 3072, 1024, 50257)
    >>> transformer(gpt2).parameters
    124439808
    """
    layer = transformer_parts(shape)
    layers = [PartedLayer("embedding", "embedding", embedding_parts(shape), shape.hidden_bytes)]
    layers += [
        PartedLayer(f"layer {number}", "transformer", layer, shape.hidden_bytes) for number in range(shape.num_layers)
    ]
    # a head hands on the loss, one fp32 number
    layers.append(PartedLayer("head", "head", head_parts(shape), 4.0))
    return Transformer(
        name,
        layers,
        sample_bytes=TOKEN_BYTES * shape.seq_length,
        tokens_per_sample=shape.seq_length,
        precision=shape.precision,
        fused=shape.fused,
        tied_parameters=shape.vocabulary * shape.hidden_size if shape.tie_embeddings else 0,
        notes=notes,
        shape=shape,
    )


def transformer_parts(shape: Shape) -> tuple[Part, ...]:
    """One layer: attention, then the feed-forward block, each with its norm and its residual sum."""
    attention, feed_forward = _attention(shape), _feed_forward(shape)
    if shape.causal:
        return (_norm(shape), *attention, _norm(shape), *feed_forward)
    return (*attention, _norm(shape), *feed_forward, _norm(shape))


def embedding_parts(shape: Shape) -> tuple[Part, ...]:
    """Token, position and type vectors added up; norm and dropout where the model has them."""
    elements = shape.seq_length * shape.hidden_size
    width = BYTES[shape.precision]
    learned = shape.position_embedding_type == "learned_absolute"
    tables = [shape.vocabulary, shape.seq_length * learned, shape.type_vocab_size]
    adds = sum(map(bool, tables)) - 1
    counts = tuple(rows * shape.hidden_size for rows in tables if rows)
    # backward: the dense gradient is set to zero, and each token's row is read, added to and written
    weights = width * (3 + sum(counts) / elements)
    lookup = Elementwise(
        elements,
        width * (2 + 3 * adds),
        0.0,
        weights,
        counts=counts,
        launches=(1 + 2 * adds, 1),
        precision=shape.precision,
    )
    norm = (_norm(shape),) if shape.embedding_norm else ()
    drop = (dropout(elements // shape.shard, shape.precision),) if shape.dropout else ()
    return (vocabulary_parallel_embedding(lookup, shape, len(counts)), *norm, *drop)


def head_parts(shape: Shape) -> tuple[Part, ...]:
    """The final norm or BERT's transform, the logits over the vocabulary and the loss."""
    rows, hidden, precision = shape.seq_length, shape.hidden_size, shape.precision
    before: tuple[Part, ...] = (_norm(shape),)
    if not shape.causal:
        own = rows // shape.shard
        dense = on_the_sequence(Linear(own, hidden, hidden, precision=precision), shape)
        before = (dense, gelu(own * hidden, precision), _norm(shape))
    if shape.head == "pretraining":
        pooler = sequence_gathered(Linear(1, hidden, hidden, precision=precision), shape)
        before = (pooler, gelu(hidden, precision), *before)
    logits = Linear(
        rows,
        hidden,
        shape.vocabulary,
        bias=not shape.causal,
        precision=precision,
        shared=shape.tie_embeddings,
        kept_share=shape.shard,
    )
    loss = cross_entropy(rows, shape.vocabulary, precision, fused=shape.fused)
    next_sentence = (Linear(1, hidden, 2, precision=precision),) if shape.head == "pretraining" else ()
    return (*before, column_parallel(logits, shape), vocabulary_parallel_loss(loss, shape), *next_sentence)


def _norm(shape: Shape) -> Part:
    rows = shape.seq_length // shape.shard
    if shape.normalization == "rmsnorm":
        return on_the_sequence(rms_norm(rows, shape.hidden_size, shape.precision, fused=shape.fused), shape)
    return on_the_sequence(layer_norm(rows, shape.hidden_size, shape.precision), shape)


def _attention(shape: Shape) -> tuple[Part, ...]:
    precision, rows = shape.precision, shape.seq_length
    queries, keys = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
    # GPT-2 and Megatron-LM hold query, key and value in one tensor, Hugging Face's BERT and Llama in three
    apart = not shape.causal or shape.normalization == "rmsnorm"
    columns = Linear(
        rows,
        shape.hidden_size,
        queries + 2 * keys,
        shape.add_bias_linear,
        precision,
        splits=(queries, keys, keys) if apart else (),
        kept_share=shape.shard,
    )
    turned = (rotary(rows * (queries + keys), precision, fused=shape.fused),)
    output = Linear(rows, queries, shape.hidden_size, shape.add_bias_linear, precision)
    position = turned if shape.position_embedding_type == "rope" else ()
    return (column_parallel(columns, shape), *position, _core(shape), row_parallel(output, shape), _residual(shape))


def _core(shape: Shape) -> Part:
    sizes = (shape.seq_length, shape.heads, shape.key_value_heads, shape.head_size)
    if shape.attention == "flash":
        return FlashAttention(*sizes, shape.dropout, shape.fused, shape.precision, causal=shape.causal)
    return CoreAttention(*sizes, shape.dropout, shape.fused, shape.precision, shape.softmax_group)


def _feed_forward(shape: Shape) -> tuple[Part, ...]:
    precision, rows, gated = shape.precision, shape.seq_length, shape.activation == "swiglu"
    width = shape.ffn_hidden_size // shape.tensor_parallel
    up = Linear(
        rows,
        shape.hidden_size,
        width * (2 if gated else 1),
        shape.add_bias_linear,
        precision,
        splits=(width, width) if gated else (),
        kept_share=shape.shard,
    )
    between = swiglu(rows * width, precision, fused=shape.fused) if gated else gelu(rows * width, precision)
    down = Linear(rows, width, shape.hidden_size, shape.add_bias_linear, precision)
    return (column_parallel(up, shape), between, row_parallel(down, shape), _residual(shape))


def _residual(shape: Shape) -> Part:
    elements = shape.seq_length * shape.hidden_size // shape.shard
    return residual(elements, shape.precision, drop=shape.dropout, fused=shape.fused)
