"""The loss over the logits of a model: what is read, written and held of each logit depends on the software.

Everything but the logits themselves is in fp32. *width* is the bytes of a logit as the last product writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clustersim.simulator.hardware.kernel import BYTES, Operation
from clustersim.workloads.operators.elementwise import Elementwise
from clustersim.workloads.operators.operator import Exchange, Operator
from clustersim.workloads.operators.sharded import Cut, ShardedOperator

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


CHUNKS = 8
"""Chunks of the sequence: torchtune, modules/loss, ``CEWithChunkedOutputLoss(num_output_chunks=8)``."""


def _chunked(width: int) -> _PerLogit:
    """torchtune's: a chunk of the sequence at a time, cast and loss compiled together (``CEWithChunkedOutputLoss``).

    The compiled kernel reads the logits, which autograd keeps; backward it reads them again and writes their gradient.
    """
    return _PerLogit((width, 2 * width), width, (0, width), (CHUNKS, CHUNKS))


def _casts(width: int) -> tuple[int, int]:
    """Bytes moved by a cast to or from fp32, and the number of such kernels: none for fp32 logits."""
    return (width + FP32, 1) if width < FP32 else (0, 0)


_LOSSES: Mapping[str, Callable[[int], _PerLogit]] = {
    "fused": _fused,
    "vocab_parallel": _vocab_parallel,
    "eager": _eager,
    "shifted": _shifted,
    "with_metrics": _with_metrics,
    "chunked": _chunked,
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
