"""A transformer is an embedding, a number of equal layers and a head, all made from a `Shape`; modules of multi-token
prediction may follow.

FLOPs of a step over B samples come to 72 B s l h^2 (1 + s/6h + V/12lh), activations of a layer to s b h (34 + 5 a s/h)
bytes in 16 bits (Narayanan et al. 2021, arXiv:2104.04473, equation 3; Korthikanti et al. 2022, arXiv:2205.05198).

Multi-token prediction (MTP): further modules predict the tokens after the next one, for a loss of their own.

DeepSeek-AI 2024, arXiv:2412.19437, section 2.2. Module k joins the hidden state of the module before it with the
embedding of the next token: a norm of each, and a product of both. A layer of the model follows, with a norm of its
own and the model's logits. Embedding and logits are shared with the model. The modules are computed on the stage of the
head (Megatron-LM, core/transformer/multi_token_prediction.py), which then holds a copy of the embedding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, ClassVar

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import BYTES, Operation
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.architectures.attention import attention_operators, attention_parts
from clustersim.workloads.architectures.head import head_operators
from clustersim.workloads.architectures.layer_parts import (
    casts,
    frozen,
    has_tables,
    norm_operator,
    reruns,
    residual_sum,
    streams_added,
    streams_taken,
    trained_copy,
)
from clustersim.workloads.architectures.mlp import mixture_operators, mlp_operators, mlp_parts
from clustersim.workloads.architectures.shape import LayerBlock, Mlp, SelfAttention, Shape
from clustersim.workloads.operators.domain import of_samples
from clustersim.workloads.operators.elementwise import Elementwise, Saved, dropout
from clustersim.workloads.operators.embedding_and_loss import embedding, vocabulary_parallel_embedding
from clustersim.workloads.operators.linear import Linear, SharedInput, SummedOutput
from clustersim.workloads.operators.low_precision import LowPrecision
from clustersim.workloads.operators.model import Model, OperatorLayer
from clustersim.workloads.operators.operator import Operator, Rule
from clustersim.workloads.operators.sharded import (
    column_parallel,
    on_the_sequence,
    second_parallel,
)
from clustersim.workloads.operators.stages import ENDS

TOKEN_BYTES = 8
"""A token is an int64, torch's index type."""


@dataclass(frozen=True, kw_only=True)
class Transformer(Model):
    """A model with its *shape*, so that parallelisms can change it."""

    of_shape: ClassVar[bool] = True

    shape: Shape

    def reshaped(self, **changes: Any) -> Transformer:
        """The model with *changes* to fields of its shape."""
        return transformer(replace(self.shape, **changes), self.name, self.notes)

    def with_software(self, software: Software) -> Transformer:
        """The model with kernels as *software* fuses them, and its loss and products as that computes them."""
        return self.reshaped(software=software)

    def saving(self, rule: Saved) -> Transformer:
        """The model with *rule* for what its activation functions keep. Raises `ScenarioError` for a gated one."""
        mlp = self.shape.mlp
        if rule.bits and mlp.gated:
            raise ScenarioError(
                f"{mlp.activation} multiplies two tensors and keeps both; few bits are for gelu, relu and others"
            )
        return self.reshaped(saved=rule)

    def recomputing(self, rule: Rule) -> Transformer:
        """The model with *rule* for what recomputation by operator runs again. Raises `ScenarioError`."""
        return self.reshaped(again=rule)

    def in_low_precision(self, low: LowPrecision) -> Transformer:
        """The model with *low* for the linear maps of its layers; attention and logits keep their precision.

        Raises `ScenarioError` if their weights are in 4 bits already.
        """
        if self.shape.lora and self.shape.lora.quantisation:
            raise ScenarioError("weights in 4 bits are converted to 16 bits for products; leave out lora.quantised")
        return self.reshaped(low=low)


def transformer(shape: Shape, name: str = "transformer", notes: tuple[str, ...] = ()) -> Transformer:
    """The model of *shape*: an embedding, its layers, a head.

    >>> gpt2 = Shape(12, 768, 1024, 50257, SelfAttention(12, 12), Mlp(3072))
    >>> transformer(gpt2).parameters
    124439808
    """
    cut = shape.cut
    vectors = _trained(shape, embedding_operators(shape), "embedding")
    head = _trained(shape, head_operators(shape), "head")
    layers = [OperatorLayer("embedding", "embedding", vectors, shape.hidden_bytes), *_layers(shape)]
    # a head passes on the loss, one fp32 number
    layers.append(OperatorLayer("head", "head", head, 4.0))
    return Transformer(
        name,
        layers,
        sample_bytes=TOKEN_BYTES * shape.seq_length,
        tokens_per_sample=shape.seq_length,
        precision=shape.precision,
        fused=shape.software.fused,
        tied_parameters=layers[0].tensors[0].count if shape.embedding.tied else 0,
        notes=notes,
        boundary_axis=cut.grid.equal if cut.grid else "" if cut.sequence else cut.over,
        shape=shape,
    )


