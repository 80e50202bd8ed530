"""A software stack is a file of `workloads/software`: what launching a kernel costs, and whether kernels are fused."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from simulator.accelerator import Software
from simulator.document import (
    Amount,
    Count,
    Document,
    Fault,
    Flag,
    Index,
    Ratio,
    Section,
    Time,
    merged,
    part,
    read,
    validated,
)
from simulator.document.quantities import number
from simulator.lookup import UnknownName, data_file
from workloads.operators.fusion import FUSIBLE, Fused, Fusible

FRAGMENTATION = 0.15
"""What stitching the blocks of PyTorch's caching allocator saves of its memory, the mean of eight language models on
A100; up to 0.33 (Guo et al. 2024, "GMLake", arXiv:2401.08156, abstract)."""


OWN = ("name", "description", "source")
"""Keys of a stack that those built on it do not take over."""


class SoftwareSpecification(Section):
    """The keys of such a file.

    *preset*: a stack whose values the keys of this one override; *launch*: host time per kernel; *fused*: true, false
    or a list of operators.
    *sharpness*: of the smooth maximum of host time and GPU time.
    *torch_compile*: TorchInductor fuses pointwise operators, norms, softmax and loss into a kernel each; the kernels of
    matrix products and of fused attention stay (Ansel et al. 2024, "PyTorch 2", ASPLOS, section 4), and unaligned
    products are padded (torch/_inductor/config.py, shape_padding).
    *operators*: those that a step launches for each parameter tensor, one by one; *tensor*: further host time for
    each tensor; *load*: host time of each step for loading data and logging; *message_operators*: those that the
    host launches after each message of a pipeline; *exchange*: further time lost with each message; *context*:
    memory of the GPU; *slice*: time for each rank's slice of each tensor of a list that ZeRO-3 communicates;
    *flash_forward*, *flash_backward*: speed of fused attention over the first FlashAttention; the other keys are
    habits, as `Software` has them.
    """

    preset: str | None = None
    name: str
    description: str = ""
    source: str
    launch: Time
    fused: Flag | list[Fusible] | None = None
    torch_compile: Flag = False
    sharpness: Ratio = Software().sharpness
    operators: Index = 0
    tensor: Time = 0.0
    load: Time = 0.0
    message_operators: Index = 0
    exchange: Time = 0.0
    context: Amount = 0.0
    fragmentation: Annotated[float, BeforeValidator(number(0.0, 0.9))] = FRAGMENTATION
    async_tensor: Flag = False
    unfused_update: Flag = False
    flat_update: Flag = False
    softmax_group: Count = 1
    wide_softmax: Flag = False
    slice: Time = 0.0
    flash_forward: Ratio = 1.0
    flash_backward: Ratio = 1.0
    gather_ahead: Flag = False
    fp32_gradients: list[Literal["bf16", "fp16"]] = Field(default_factory=list)
    gradient_buffers: Literal["copies", "two", "half", "none", "averaged"] = "copies"
    scatter_gather: Flag = False
    cross_entropy: Literal["", "fused", "vocab_parallel", "eager", "with_metrics", "chunked"] = ""
    gather_logits: Flag = False
    keep_gathered: Flag = False
    separate_gate: Flag = False
    fp32_residual: Flag = False
    padded: Flag = False
    cudnn_attention: Flag = False
    communication_sms: Index = 0
    early_stop: Flag = False
    keeps_casts: Flag = True
    accumulation: Literal["fused", "added", "cast", "autocast"] = "fused"
    zero_gradients: Literal["reduce_scatter", "all_reduce"] = "reduce_scatter"
    zero_parameters: Literal["all_gather", "broadcast"] = "all_gather"

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.fused is None and not self.torch_compile:
            raise Fault("fused", "is missing; true, false or a list of operators, or torch_compile: true, which fuses")
        if self.fused not in (None, True) and self.torch_compile:
            given = "false" if self.fused is False else "a list"
            raise Fault("fused", f"{given} contradicts torch_compile: true, which fuses elementwise kernels")
        return self

    @property
    def _fused(self) -> Fused:
        if isinstance(self.fused, list):
            return frozenset(self.fused)
        # torch runs ring attention outside of the compiled graph (torch, distributed/tensor/experimental/_attention.py)
        return frozenset(FUSIBLE) - {"block_sum"} if self.torch_compile else bool(self.fused)

    def build(self) -> Software:
        """The parameter set that an accelerator takes."""
        return Software(
            self.name,
            self.launch,
            self._fused,
            self.sharpness,
            tensor_operators=self.operators,
            tensor_seconds=self.tensor,
            load_seconds=self.load,
            message_operators=self.message_operators,
            exchange_seconds=self.exchange,
            context_bytes=self.context,
            fragmentation=self.fragmentation,
            async_tensor=self.async_tensor,
            unfused_update=self.unfused_update,
            flat_update=self.flat_update,
            slice_seconds=self.slice,
            flash_forward=self.flash_forward,
            flash_backward=self.flash_backward,
            gather_ahead=self.gather_ahead,
            softmax_group=self.softmax_group,
            wide_softmax=self.wide_softmax,
            fp32_gradients=tuple(self.fp32_gradients),
            gradient_buffers=self.gradient_buffers,
            scatter_gather=self.scatter_gather,
            cross_entropy=self.cross_entropy,
            gather_logits=self.gather_logits,
            keep_gathered=self.keep_gathered,
            separate_gate=self.separate_gate,
            fp32_residual=self.fp32_residual,
            padded=self.padded or self.torch_compile,
            cudnn_attention=self.cudnn_attention,
            communication_sms=self.communication_sms,
            early_stop=self.early_stop,
            keeps_casts=self.keeps_casts,
            accumulation=self.accumulation,
            zero_gradients=self.zero_gradients,
            zero_parameters=self.zero_parameters,
        )


def software(name: str) -> Software:
    """The stack *name*, or a dotted name of the user's own. Raises `SimulatorError` for one that there is not.

    >>> software("ideal").launch_seconds
    0.0
    """
    return specification(name).build()


def specification(name: str) -> SoftwareSpecification:
    """The file of the stack *name*. Raises `SimulatorError`."""
    path = data_file("workloads.software", name)
    return _read(str(path), path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _read(path: str, changed: int) -> SoftwareSpecification:
    return validated(_described(path), SoftwareSpecification)


def _described(path: str) -> Document:
    """The file at *path*, or its section ``software`` if it is a calibration file, with the values of its preset."""
    entry = part(read(path), "software")
    below = entry.data.get("preset")
    if not isinstance(below, str):
        return entry
    try:
        base = _described(str(data_file("workloads.software", below)))
    except UnknownName as error:
        raise entry.error(("preset",), str(error)) from None
    return merged(Document({key: value for key, value in base.data.items() if key not in OWN}), entry)
