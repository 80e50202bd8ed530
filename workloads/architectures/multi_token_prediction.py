"""Multi-token prediction (MTP): further modules predict the tokens after the next one, for a loss of their own.

DeepSeek-AI 2024, arXiv:2412.19437, section 2.2. Module k joins the hidden state of the module before it with the
embedding of the next token: a norm of each, and a product of both. A layer of the model follows, with a norm of its
own and the model's logits. Embedding and logits are shared with the model. The modules are computed on the stage of the
head (Megatron-LM, core/transformer/multi_token_prediction.py), which then holds a copy of the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from clustersim.simulator.hardware.kernel import BYTES, Operation
from clustersim.workloads.architectures.shape import Shape
from clustersim.workloads.architectures.transformer import Transformer, head_operators, transformer
from clustersim.workloads.operators.elementwise import Elementwise
from clustersim.workloads.operators.embedding import embedding, vocabulary_parallel_embedding
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.model import OperatorLayer
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.sharded import on_the_sequence
from clustersim.workloads.operators.stages import ENDS

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
