"""The training section: batch, optimizer, activations, and number formats, also by operator (`training.precision`)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Tag, model_validator

from clustersim.scenarios.specification.memory_saving import AnyRecompute, Offload, Recompute
from clustersim.simulator.reading.quantities import Count, Flag, Quantity, Section
from clustersim.simulator.reading.validation import Fault
from clustersim.workloads.memory.optimizer import Optimizer

if TYPE_CHECKING:
    from clustersim.simulator.hardware.accelerator import Software
    from clustersim.workloads.operators.elementwise import Saved
    from clustersim.workloads.operators.low_precision import LowPrecision

Precision = Literal["bf16", "fp16", "fp32"]
"""Of what is stored and exchanged."""

Word = Literal["bf16", "fp16", "tf32", "fp32"]
"""One format for all; tf32 is that of products only, and all else is fp32."""

OPERATORS = "fp8", "fp4", "int8"
"""Formats of products only."""


def _word(value: Any) -> Any:
    if value in OPERATORS:
        raise ValueError(
            f'must be bf16, fp16, tf32 or fp32, or by operator: {{matmul: {value}, rest: bf16}}, not "{value}"'
        )
    return value


RECIPES_OF: Mapping[str, tuple[str, ...]] = {
    "fp8": ("tensorwise", "delayed", "rowwise", "blockwise", "mxfp8"),
    "fp4": ("nvfp4",),
    "int8": ("channelwise",),
}
"""Recipes by number format of the products."""


class PrecisionByOperator(Section):
    """Products of the layers' linear maps in 8 or 4 bits; attention, embedding, logits and all else in 16 bits."""

    matmul: Literal["fp8", "fp4", "int8"]
    """Number format of the products of linear maps: fp8, fp4 or int8. Required."""
    rest: Literal["bf16", "fp16"] = "bf16"
    """Number format of everything else."""
    recipe: Literal["tensorwise", "delayed", "rowwise", "blockwise", "mxfp8", "nvfp4", "channelwise"] | None = None
    """How operands are scaled. fp8: tensorwise (by the largest magnitude of each tensor; the default), delayed (by that
    of steps before), rowwise (of each row), blockwise (of 128 elements: DeepSeek-V3), mxfp8 (of 32: Blackwell). fp4:
    nvfp4 (of 16). int8: channelwise (of each row: AQT in MaxText, torchao)."""
    parameters: Literal["bf16", "fp16", "fp8"] | None = None
    """Format in which parameters are gathered by sharded data parallelism: that of rest (the default) or fp8, in which
    Transformer Engine also stores them."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        known = RECIPES_OF[self.matmul]
        if self.recipe is not None and self.recipe not in known:
            good = f"{', '.join(known[:-1])} or {known[-1]}" if len(known) > 1 else known[0]
            raise Fault("recipe", f"must be {good} for matmul: {self.matmul}, not {self.recipe}")
        if self.parameters == "fp8" and self.matmul != "fp8":
            raise Fault("parameters", f"must be that of rest: products in {self.matmul} have no parameters in fp8")
        if self.parameters == "fp8" and self.recipe == "rowwise":
            raise Fault(
                "parameters",
                "must be that of rest: parameters are gathered in fp8 with one scale a tensor, not rowwise",
            )
        if self.parameters not in (None, "fp8", self.rest):
            raise Fault("parameters", f"must be {self.rest}, as rest, or fp8, not {self.parameters}")
        return self

    def low(self, *, transposes: bool, keeps_casts: bool, micro_batches: int) -> "LowPrecision":
        """Return what linear maps need.

        *transposes*: the GPU takes operands of 8 bits in one layout only. *keeps_casts*: the software casts weights
        once in a step of *micro_batches*, and keeps them.
        """
        from clustersim.workloads.operators.low_precision import LowPrecision

        return LowPrecision(
            self.scaling,
            transposes=transposes,
            stored=self.parameters == "fp8",
            keeps_casts=keeps_casts,
            weight_casts=1.0 / micro_batches if keeps_casts else 1.0,
        )

    def __str__(self) -> str:
        """In a title."""
        return f"{self.rest} with products in {self.matmul} ({self.scaling})"

    @property
    def scaling(self) -> str:
        """The recipe, by default that of the format."""
        from clustersim.workloads.operators.low_precision import DEFAULT_RECIPES

        return self.recipe or DEFAULT_RECIPES[self.matmul]


AnyPrecision = Annotated[
    Annotated[Word, BeforeValidator(_word), Tag("word")] | Annotated[PrecisionByOperator, Tag("by operator")],
    Discriminator(lambda value: "by operator" if isinstance(value, dict | PrecisionByOperator) else "word"),
]
"""One format for all, or formats by operator."""

MOST_STEPS = 10_000
"""Steps of a simulation at most: without variation they repeat after the first few."""


def _not_endless(steps: int) -> int:
    if steps > MOST_STEPS:
        raise ValueError(
            f"{steps} steps are too many to simulate one by one; the most that is taken is {MOST_STEPS}. They repeat: "
            "training.tokens, or samples, gives the time of a whole run from a few steps"
        )
    return steps


def _some(size: float) -> float:
    if not size:
        raise ValueError("must be above 0, not 0")
    return size


MOST_BITS = 8
"""More bits than this save nothing over 16: the paper has 1 to 4 (arXiv:2202.00441, table 1)."""


class ActivationFunction(Section):
    """What activation functions of feed-forward networks keep for the backward pass; by default input and output."""

    bits: Count | None = None
    """Bits of each element of the input, 1 to 8, in place of all of it: few-bit backward pass of gelu or relu."""
    recompute: Flag = False
    """The output is not kept but computed again, as by Megatron-LM's --recompute-modules moe_act."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.bits is not None and self.bits > MOST_BITS:
            raise Fault("bits", f"must be 1 to {MOST_BITS}, not {self.bits}")
        if self.bits is not None and self.recompute:
            raise Fault("recompute", "needs the input, of which bits keeps a part only; give one of them")
        return self

    @property
    def saved(self) -> "Saved":
        """The rule."""
        from clustersim.workloads.operators.elementwise import Saved

        return Saved(self.bits or 0, self.recompute)


