"""A frozen linear map with adapters: FLOPs and kept bytes are those of torch, which is watched on the CPU."""

import pytest

from clustersim.workloads.operators.attentions.core_attention import FlashAttention
from clustersim.workloads.operators.frozen_weights import Quantisation
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.lora import Lora, with_adapters
from clustersim.workloads.operators.sharded import WHOLE

ROWS, INPUTS, SIZES, RANK = 24, 32, {"query": 48, "key": 16, "value": 16}, 4


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="what autograd computes and keeps is asked of torch itself")


def adapted(lora):
    linear = Linear(ROWS, INPUTS, sum(SIZES.values()), bias=False, splits=tuple(SIZES.values()))
    return with_adapters(linear, lora, SIZES, WHOLE, fused=False)


def run(torch, targets, dropout):
    """Return (FLOPs forward, FLOPs backward, saved bytes) of the products of *SIZES*, PEFT's way; weights not saved."""
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.randn(ROWS, INPUTS, requires_grad=True)
    frozen = {name: torch.randn(size, INPUTS) for name, size in SIZES.items()}
    trained = {
        name: (torch.randn(RANK, INPUTS, requires_grad=True), torch.randn(SIZES[name], RANK, requires_grad=True))
        for name in targets
    }
    weights = {t.data_ptr() for t in (*frozen.values(), *(t for pair in trained.values() for t in pair))}
    saved = {}

    def pack(t):
        if t.data_ptr() not in weights:
            saved.setdefault(t.data_ptr(), t.numel() * t.element_size())
        return t

    def forward():
        outputs = []
        for name, weight in frozen.items():
            y = x @ weight.T
            if name in trained:
                a, b = trained[name]
                y = y + (torch.nn.functional.dropout(x, dropout) if dropout else x) @ a.T @ b.T * 2.0
            outputs.append(y)
        return outputs

    with FlopCounterMode(display=False) as first, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        outputs = forward()
    with FlopCounterMode(display=False) as second:
        torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
    return first.get_total_flops(), second.get_total_flops(), sum(saved.values())


@pytest.mark.parametrize("targets", [("query", "value"), ("query", "key", "value"), ("key",)])
def test_flops_and_saved_bytes_are_those_of_torch(torch, targets):
    operator = adapted(Lora(RANK, targets))
    forward, backward, saved = run(torch, targets, 0.0)
    assert sum(kernel.flops for kernel in operator.forward(1)) == forward
    both = (*operator.backward_input(1), *operator.backward_weights(1))
    assert sum(kernel.flops for kernel in both) == backward
    assert operator.kept_bytes(1) == saved


def test_with_dropout_each_adapter_keeps_its_own_input(torch):
    """Torch's eager CPU dropout keeps a mask of a float an element; a GPU's keeps a byte, as is counted here."""
    operator = adapted(Lora(RANK, ("query", "value"), drop=True))
    _, _, saved = run(torch, ("query", "value"), 0.1)
    elements = ROWS * INPUTS
    masks = 2 * elements
    assert operator.kept_bytes(1) - masks == saved - 2 * 4 * elements


def test_a_linear_map_without_adapter_keeps_nothing():
    operator = adapted(Lora(RANK, ("projection",)))
    assert (operator.kept_bytes(1), operator.weight_bytes(1), operator.backward_weights(1)) == (0, 0, ())
    assert not any(tensor.trainable for tensor in operator.tensors)


def test_fused_attention_saves_its_output_that_a_frozen_projection_does_not_need(torch):
    """Queries, keys, values and output, and the statistics: of a frozen projection with or without adapters."""
    heads, size, length = 4, 8, 16
    saved = {}

    def pack(t):
        saved.setdefault(t.data_ptr(), t.numel() * t.element_size())
        return t

    weight = torch.randn(heads * size, heads * size)
    makes = torch.randn(3, 1, heads, length, size, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        made = torch.nn.functional.scaled_dot_product_attention(*(one * 1.0 for one in makes), is_causal=True)
        made.transpose(1, 2).reshape(length, heads * size) @ weight.T
    saved.pop(weight.data_ptr(), None)
    core = FlashAttention(length, heads, heads, size, causal=True)
    for lora in Lora(RANK, ("query",)), Lora(RANK, ("query",), quantisation=Quantisation()):
        linear = Linear(length, heads * size, heads * size, bias=False, input_held=True)
        projection = with_adapters(linear, lora, {"projection": heads * size}, WHOLE, fused=False)
        assert core.kept_bytes(1) + projection.kept_bytes(1) == sum(saved.values())
