"""The ends of a model: tables that are looked up (the embedding of tokens and positions, the bias of relative positions
of T5), and the loss over the logits. What is read, written and held of each logit depends on the software.

Raffel et al. 2020, arXiv:1910.10683, section 2.1. Pairs fall into buckets by their distance. The first layer of a
stack holds the table of buckets and looks the bias up once for all layers (huggingface/transformers, modeling_t5.py,
``T5Attention.compute_bias``).

Everything but the logits themselves is in fp32. *width* is the bytes of a logit as the last product writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.elementwise import Elementwise
from clustersim.workloads.operators.operator import Exchange, Operator, ParameterTensor, matrix
from clustersim.workloads.operators.sharded import Cut, ShardedOperator

EMBEDDING = Operation("embedding", "embedding")


def embedding(tables: tuple[int, ...], positions: int, features: int, precision: str) -> Elementwise:
    """The vectors of *tables* (token, position, type: rows of each), added for each of *positions*."""
    elements, width, adds = positions * features, BYTES[precision], len(tables) - 1
    # backward: the dense gradient is set to zero, and each token's row is read, added to and written
    weights = width * (3 + sum(tables) * features / elements)
    return Elementwise(
        elements,
        width * (2 + 3 * adds),
        0.0,
        weights,
        parameters=tuple(matrix(rows, features, hidden=False) for rows in tables),
        launches=(1 + 2 * adds, 1),
        precision=precision,
        operation=EMBEDDING,
    )


def vocabulary_parallel_embedding(lookup: Elementwise, cut: Cut, nbytes: float) -> Operator:
    """A *lookup* where each rank holds some of the words, and adds zeros for the others; its output is *nbytes*.

    With sequence parallelism Megatron-LM scatters the sum at once only if no second table is added to all of it
    (LanguageModelEmbedding, reduce_scatter_embeddings). The gradient is gathered.
    """
    if cut.grid:
        return cut.grid.lookup(lookup)
    if cut.ranks == 1:
        return lookup
    scattered = cut.sequence and len(lookup.tensors) == 1
    summed = Exchange("reduce_scatter" if scattered else "all_reduce", nbytes, cut.over)
    gathered = (("I", Exchange("all_gather", nbytes, cut.over)),) if cut.sequence else ()
    return ShardedOperator(lookup, lookup.tensors, gathered, (("F", summed),))


RELATIVE_BIAS = Operation("relative position bias", "embedding")
BIASED = Operation("bias of scores", "elementwise", "attention")


@dataclass(frozen=True)
class RelativePositionBias(Operator):
    """The bias of *length* x *length* pairs for *heads* heads, from a table of *buckets* rows; one for all samples."""

    length: int
    heads: int
    buckets: int
    precision: str = "fp32"

    @property
    def operation(self) -> Operation:
        """The lookup."""
        return RELATIVE_BIAS

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """The table: a number for each bucket and head."""
        return (matrix(self.buckets, self.heads),)

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """Each number of the bias is read from the table and written."""
        return (memory_bound(2 * self._nbytes, precision=self.precision),)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The gradient of the bias is read and added into the table."""
        return (memory_bound(self._nbytes, precision=self.precision),)

    def kept_bytes(self, samples: int) -> float:
        """The bias, for all layers of the stack."""
        return self._nbytes

    @property
    def _nbytes(self) -> float:
        return float(self.heads * self.length**2 * BYTES[self.precision])


def biased_scores(length: int, heads: int, precision: str) -> Elementwise:
    """The bias added to the scores in place; backward their gradient is read and summed over the samples."""
    width = BYTES[precision]
    return Elementwise(heads * length**2, 2 * width, width, precision=precision, operation=BIASED)


FP32 = 4
"""Bytes of a number of the loss, whatever the precision of the model.

Vocabulary-parallel maxima, sums and predicted logits too (Megatron-LM, vocab_parallel_cross_entropy).
"""