class Training(Section):
    """How the model is trained. Batch sizes count samples."""

    global_batch_size: Count
    """Samples of one optimizer step, over all replicas. Required."""
    micro_batch_size: Count | None = None
    """Samples of one micro-batch; by default the whole share of a replica, so that there is one micro-batch."""
    precision: AnyPrecision = "fp32"
    """Number format of the computation; bf16 and fp16 keep fp32 master weights unless master_weights is false; tf32 is
    fp32 with products on tensor cores (torch.backends.cuda.matmul.allow_tf32). By operator: {matmul: fp8}."""
    master_weights: Flag = True
    """Beside weights of 16 bits fp32 ones are kept and updated; false: a model that is cast is trained as it is,
    gradients and optimizer states in its 16 bits too (bf16-true of Lightning, dtype: bf16 of torchtune)."""
    gradient_dtype: Precision | None = None
    """Number format in which gradients are accumulated and reduced; by default that of the method and the software."""
    optimizer: Literal[
        "adam", "momentum", "sgd", "adam8bit", "lars", "lamb", "adafactor", "adafactor_momentum", "muon"
    ] = "adam"
    """Optimizer; it decides the bytes of the optimizer states and the time of the update. adafactor: second moments of
    rows and columns only, adafactor_momentum: and a first moment; muon: of hidden matrices, and Adam for the rest; lars
    and lamb: momentum and Adam for large batches, with two norms of each tensor."""
    optimizer_dtype: Precision | None = None
    """Number format of the optimizer states, by default that of the weights that are updated; master weights stay
    fp32."""
    recompute: AnyRecompute = "none"
    """Activations that are computed again in the backward pass: none, those of the attention (selective), all of each
    layer (full), or the fastest choice within the memory (optimal). With options: {method: uniform, num_layers: 2}, or
    by operator: {method: operators, operators: [norm, swiglu]}."""
    activation_function: ActivationFunction | None = None
    """What activation functions of feed-forward networks keep; by default their inputs and outputs."""
    saved_precision: Literal["model", "fp8"] = "model"
    """In which experts keep the inputs of their products and activation functions for the backward pass: that of the
    model, or fp8 with a scale for each 128 features."""
    offload: Offload | None = None
    """What leaves the GPU's memory: activations, optimizer states, gradients, parameters; by default nothing."""
    tokens: Quantity | None = None
    """Tokens of the whole training run, e.g. 300e9 or 300B; gives days, GPU-hours and cost. In place of samples."""
    samples: Quantity | None = None
    """Samples of the whole training run, e.g. 1.28M; gives days, GPU-hours and cost. In place of tokens."""
    critical_batch_size: Annotated[Quantity, AfterValidator(_some)] | None = None
    """Gradient noise scale in tokens (samples of a model without tokens): beyond it a bigger batch needs more data for
    the same loss; gives days to that loss."""
    steps: Annotated[Count, AfterValidator(_not_endless)] = 1
    """Optimizer steps that are simulated."""

    @property
    def update_rule(self) -> Optimizer:
        """The optimizer and the number format of its states."""
        updated = "fp32" if self.master_weights else self.base_precision
        return Optimizer(self.optimizer, self.optimizer_dtype or updated, self.master_weights)

    def updated_by(self, software: "Software") -> Optimizer:
        """The same under *software*, which may update weights in 16 bits themselves."""
        rule = self.update_rule
        if software.master_weights:
            return rule
        return replace(rule, dtype=self.optimizer_dtype or self.base_precision, master=False)

    @property
    def base_precision(self) -> Precision:
        """The number format of all but products in tf32, 8 or 4 bits."""
        if isinstance(self.precision, PrecisionByOperator):
            return self.precision.rest
        return "fp32" if self.precision == "tf32" else self.precision

    @property
    def product_precision(self) -> Word:
        """The number format of products before those of linear maps are cast to 8 or 4 bits."""
        return "tf32" if self.precision == "tf32" else self.base_precision

    @property
    def recompute_method(self) -> str:
        """How activations are computed again: the method, whether a word or a section gives it."""
        return self.recompute.method if isinstance(self.recompute, Recompute) else self.recompute

    @property
    def recompute_options(self) -> Recompute:
        """The section, or that of the word."""
        return self.recompute if isinstance(self.recompute, Recompute) else Recompute(method=self.recompute)

    @property
    def saved(self) -> "Saved":
        """What activation functions and experts keep."""
        from clustersim.workloads.operators.elementwise import Saved

        own = self.activation_function.saved if self.activation_function is not None else Saved()
        again = own.recompute or "swiglu" in (self.recompute_options.operators or ())
        return replace(own, recompute=again, experts_fp8=self.saved_precision == "fp8")

    @property
    def plans_activations(self) -> bool:
        """True if a programme decides which activations stay, are computed again or are copied to the host."""
        return self.recompute_method == "optimal" or (self.offload is not None and self.offload.planned)

    @property
    def planned_by(self) -> str:
        """The key and the word that ask for a plan, for messages."""
        if self.recompute_method == "optimal" or self.offload is None:
            return "recompute: optimal"
        return f"activations: {self.offload.activations}"

    @property
    def activation_budget(self) -> float | None:
        """Bytes of activations that a plan may hold on each GPU; None: what the GPU has left."""
        own = self.offload.budget if self.offload is not None else None
        given = own if own is not None else self.recompute_options.budget
        return None if given == "auto" else given

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.offload is not None and self.offload.planned:
            word, method = self.offload.activations, self.recompute_method
            if method not in ("none", "optimal"):
                why = f"{word} decides itself what is computed again, but recompute is {method}"
                instead = "leave recompute out" if word == "karma" else "take recompute: optimal"
                raise Fault(("offload", "activations"), f"{why}; {instead}, or take activations: all")
            if method == "optimal" and self.offload.budget is not None:
                raise Fault(("offload", "budget"), "the budget of recompute: optimal stands there; drop this one")
            if word == "karma" and method == "optimal":
                why = "karma computes layers again by rules of its own; leave recompute out, or take activations: auto"
                raise Fault(("offload", "activations"), why)
        if self.tokens is not None and self.samples is not None:
            raise Fault("samples", "give tokens or samples, not both")
        if self.optimizer_dtype not in (None, "fp32") and self.optimizer in ("adam8bit", "sgd"):
            why = "has states of 8 bits" if self.optimizer == "adam8bit" else "has no states"
            raise Fault("optimizer_dtype", f"{self.optimizer_dtype} is not for {self.optimizer}, which {why}")
        self._check_master_weights()
        batch, micro = self.global_batch_size, self.micro_batch_size
        if micro is not None and batch % micro:
            raise Fault("global_batch_size", indivisible(batch, micro, f"micro_batch_size {micro}"))
        return self

    def _check_master_weights(self) -> None:
        """Raise `Fault` where weights cannot be updated as they are."""
        if self.master_weights:
            return
        if self.base_precision == "fp32":
            raise Fault("master_weights", "false is for a model in bf16 or fp16; one in fp32 is updated as it is")
        if isinstance(self.precision, PrecisionByOperator) and self.precision.parameters == "fp8":
            raise Fault("master_weights", "must be true: weights that are stored in fp8 are not updated in it")
        if self.offload is not None and self.offload.states:
            raise Fault("master_weights", "must be true: states that are offloaded are updated in fp32")


def indivisible(number: int, divisor: int, name: str) -> str:
    """Return the message that *divisor*, called *name*, does not divide *number*, with the nearest multiples.

    >>> indivisible(100, 32, "32")
    '100 is not a multiple of 32; the nearest are 96 and 128'
    """
    below = number // divisor * divisor
    near = f"the nearest are {below} and {below + divisor}" if below else f"the least is {divisor}"
    return f"{number} is not a multiple of {name}; {near}"
