"""The linear maps of a fine-tuned model: frozen, perhaps in 4 bits, with adapters where they are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulator.errors import ScenarioError
from workloads.adapters.adapted_linear import adapted
from workloads.adapters.lora import Lora
from workloads.adapters.quantisation import quantised
from workloads.operators.linear import Linear
from workloads.operators.sharded import Cut


def with_adapters(
    linear: Linear, lora: Lora | None, sizes: Mapping[str, int], cut: Cut, *, fused: bool, by_rows: bool = False
) -> Linear:
    """*linear*, a product of a layer, as *lora* fine-tunes it; unchanged if that is None.

    *sizes*: its outputs by the name of the target; empty if it is none. *fused*: sums are part of one kernel with what
    they follow. *by_rows*: tensor parallelism cuts it by rows. Raises `ScenarioError` for a cut that is not known.
    """
    if lora is None:
        return linear
    if cut.grid or cut.by_columns:
        raise ScenarioError("lora is known of tp as Megatron-LM cuts layers; give one degree, and no tp_split")
    base = quantised(linear, lora.quantisation) if lora.quantisation else replace(linear, frozen=True)
    adapters = lora.adapters(sizes, apart=bool(linear.splits))
    return adapted(base, adapters, lora.rank, drop=lora.drop, fused=fused, by_rows=by_rows, cut=cut)