@dataclass(frozen=True, slots=True)
class _PerLogit:
    """Bytes *moved* (read or written) in the forward and the backward pass, and bytes *kept* between them.

    *transient*: bytes held during each pass only; *launches*: kernels over all logits in each.
    """

    moved: tuple[float, float]
    kept: float
    transient: tuple[float, float]
    launches: tuple[int, int]


def _fused(width: int) -> _PerLogit:
    """One kernel a pass: it reads logits and writes fp32 probabilities; it reads these and writes the gradient."""
    return _PerLogit((width + FP32, width + FP32), FP32, (width, width), (1, 1))


def _vocab_parallel(width: int) -> _PerLogit:
    """Megatron-LM's, in place on an fp32 copy (core/tensor_parallel/cross_entropy.py, since mpu/cross_entropy.py).

    Forward: cast, maximum, subtraction, exponential, sum, division; the probabilities are kept. Backward: these are
    multiplied by the gradient of the loss, and cast. Beside them there are the logits, then their gradient.
    """
    casts, copied = _casts(width)
    moved = casts + FP32 + 2 * FP32 + 2 * FP32 + FP32 + 2 * FP32, 2 * FP32 + casts
    beside = width if copied else 0
    return _PerLogit(moved, FP32, (beside, beside), (5 + copied, 1 + copied))


def _eager(width: int) -> _PerLogit:
    """torch.nn.functional.cross_entropy of logits that are cast to fp32, 14 bytes a logit in 16 bits at the most.

    Autograd saves the output of the log-softmax, and the training loop refers to the logits (as nanoGPT's and
    Composer's do). Forward: cast,
    log-softmax, and a gather of one logit a row. Backward: the gradient of the log-softmax is filled with zeros and a
    number a row; that of the fp32 logits is made of it and the saved output, and cast. Wijmans et al. 2024
    (arXiv:2411.09009, abstract) report 28 GB, for 8,192 tokens and 256,000 classes: 13.4 bytes a logit.
    """
    casts, copied = _casts(width)
    moved = casts + 2 * FP32, FP32 + 3 * FP32 + casts
    return _PerLogit(moved, width + FP32, (FP32 * copied, 2 * FP32), (2 + copied, 3 + copied))


def _plain(width: int) -> _PerLogit:
    """As `_eager`, but of the logits as they are: torch's cross_entropy of 16-bit logits where nothing casts them."""
    return _PerLogit((2 * width, 4 * width), 2 * width, (0, 2 * width), (2, 3))


def _shifted(width: int) -> _PerLogit:
    """Hugging Face's: eager, of a copy of fp32 logits without the last position (Transformers 4.36, modeling_llama.py).

    Logits, copy and the output of the log-softmax are 12 bytes a logit. ``LlamaForCausalLM`` returns the logits, but
    ``Trainer.compute_loss`` drops them before the backward pass, which needs the last only (transformers/trainer.py).
    Backward the gradient of the copy is written into zeros of the whole, after that of the log-softmax and before the
    cast: 12 bytes again, as measured (published/h200_finetuning: 12.0 for 151,936 classes).
    """
    eager = _eager(width)
    moved = eager.moved[0] + 2 * FP32, eager.moved[1] + 3 * FP32
    forward, backward = eager.launches
    return _PerLogit(moved, FP32, (2 * FP32, 2 * FP32), (forward + 1, backward + 2))


def _with_metrics(width: int) -> _PerLogit:
    """flash-attention's loss and two metrics of the training loop, each of which computes the loss without gradients.

    The loss reads the logits, and keeps them with a number a row; backward it reads them and writes their gradient
    (flash_attn/losses/cross_entropy.py). After the backward pass, when activations are free, Composer updates the
    LanguageCrossEntropy and LanguagePerplexity that llm-foundry adds (trainer/trainer.py, ``_eval_train_metrics``):
    under autocast logits are cast to fp32, of which a log-softmax is made.
    """
    casts, copied = _casts(width)
    metrics = 2 * (casts + 2 * FP32)
    return _PerLogit((width, 2 * width + metrics), width, (0, width), (1, 1 + 2 * (1 + copied)))


