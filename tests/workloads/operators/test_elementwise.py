"""What activation functions keep: closed forms of layers, torch itself, and split backward passes."""

from dataclasses import replace

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.analysis.memory import bound
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.operators.elementwise import Saved, gelu, saving
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.pipelines._row_patterns import split_backward

ROWS, WIDE = 1024, 3072


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_few_bits_take_the_place_of_the_input(bits):
    """GPT-2: of the 16 s f bytes of GELU's input and output in a layer, half become bits."""
    whole = model("gpt2", "bf16", fused=True)
    few = whole.saving(Saved(bits=bits))
    less = whole.layers[1].activation_bytes(1) - few.layers[1].activation_bytes(1)
    assert less == ROWS * WIDE * (2 - bits / 8)
    moved = [sum(k.nbytes for k in m.layers[1].backward_input(1)) for m in (whole, few)]
    assert moved[0] - moved[1] == less
    assert few.flops(1) == whole.flops(1)


def test_a_recomputed_output_is_not_kept_but_made_again():
    whole = model("gpt2", "bf16", fused=True)
    again = whole.saving(Saved(recompute=True))
    one, two = whole.layers[1], again.layers[1]
    assert one.activation_bytes(1) - two.activation_bytes(1) == 2 * ROWS * WIDE
    weights = [sum(k.nbytes for k in layer.backward_weights(1)) for layer in (one, two)]
    assert weights[1] - weights[0] == 2 * 2 * ROWS * WIDE
    assert two.transient_bytes("I", 1) == one.transient_bytes("I", 1) + 2 * ROWS * WIDE
    assert two.transient_bytes("F", 1) == one.transient_bytes("F", 1)


def test_gated_activations_keep_both_operands_and_drop_the_product():
    whole = model("llama2_7b", "bf16", fused=True)
    again = whole.saving(Saved(recompute=True))
    less = whole.layers[1].activation_bytes(1) - again.layers[1].activation_bytes(1)
    assert less == 2 * 4096 * 11008
    with pytest.raises(ScenarioError, match="swiglu multiplies two tensors"):
        whole.saving(Saved(bits=2))


def test_torch_keeps_input_and_output_of_the_function():
    """Saved are the input, for GELU, and the output, for the weight gradient of the product behind it."""
    torch = pytest.importorskip("torch")
    x, weight = (torch.randn(rows, 32, requires_grad=True) for rows in (16, 8))
    saved = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.setdefault(t.data_ptr(), t), lambda t: t):
        torch.nn.functional.linear(torch.nn.functional.gelu(x), weight)
    kept = sum(t.numel() * 4 for t in saved.values() if t.data_ptr() != weight.data_ptr())
    plain, again = gelu(16 * 32, "fp32"), saving(gelu(16 * 32, "fp32"), Saved(recompute=True), "fp32")
    product = Linear(16, 32, 8)
    assert kept == plain.kept_bytes(1) + product.kept_bytes(1)
    assert kept == 2 * (again.kept_bytes(1) + replace(product, keeps_input=False).kept_bytes(1))


def test_memory_of_a_step_falls_also_if_the_backward_pass_is_split():
    plain = model("gpt2", "bf16", fused=True)
    for order in (Order.parse("0F0,0B0"), split_backward(Order.parse("0F0,0F1,0B0,0B1"), [1])):
        peaks = [
            bound(compute(made, order, micro_batch_size=8)).peak.nbytes
            for made in (plain, plain.saving(Saved(recompute=True)), plain.saving(Saved(bits=2)))
        ]
        assert peaks[0] > max(peaks[1:])


def scenario(name, size="gpt2", **rule):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_a100_80gb", "nodes": 1},
            "model": {"preset": size},
            "training": {
                "global_batch_size": 64,
                "precision": "bf16",
                **({"activation_function": rule} if rule else {}),
            },
            "parallelism": {"data": {"method": name}},
        }
    )


def test_scenarios_take_the_rule_and_name_mistakes():
    plain, few, again = (scenario("ddp", **rule).run().summary() for rule in ({}, {"bits": 2}, {"recompute": True}))
    assert few["memory"]["peak_bytes"] < plain["memory"]["peak_bytes"]
    assert again["memory"]["peak_bytes"] < plain["memory"]["peak_bytes"]
    assert again["step_time_s"] > plain["step_time_s"] > few["step_time_s"]
    with pytest.raises(ScenarioError, match="must be 1 to 8, not 9"):
        scenario("ddp", bits=9)
    with pytest.raises(ScenarioError, match="give one of them"):
        scenario("ddp", bits=2, recompute=True)
    with pytest.raises(ScenarioError, match="belongs to a transformer"):
        assert scenario("ddp", size="resnet50", bits=2).model


def test_experts_recompute_their_activation():
    """The input of the second product of each expert is left out: tokens x width of all that arrive."""
    whole = model("mixtral_8x7b", "bf16", fused=True)
    again = whole.saving(Saved(recompute=True))
    less = whole.layers[1].activation_bytes(1) - again.layers[1].activation_bytes(1)
    tokens = whole.shape.seq_length * 2
    assert less == pytest.approx(2 * tokens * 14336, rel=1e-6)