def _layers(shape: Shape) -> Iterator[OperatorLayer]:
    """The layers between embedding and head."""
    made: dict[int, OperatorLayer] = {}
    for number, operators in enumerate(layers_of_operators(shape, shape.num_layers)):
        name = f"layer {number}"
        if id(operators) not in made:
            early_stop = shape.software.early_stop
            again = reruns(operators, shape.again, early_stop=early_stop) if shape.again else None
            made[id(operators)] = OperatorLayer(name, "transformer", operators, shape.hidden_bytes, reruns=again)
            yield made[id(operators)]
        else:
            yield made[id(operators)].again(name)


def layers_of_operators(shape: Shape, count: int) -> Iterator[tuple[Operator, ...]]:
    """The operators of each of *count* layers: equal, but for their blocks, windows, and experts with their loads."""
    made: dict[tuple[int | None, int, int, bool], tuple[Operator, ...]] = {}
    sparse = 0
    for number in range(count):
        experts, which, blocks = shape.experts, None, shape.blocks_of(number)
        if experts and experts.is_sparse(number) and shape.mlp in blocks:
            which = sparse % len(experts.loads)
            sparse += 1
        windows, layers, own = shape.attention.windows, shape.layers, shape.attention.of_layer(number)
        turn = number % len(windows) if windows else 0
        indexes = bool(own.latent and own.latent.index and own.latent.index.chooses)
        key = which, turn, layers.index(layers[number % len(layers)]) if layers else 0, indexes
        if key not in made:
            made[key] = _trained(shape, transformer_operators(shape, number, which))
        yield made[key]


def _trained(shape: Shape, operators: tuple[Operator, ...], part: str = "layer") -> tuple[Operator, ...]:
    """*operators* of a *part* of the model on a rank, frozen but for adapters if the model has these.

    The tables of a vocabulary are trained where the adapters name their *part*.
    """
    own = of_samples(operators, shape.cut.grid)
    if not shape.lora:
        return own
    whole = part in shape.lora.whole
    return tuple(trained_copy(one) if whole and has_tables(one) else frozen(one) for one in own)


def transformer_operators(whole: Shape, number: int = 0, sparse: int | None = None) -> tuple[Operator, ...]:
    """Layer *number*: its blocks, each with its norm and its residual sum.

    A parallel block has one residual sum, and attention and feed-forward side by side before it. *sparse*: the layer
    has experts in place of an MLP, with the load of that number.
    """
    shape = whole.of_layer(number)
    if shape.block != "serial":
        return _parallel_block(shape)
    before = (norm_operator(shape),) * (shape.causal and shape.norm.placement != "after")
    after = (norm_operator(shape),) * (shape.causal and shape.norm.placement != "before")
    last = (norm_operator(shape),) * (not shape.causal)
    parts = (_block(shape, block, sparse) for block in shape.blocks_of(number))
    if shape.residual_streams > 1:
        taken, given = streams_taken(shape), streams_added(shape)
        return tuple(operator for one in parts for operator in (*taken, *before, *one, *after, given))
    return tuple(operator for one in parts for operator in (*before, *one, *after, residual_sum(shape), *last))


def _block(shape: Shape, block: LayerBlock, sparse: int | None) -> tuple[Operator, ...]:
    """The operators of *block*, between its norm and its residual sum."""
    match block:
        case SelfAttention():
            return attention_operators(shape)
        case Mlp() if sparse is not None and shape.experts:
            return mixture_operators(shape, shape.experts, sparse)
        case Mlp():
            return mlp_operators(shape)
        case _:
            return (*casts(shape, 1), *block.operators(shape.hidden_states))