def _recomputed(width: int) -> _PerLogit:
    """TorchInductor's, where model and loss are one graph: the backward kernel computes the log-softmax again.

    The forward kernel keeps the maximum and the sum of exponentials of each row (torch/_inductor/lowering.py,
    ``prepare_softmax_online``), the backward one reads the logits and writes their gradient: pointwise operators run
    again where they are fused into their reader (torch/_functorch/partitioners.py,
    ``min_cut_rematerialization_partition``). On an H100 (torch 2.11; 32,768 x 50,304 logits in bf16) they take 2.2 and
    2.4 ms: the first as long as two readings, and neither writes fp32. GPT-2 holds 20.0 GB at the most
    (published/h100_one_gpu): beside what else is counted, 4.3 bytes a logit.
    """
    return _PerLogit((2 * width, 2 * width), width, (0, width), (1, 1))


def _in_place(width: int) -> _PerLogit:
    """llm.c's: one kernel of the forward pass reads the logits twice and overwrites them with their gradient.

    The first reading sums the exponentials (karpathy/llm.c, llmc/fused_classifier.cuh, prepare_softmax_blockwide3), the
    second computes the gradient of each logit; the backward pass has nothing more to do.
    """
    return _PerLogit((3 * width, 0), width, (0, 0), (1, 0))


CHUNKS = 8
"""Chunks of the sequence: torchtune, modules/loss, ``CEWithChunkedOutputLoss(num_output_chunks=8)``."""


def _chunked(width: int) -> _PerLogit:
    """torchtune's: a chunk of the sequence at a time, cast and loss compiled together (``CEWithChunkedOutputLoss``).

    The compiled kernel reads the logits, which autograd keeps; backward it reads them again and writes their gradient.
    The recipes drop the logits, so that a chunk of them is freed when its gradient is there. Autograd runs the losses
    of all chunks before the first product, which came before them.
    """
    return _PerLogit((width, 2 * width), width, (0, width / CHUNKS), (CHUNKS, CHUNKS))


def _casts(width: int) -> tuple[int, int]:
    """Bytes moved by a cast to or from fp32, and the number of such kernels: none for fp32 logits."""
    return (width + FP32, 1) if width < FP32 else (0, 0)


_LOSSES: Mapping[str, Callable[[int], _PerLogit]] = {
    "fused": _fused,
    "vocab_parallel": _vocab_parallel,
    "eager": _eager,
    "plain": _plain,
    "shifted": _shifted,
    "with_metrics": _with_metrics,
    "chunked": _chunked,
    "recomputed": _recomputed,
    "in_place": _in_place,
}

CROSS_ENTROPY = Operation("cross-entropy", "loss")

LOSSES = tuple(_LOSSES)
"""The ways to compute the loss."""


def cross_entropy(rows: int, classes: int, precision: str, how: str = "fused") -> Elementwise:
    """The loss over *classes* logits a row; *how* is one of `LOSSES`."""
    each = _LOSSES[how](BYTES[precision])
    return Elementwise(
        rows * classes,
        *each.moved,
        kept=each.kept,
        transient=each.transient,
        launches=each.launches,
        precision=precision,
        operation=CROSS_ENTROPY,
    )


def vocabulary_parallel_loss(loss: Operator, cut: Cut, rows: int) -> Operator:
    """A loss where each rank has some of the logits of *rows* rows.

    The maximum, the predicted logit and the sum of exponentials of each row are all-reduced.
    """
    if cut.ranks == 1:
        return loss
    each = ("F", Exchange("all_reduce", float(FP32 * rows), cut.over))
    return ShardedOperator(loss, loss.tensors, after=(each,) * 3)
