"""The training section: batch, precision, optimizer and recomputation of a step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from simulator.document import Count, Fault, Number, Section

Precision = Literal["bf16", "fp16", "fp32"]


MOST_STEPS = 10_000
"""Steps of a simulation at most: without variation they repeat after the first few."""


def _not_endless(steps: int) -> int:
    if steps > MOST_STEPS:
        raise ValueError(
            f"{steps} steps are too many to simulate one by one; the most that is taken is {MOST_STEPS}. They repeat: "
            "training.tokens, or samples, gives the time of a whole run from a few steps"
        )
    return steps


class Training(Section):
    """Batch sizes count samples; *micro_batch_size* is, unless given, the whole share of a replica.

    *gradient_dtype*: in which gradients are accumulated and reduced; default: by software. *tokens* or *samples* are
    those of the whole training run.
    """

    global_batch_size: Count
    micro_batch_size: Count | None = None
    precision: Precision = "fp32"
    gradient_dtype: Precision | None = None
    optimizer: Literal["adam", "momentum", "sgd", "adam8bit"] = "adam"
    recompute: Literal["none", "selective", "full"] = "none"
    tokens: Number | None = None
    samples: Number | None = None
    steps: Annotated[Count, AfterValidator(_not_endless)] = 1

    @model_validator(mode="after")
    def _consistent(self) -> Training:
        if self.tokens is not None and self.samples is not None:
            raise Fault("samples", "give tokens or samples, not both")
        batch, micro = self.global_batch_size, self.micro_batch_size
        if micro is not None and batch % micro:
            raise Fault("global_batch_size", indivisible(batch, micro, f"micro_batch_size {micro}"))
        return self


def indivisible(number: int, divisor: int, name: str) -> str:
    """Return the message that *divisor*, called *name*, does not divide *number*, with the nearest multiples.

    >>> indivisible(100, 32, "32")
    '100 is not a multiple of 32; the nearest are 96 and 128'
    """
    below = number // divisor * divisor
    near = f"the nearest are {below} and {below + divisor}" if below else f"the least is {divisor}"
    return f"{number} is not a multiple of {name}; {near}"
