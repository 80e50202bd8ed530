"""The section `lora` of a model: fine-tuning by adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from clustersim.simulator.reading.quantities import Count, Flag, Quantity, Section, number
from clustersim.simulator.reading.validation import Fault, listed

if TYPE_CHECKING:
    from clustersim.workloads.operators.lora import Lora

Target = Literal["qkv", "query", "key", "value", "projection", "gate", "up", "down"]


def _word(value: Any) -> Any:
    if isinstance(value, str) and value != "all":
        raise ValueError(f'must be all, or a list of {listed(get_args(Target))}, not "{value}"')
    return value


Targets = Annotated[Literal["all"] | Annotated[list[Target], Field(min_length=1)], BeforeValidator(_word)]


PAPER: Targets = ["query", "value"]
"""Hu et al. 2021, arXiv:2106.09685, section 7.1."""


class LoraKeys(Section):
    """Low-rank adapters beside a frozen model (LoRA), whose weights may be in 4 bits (QLoRA)."""

    rank: Count = 8
    """Rank of the adapters; 8 by default, as in PEFT and torchtune."""
    alpha: Quantity | None = None
    """Scale of the adapters, which changes neither time nor memory."""
    targets: Targets = Field(default_factory=lambda: PAPER)
    """Linear maps with an adapter: qkv (one adapter if the model holds it in one tensor, as GPT-2 does), query, key,
    value, projection, gate, up, down, or all. By default query and value, as in the paper."""
    dropout: Annotated[float, BeforeValidator(number(0.0, 1.0))] = 0.0
    """Probability of dropout before an adapter, 0 to 1; above 0 its kernels and masks count."""
    quantised: Literal["nf4", "fp4"] | None = None
    """Format of the frozen weights of the layers; by default that of the model. nf4: QLoRA."""
    double_quantisation: Flag = True
    """The scales of quantised weights are quantised too, as in QLoRA."""

    def lora(self) -> Lora:
        """The adapters."""
        from clustersim.workloads.operators.lora import EVERY, Lora, Quantisation

        targets = EVERY if self.targets == "all" else tuple(self.targets)
        quantisation = Quantisation(self.double_quantisation) if self.quantised else None
        return Lora(self.rank, targets, bool(self.dropout), quantisation)

    def check_experts(self) -> None:
        """Raise `Fault` for what experts do not have: adapters, and weights in 4 bits."""
        if self.targets == "all" or {"gate", "up", "down"} & {*self.targets}:
            given = self.targets if self.targets == "all" else ", ".join(self.targets)
            raise Fault(
                ("lora", "targets"), f"{given}: experts have no adapters; take qkv, query, key, value, projection"
            )
        if self.quantised:
            raise Fault(("lora", "quantised"), f"{self.quantised} is not modelled with experts; leave it out")

    def check(self, *, gated: bool, hidden_size: int) -> None:
        """Raise `Fault` for a target that the model does not have, and for a rank that is too large."""
        if "gate" in self.targets and self.targets != "all" and not gated:
            raise Fault(("lora", "targets"), "gate belongs to an activation with two products, such as swiglu")
        if self.rank > hidden_size:
            raise Fault(("lora", "rank"), f"{self.rank} is more than the hidden_size of {hidden_size}")
        if not self.double_quantisation and self.quantised is None:
            raise Fault(("lora", "double_quantisation"), "belongs to quantised weights; give quantised: nf4 too")
