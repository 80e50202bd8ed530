"""Recomputation by operator: closed forms of what is kept and what runs again, both engines, DeepSeek-V3 in 80 GB."""

from pathlib import Path

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.architectures.layer_parts import dense_mlp
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.transformer import Transformer
from clustersim.workloads.operators.model import OperatorLayer
from clustersim.workloads.operators.operator import Operator, Rule
from clustersim.workloads.software_stack import software

S, H, F, Q, K = 4096, 4096, 14336, 4096, 1024
"""Llama 3 8B at 4,096 tokens: hidden and feed-forward features, those of queries, and of keys."""


def whole(name: str) -> Transformer:
    made = model(name, "bf16", fused=True)
    assert isinstance(made, Transformer)
    return made


def layer(rule: Rule, name: str = "llama3_8b") -> OperatorLayer:
    found = whole(name).reshaped(seq_length=S, again=rule).layers[1]
    assert isinstance(found, OperatorLayer)
    return found


def test_norms_free_what_products_keep() -> None:
    """Both norms of a layer, not those of queries and keys: 2 s h bytes each."""
    own = layer(Rule(frozenset({"norm"})))
    assert own.recomputable_bytes(1) == 2 * 2 * S * H
    assert [kernel.nbytes for kernel in own.recomputable_forward(1)] == [2 * 2 * S * H] * 2
    queries = layer(Rule(frozenset({"norm"})), "qwen3_8b")
    assert len(queries.recomputable_forward(1)) == 2


def test_every_second_product() -> None:
    """torchtitan saves wq, attention, wv, w1 (and w2, which nothing needs); wk, wo, w3 and the rest run again."""
    own = layer(Rule(every=2))
    kept = own.activation_bytes(1) - own.recomputable_bytes(1)
    statistics = 4 * S * 32
    assert kept == 2 * S * (H + Q + K + Q + F) + statistics
    flops = sum(kernel.flops for kernel in own.recomputable_forward(1))
    assert flops == 2 * S * (H * K + Q * H + H * F)


def test_latent_attention_makes_queries_keys_and_values_again() -> None:
    """DeepSeek-V3: 128 heads of 192, 192 and 128 features; products from small vectors of 1,536 and 512 features."""
    own = layer(Rule(frozenset({"mla_up"})), "deepseek_v3")
    assert own.recomputable_bytes(1) == 2 * S * 128 * (192 + 192 + 128)
    flops = sum(kernel.flops for kernel in own.recomputable_forward(1))
    assert flops == 2 * S * 128 * (1536 * 192 + 512 * (128 + 128))


@pytest.mark.parametrize(("stack", "products"), [("megatron_core", 3), ("fsdp_sdpa", 2), ("xla", 2)])
def test_a_feed_forward_network_keeps_its_input_only(stack: str, products: int) -> None:
    """Two inputs of SwiGLU and that of the last product, which checkpoints that stop early do not run again."""
    made = whole("llama3_8b").reshaped(seq_length=S).with_software(software(stack))
    own = made.reshaped(again=Rule(frozenset({"mlp"}))).layers[1]
    assert isinstance(own, OperatorLayer)
    assert own.recomputable_bytes(1) == own.activation_bytes(1) - activations_without_mlp(made)
    flops = sum(kernel.flops for kernel in own.recomputable_forward(1))
    assert flops == 2 * S * products * H * F


def activations_without_mlp(of: Transformer) -> float:
    """What a layer of Llama 3 8B keeps before its second product behind the norm, and that product's input."""
    found = of.layers[1]
    assert isinstance(found, OperatorLayer)
    kept = [one.kept_bytes(1) for one in found.operators]
    names = [one.operation.name for one in found.operators]
    place = names.index("SwiGLU")
    assert kept[place] >= 2 * 2 * S * F
    assert kept[place + 1] == 2 * S * F
    return sum(kept) - kept[place] - kept[place + 1]


def test_a_network_beside_attention_is_no_module_of_its_own() -> None:
    """GPT-NeoX sums the last products of both; DeepSeek-V3 has dense layers, Mixtral has none."""
    assert not dense_mlp(operators_of("gpt_neox_20b", 1))
    assert dense_mlp(operators_of("deepseek_v3", 1))
    assert not dense_mlp(operators_of("deepseek_v3", -2))
    assert not dense_mlp(operators_of("mixtral_8x7b", 1))
    assert dense_mlp(operators_of("bert_large", 1)) == range(5, 8)


def operators_of(name: str, number: int) -> tuple[Operator, ...]:
    found = whole(name).layers[number]
    assert isinstance(found, OperatorLayer)
    return found.operators


def test_a_mixture_keeps_its_input_only() -> None:
    made = whole("qwen3_30b_a3b")
    again = made.reshaped(again=Rule(frozenset({"experts"}))).layers[1]
    assert isinstance(again, OperatorLayer)
    mixture = again.operators[-2]
    assert again.recomputable_bytes(1) == mixture.kept_bytes(1) - 2 * 4096 * 2048
    with pytest.raises(ScenarioError, match="dense layer"):
        made.reshaped(again=Rule(every=2))


SMALL: dict = {
    "version": 1,
    "cluster": {"preset": "dgx_h100", "nodes": 1},
    "model": {"preset": "qwen3_30b_a3b", "num_layers": 4, "seq_length": 1024},
    "training": {"global_batch_size": 16, "micro_batch_size": 1, "precision": "bf16"},
    "parallelism": {
        "tp": 2,
        "pp": 2,
        "ep": 2,
        "expert_tp": 1,
        "sequence_parallel": True,
        "data": {"method": "zero", "stage": 1},
    },
    "software": "megatron_core",
}


def small(engine: str = "auto", **training: object) -> dict:
    values = {**SMALL, "training": {**SMALL["training"], **training}, "simulation": {"engine": engine}}
    return Scenario.model_validate(values).run().summary()


def test_both_engines_and_less_memory_for_more_time() -> None:
    how = {"recompute": {"method": "operators", "operators": ["norm", "swiglu", "attention"]}}
    fast, reference, none = small("compiled", **how), small("simpy", **how), small()
    assert fast["step_time_s"] == pytest.approx(reference["step_time_s"], rel=1e-9)
    assert fast["memory"]["peak_bytes"] == reference["memory"]["peak_bytes"] < none["memory"]["peak_bytes"]
    assert fast["step_time_s"] > none["step_time_s"]


@pytest.mark.parametrize(
    ("recompute", "message"),
    [
        ("operators", "needs their names"),
        ({"method": "operators"}, "one of operators, a list of attention, experts"),
        ({"method": "operators", "operators": ["norm"], "every": 2}, "one of operators"),
        ({"method": "operators", "every": 1}, "must be 2 or more"),
        ({"method": "full", "every": 2}, "belongs to method: operators"),
        ({"method": "operators", "operators": ["mla_up"]}, "has no mla_up"),
        ({"method": "operators", "operators": ["mlp"]}, "has no mlp"),
        ({"method": "operators", "every": 2}, "dense layer"),
    ],
)
def test_what_is_wrong_is_said(recompute: object, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        small(recompute=recompute)


@pytest.mark.exhaustive
def test_deepseek_v3_fits() -> None:
    """arXiv:2412.19437, section 3.2.3: it trains without tensor parallelism on GPUs of 80 GB."""
    path = Path(__file__).parents[3] / "scenarios/published/deepseek_v3.yaml"
    memory = Scenario.load(path).run().summary()["memory"]
    assert memory["fits"]
    assert memory["by_category_bytes"]["activations"] < 50e9
