"""Number formats by operator: `training.precision` as a mapping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Tag, model_validator

from simulator.document import Fault, Section

if TYPE_CHECKING:
    from workloads.low_precision.recipe import LowPrecision

Precision = Literal["bf16", "fp16", "fp32"]
"""Of what is stored and exchanged."""

Word = Literal["bf16", "fp16", "tf32", "fp32"]
"""One format for all; tf32 is that of products only, and all else is fp32."""

OPERATORS = "fp8", "fp4"
"""Formats of products only."""


def _word(value: Any) -> Any:
    if value in OPERATORS:
        raise ValueError(
            f'must be bf16, fp16, tf32 or fp32, or by operator: {{matmul: {value}, rest: bf16}}, not "{value}"'
        )
    return value


class PrecisionByOperator(Section):
    """Products of the layers' linear maps in 8 or 4 bits; attention, embedding, logits and all else in 16 bits."""

    matmul: Literal["fp8", "fp4"]
    """Number format of the products of linear maps: fp8 or fp4. Required."""
    rest: Literal["bf16", "fp16"] = "bf16"
    """Number format of everything else."""
    recipe: Literal["tensorwise", "delayed", "rowwise", "blockwise", "mxfp8", "nvfp4"] | None = None
    """How operands are scaled. fp8: tensorwise (by the largest magnitude of each tensor; the default), delayed (by that
    of steps before), rowwise (of each row), blockwise (of 128 elements: DeepSeek-V3), mxfp8 (of 32: Blackwell). fp4:
    nvfp4 (of 16)."""
    parameters: Literal["bf16", "fp16", "fp8"] | None = None
    """Format in which parameters are gathered by sharded data parallelism: that of rest (the default) or fp8, in which
    Transformer Engine also stores them."""

    @model_validator(mode="after")
    def _consistent(self) -> PrecisionByOperator:
        if self.recipe is not None and (self.recipe == "nvfp4") != (self.matmul == "fp4"):
            good = "nvfp4" if self.matmul == "fp4" else "tensorwise, delayed, rowwise, blockwise or mxfp8"
            raise Fault("recipe", f"must be {good} for matmul: {self.matmul}, not {self.recipe}")
        if self.parameters == "fp8" and self.matmul == "fp4":
            raise Fault("parameters", "must be that of rest: products in fp4 have no parameters in fp8")
        if self.parameters == "fp8" and self.recipe == "rowwise":
            raise Fault(
                "parameters",
                "must be that of rest: parameters are gathered in fp8 with one scale a tensor, not rowwise",
            )
        if self.parameters not in (None, "fp8", self.rest):
            raise Fault("parameters", f"must be {self.rest}, as rest, or fp8, not {self.parameters}")
        return self

    def low(self, *, transposes: bool, keeps_casts: bool, micro_batches: int) -> LowPrecision:
        """Return what linear maps need.

        *transposes*: the GPU takes operands of 8 bits in one layout only. *keeps_casts*: the software casts weights
        once in a step of *micro_batches*, and keeps them.
        """
        from workloads.low_precision.recipe import LowPrecision

        return LowPrecision(
            self.recipe or ("nvfp4" if self.matmul == "fp4" else "tensorwise"),
            transposes=transposes,
            stored=self.parameters == "fp8",
            keeps_casts=keeps_casts,
            weight_casts=1.0 / micro_batches if keeps_casts else 1.0,
        )

    def __str__(self) -> str:
        """In a title."""
        recipe = self.recipe or ("nvfp4" if self.matmul == "fp4" else "tensorwise")
        return f"{self.rest} with products in {self.matmul} ({recipe})"


AnyPrecision = Annotated[
    Annotated[Word, BeforeValidator(_word), Tag("word")] | Annotated[PrecisionByOperator, Tag("by operator")],
    Discriminator(lambda value: "by operator" if isinstance(value, dict | PrecisionByOperator) else "word"),
]
"""One format for all, or formats by operator."""