def embedding_operators(shape: Shape) -> tuple[Operator, ...]:
    """Token, position and type vectors added up; norm and dropout where the model has them."""
    elements, cut = shape.seq_length * shape.hidden_size, shape.cut
    learned = shape.embedding.positions == "learned_absolute"
    positions = (shape.embedding.position_rows or shape.whole_length) * learned
    tables = (shape.vocabulary, positions, shape.embedding.type_rows)
    vectors = embedding(tuple(filter(None, tables)), shape.seq_length, shape.hidden_size, shape.residual_precision)
    if shape.prepared:
        more = BYTES["fp32"] - BYTES[shape.precision]
        vectors = replace(vectors, parameters=tuple(replace(one, copy_bytes=more) for one in vectors.parameters))
    norm = (norm_operator(shape),) if shape.embedding.norm else ()
    drop = (dropout(elements // cut.sequence_shards, shape.residual_precision),) if shape.dropout else ()
    return (vocabulary_parallel_embedding(vectors, cut, shape.sequence_bytes), *norm, *drop)


def _parallel_block(shape: Shape) -> tuple[Operator, ...]:
    columns, attention, output = attention_parts(shape)
    up, feed_forward, down = mlp_parts(shape)
    one, two = casts(shape, 1), casts(shape, 2)
    norm = norm_operator(shape)
    if shape.block == "parallel":
        made = (norm, *two, column_parallel(SharedInput((columns, up)), shape.cut), *attention, *feed_forward)
    else:
        first = (norm, *one, column_parallel(columns, shape.cut), *attention)
        made = (*first, norm, *one, column_parallel(up, shape.cut), *feed_forward)
    return (
        *made,
        second_parallel(SummedOutput((output, down)), shape.cut),
        residual_sum(shape),
    )


CONCATENATION = Operation("concatenation", "elementwise")

_, HEAD = ENDS


@dataclass(frozen=True, kw_only=True)
class NextTokens(Transformer):
    """A transformer with modules that predict further tokens."""

    def reshaped(self, **changes: Any) -> NextTokens:
        """The model with *changes* to fields of its shape."""
        return next_tokens(replace(self.shape, **changes), self.name, self.notes)


def next_tokens(shape: Shape, name: str = "transformer", notes: tuple[str, ...] = ()) -> NextTokens:
    """The model of *shape* with `Shape.num_nextn_predict_layers` modules behind its head.

    >>> from clustersim.workloads.architectures.shape import Embedding, Mlp, Norm, SelfAttention
    >>> parts = SelfAttention(4, 4), Mlp(256), Norm(), Embedding(tied=False)
    >>> small = Shape(2, 64, 32, 512, *parts, num_nextn_predict_layers=1)
    >>> one, none = next_tokens(small), transformer(small)
    >>> one.parameters - none.parameters == none.layers[2].parameters + 2 * 64 * 64 + 3 * 2 * 64
    True
    """
    model = transformer(shape, name, notes)
    layer = model.layers[-2]
    assert isinstance(layer, OperatorLayer)
    operators = (*_joined(shape), *layer.operators, *_shared_head(shape))
    modules = [f"mtp {number}" for number in range(shape.num_nextn_predict_layers)]
    values = {one.name: getattr(model, one.name) for one in fields(model)}
    values["layers"] = [*model.layers, *(OperatorLayer(one, HEAD, operators, 4.0) for one in modules)]
    values["tied_parameters"] = shape.vocabulary * shape.hidden_size
    values["tied_layers"] = ("head", *modules) if shape.embedding.tied else (*modules,)
    return NextTokens(**values)


def _joined(shape: Shape) -> tuple[Operator, ...]:
    """The next token's embedding beside the hidden state, each after a norm, and the product of both."""
    rows, hidden, precision, cut = shape.seq_length, shape.hidden_size, shape.precision, shape.cut
    table = replace(embedding((shape.vocabulary,), rows, hidden, precision), parameters=())
    looked_up = vocabulary_parallel_embedding(table, cut, shape.hidden_bytes * cut.sequence_shards)
    norm = head_operators(shape)[0]
    own = shape.own_rows
    width = BYTES[precision]
    beside = Elementwise(own * 2 * hidden, 2.0 * width, 2.0 * width, precision=precision, operation=CONCATENATION)
    # every rank computes the whole product on its positions
    product = on_the_sequence(Linear(own, 2 * hidden, hidden, bias=False, precision=precision), cut)
    return looked_up, norm, norm, beside, product


def _shared_head(shape: Shape) -> tuple[Operator, ...]:
    """A norm, the logits by the model's matrix, which is not counted again, and the loss."""
    norm, *rest = head_operators(replace(shape, embedding=replace(shape.embedding, tied=True)))
    return norm, *rest
