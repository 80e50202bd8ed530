"""Transformers against published parameter counts, Narayanan's formula of FLOPs and Korthikanti's table of memory."""

import csv
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.architectures.shape import Embedding, Mlp, Norm, SelfAttention, Shape
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.transformer import Transformer, transformer, transformer_operators
from clustersim.workloads.architectures.transformer_keys import TransformerSpecification
from clustersim.workloads.operators.attentions.core_attention import CoreAttention, FlashAttention
from clustersim.workloads.operators.model import Layer, OperatorLayer
from clustersim.workloads.operators.sharded import WHOLE, Cut
from clustersim.workloads.parallelism.tensor import sharded

DATA = Path(__file__).parents[3] / "../shared/data"

GPT = Shape(4, 1024, 512, 50304, SelfAttention(16, 16), Mlp(4096), precision="bf16")

BERT_BASE = {
    "num_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "seq_length": 128,
    "position_rows": 512,
    "vocab_size": 30522,
    "type_vocab_size": 2,
    "embedding_norm": True,
}

COUNTS = {
    "gpt2": 124_439_808,  # Hugging Face, openai-community/gpt2 and its siblings
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "bert_base": 110_106_428,  # Hugging Face, BertForPreTraining
    "bert_large": 336_226_108,
    "roberta_base": 124_697_433,  # Hugging Face, RobertaForMaskedLM
    "roberta_large": 355_412_057,
    "bloom_176b": 176_247_271_424,  # bigscience/bloom, model card
    "llama2_7b": 6_738_415_616,  # meta-llama on Hugging Face, safetensors totals
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    # totals of the weights on Hugging Face, of the repositories that the files name
    "llama_7b": 6_738_415_616,
    "llama_13b": 13_015_864_320,
    "llama_33b": 32_528_943_616,
    "llama_65b": 65_285_660_672,
    "llama2_13b": 13_015_864_320,
    "llama3_405b": 405_853_388_800,
    "llama3_2_1b": 1_235_814_400,
    "llama3_2_3b": 3_212_749_824,
    "tinyllama_1_1b": 1_100_048_384,
    "mistral_7b": 7_241_732_096,
    "mistral_nemo_12b": 12_247_782_400,
    "mistral_small_24b": 23_572_403_200,
    "mistral_large_123b": 122_610_069_504,
    "codestral_22b": 22_247_282_688,
    "qwen2_0_5b": 494_032_768,
    "qwen2_1_5b": 1_543_714_304,
    "qwen2_7b": 7_615_616_512,
    "qwen2_72b": 72_706_203_648,
    "qwen2_5_3b": 3_085_938_688,
    "qwen2_5_14b": 14_770_033_664,
    "qwen2_5_32b": 32_763_876_352,
    "qwen3_0_6b": 596_049_920,
    "qwen3_1_7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
    "gemma_2b": 2_506_172_416,
    "gemma_7b": 8_537_680_896,
    "gemma2_2b": 2_614_341_888,
    "gemma2_9b": 9_241_705_984,
    "gemma2_27b": 27_227_128_320,
    "gemma3_1b": 999_885_952,
    "gemma3_4b": 3_880_263_168,
    "gemma3_12b": 11_766_034_176,
    "gemma3_27b": 27_009_346_304,
    "olmo3_7b": 7_298_011_136,
    "olmo3_32b": 32_233_522_176,
    "phi_1_5": 1_418_270_720,
    "phi_2": 2_779_683_840,
    "phi_3_mini": 3_821_079_552,
    "phi_3_medium": 13_960_238_080,
    "phi_4": 14_659_507_200,
    "olmo2_7b": 7_298_617_344,
    "olmo2_13b": 13_716_198_400,
    "olmo2_32b": 32_234_279_936,
    "falcon_7b": 6_921_720_704,
    "falcon_40b": 41_303_293_952,
    "falcon_180b": 179_522_565_120,  # unties its embeddings; the total of its safetensors
    "mpt_7b": 6_649_286_656,
    "gpt_neox_20b": 20_554_567_680,
    "pythia_1b": 1_011_781_632,
    "pythia_1_4b": 1_414_647_808,
    "pythia_2_8b": 2_775_208_960,
    "pythia_6_9b": 6_857_302_016,
    "pythia_12b": 11_846_072_320,
    "opt_125m": 125_239_296,
    "opt_1_3b": 1_315_758_080,
    "opt_6_7b": 6_658_473_984,
    "opt_13b": 12_853_473_280,
    "opt_30b": 29_974_540_288,
    "bloom_560m": 559_214_592,
    "bloom_1b7": 1_722_408_960,
    "bloom_7b1": 7_069_016_064,
    "yi_6b": 6_061_035_520,
    "yi_34b": 34_388_917_248,
    "glm4_9b": 9_399_951_360,
    "starcoder2_3b": 3_030_371_328,
    "starcoder2_7b": 7_173_923_840,
    "starcoder2_15b": 15_957_889_024,
    "command_r_35b": 34_980_831_232,
    "internlm2_7b": 7_737_708_544,
    "internlm2_20b": 19_861_149_696,
    "baichuan2_7b": 7_505_973_248,
    "deepseek_llm_7b": 6_910_365_696,
    "smollm2_135m": 134_515_008,
    "smollm2_360m": 361_821_120,
    "smollm2_1_7b": 1_711_376_384,
    "solar_10_7b": 10_731_524_096,
}


def counts(layer: Layer) -> tuple[int, ...]:
    """The elements of its tensors."""
    return tuple(tensor.count for tensor in layer.tensors)


def rows(name: str) -> list[dict[str, str]]:
    """A file of the published measurements, which stand beside the project where it is developed."""
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not here; published measurements are not part of the project")
    with (DATA / name).open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_published_parameter_counts(name: str, count: int) -> None:
    assert model(name).parameters == count


def test_bert_large_by_head() -> None:
    shape = Shape(
        24,
        1024,
        512,
        30522,
        SelfAttention(16, 16),
        Mlp(4096),
        embedding=Embedding(norm=True, type_rows=2),
        head="masked_lm",
    )
    assert transformer(shape).parameters == 335_174_458  # BertForMaskedLM, without pooler
    pooler, next_sentence = 1024**2 + 1024, 2 * 1024 + 2
    assert transformer(replace(shape, head="pretraining")).parameters == 335_174_458 + pooler + next_sentence


@pytest.mark.parametrize(("head", "count"), [("span", 108_893_186), ("classification", 109_483_778)])
def test_bert_base_for_questions_and_classes(head: str, count: int) -> None:
    """As huggingface's BertForQuestionAnswering and BertForSequenceClassification; no table is tied to logits."""
    bert = TransformerSpecification(**BERT_BASE, head=head).build()
    assert bert.parameters == count
    assert not bert.tied_parameters


def test_masked_positions_alone_make_logits() -> None:
    """20 of 128 positions: 20/128 of the FLOPs of transform and logits; by default and at most all."""

    def flops(predictions: int | None) -> float:
        bert = TransformerSpecification(**BERT_BASE, head="masked_lm", max_predictions_per_seq=predictions).build()
        return sum(kernel.flops for kernel in bert.layers[-1].forward(1))

    assert flops(None) == flops(128) == 2 * 128 * 768 * (768 + 30522)
    assert flops(20) == 2 * 20 * 768 * (768 + 30522)


def test_predicted_positions_belong_to_masked_heads() -> None:
    for head, predictions, why in (("span", 20, "belongs to head"), ("masked_lm", 129, "129 are more than the 128")):
        with pytest.raises(ValueError, match=why):
            TransformerSpecification(**BERT_BASE, head=head, max_predictions_per_seq=predictions)


def test_gpt2_tensors_stand_in_the_order_of_registration() -> None:
    first, second, *_, head = model("gpt2").layers
    assert counts(first) == (50257 * 768, 1024 * 768)
    norm = (768, 768)
    assert counts(second) == (
        *norm, 768 * 2304, 2304, 768 * 768, 768, *norm, 768 * 3072, 3072, 3072 * 768, 768,
    )  # fmt: skip
    assert counts(head) == norm  # the logits share the embedding's weight


def test_tied_parameters_are_the_token_embedding() -> None:
    assert model("gpt2").tied_parameters == 50257 * 768
    assert model("llama3_8b").tied_parameters == model("resnet50").tied_parameters == 0


def test_llama_holds_query_key_and_value_apart() -> None:
    layer = model("llama3_8b").layers[1]
    h, kv, f = 4096, 1024, 14336
    assert counts(layer) == (h, h * h, kv * h, kv * h, h * h, h, f * h, f * h, f * h)


def test_parameters_of_the_weak_scaling_table() -> None:
    """Equation 2 of arXiv:2104.04473 leaves out the final norm's 2 h; the table prints tenths of billions."""
    for row in rows("megatron_sc21_table1_weak_scaling.csv"):
        layers, h, a, s, v = (int(row[key]) for key in ("layers", "hidden", "heads", "seq", "vocab"))
        count = transformer(Shape(layers, h, s, v, SelfAttention(a, a), Mlp(4 * h))).parameters
        assert count - 2 * h == pytest.approx(12 * layers * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * layers * h)))
        assert count / 1e9 == pytest.approx(float(row["params_B"]), abs=0.06)


def test_parameters_of_mpt() -> None:
    found = 0
    for row in rows("fsdp_mpt_llmfoundry.csv"):
        layers, h, a, v, s = (int(row[key]) for key in ("layers", "hidden", "heads", "vocab", "seq"))
        ffn = round(float(row["ffn_ratio"]) * h)
        assert transformer(Shape(layers, h, s, v, SelfAttention(a, a), Mlp(ffn))).parameters == int(row["params"])
        found += 1
    assert found


@settings(max_examples=40, deadline=None)
@given(
    layers=st.integers(1, 6),
    head_size=st.sampled_from([16, 64, 128]),
    heads=st.integers(1, 12),
    s=st.sampled_from([1, 96, 512]),
    v=st.integers(2, 60_000),
    batch=st.integers(1, 8),
    attention=st.sampled_from(["unfused", "flash"]),
    fused=st.booleans(),
    precision=st.sampled_from(["fp32", "bf16"]),
)
def test_model_flops_are_the_formula(
    layers: int, head_size: int, heads: int, s: int, v: int, batch: int, attention: str, fused: bool, precision: str
) -> None:
    h = heads * head_size
    shape = Shape(
        layers,
        h,
        s,
        v,
        SelfAttention(heads, heads, kind=attention),
        Mlp(4 * h),
        software=Software(fused=fused),
        precision=precision,
    )
    formula = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    assert transformer(shape).flops(batch) == pytest.approx(formula, rel=1e-12)


def test_recomputing_every_layer_is_the_formula_with_96() -> None:
    gpt, b, s, layers, h, v = transformer(GPT), 3, 512, 4, 1024, 50304
    again = sum(k.flops for layer in gpt.layers if layer.kind == "transformer" for k in layer.forward(b))
    formula = 96 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    assert gpt.flops(b) + again == pytest.approx(formula, rel=1e-12)


def test_gpt3_flops_as_published() -> None:
    """Brown et al. 2020, table D.1: 3.14e23 FLOPs of training on 300 billion tokens, counted as 6 N D."""
    gpt3 = model("gpt3_175b")
    assert gpt3.flops(1) / gpt3.tokens_per_sample * 300e9 == pytest.approx(3.14e23, rel=0.05)


def core(shape: Shape) -> CoreAttention:
    return next(part for part in transformer_operators(shape) if isinstance(part, CoreAttention))


def layer_bytes(shape: Shape, b: int, *, selective: bool = False) -> float:
    layer = transformer(shape).layers[1]
    return layer.activation_bytes(b) - (core(shape).recomputable_bytes(b) if selective else 0)


ROWS: dict[str, tuple[bool, bool, bool]] = {  # (tensor parallel, sequence parallel, selective recomputation)
    "no parallelism (per layer)": (False, False, False),
    "tensor parallel baseline": (True, False, False),
    "TP + sequence parallel": (True, True, False),
    "TP + selective recompute": (True, False, True),
    "TP+SP+selective": (True, True, True),
}


@pytest.mark.parametrize(("name", "choice"), ROWS.items())
@pytest.mark.parametrize("t", [2, 8])
def test_activations_of_a_layer_are_korthikantis_rows(name: str, choice: tuple[bool, bool, bool], t: int) -> None:
    formulas = {row["configuration"]: row["formula_bytes"] for row in rows("korthikanti_memory_formulas.csv")}
    sizes: dict[str, int] = {"s": 512, "b": 3, "h": 1024, "a": 16, "t": t}
    expected = eval(formulas[name], {"__builtins__": {}}, sizes)
    parallel, sequence, selective = choice
    shape = replace(GPT, cut=Cut("tp", t, sequence) if parallel else WHOLE)
    assert layer_bytes(shape, 3, selective=selective) == pytest.approx(expected, rel=1e-12)


def test_activations_outside_the_layers_are_korthikantis() -> None:
    """Section 4.3: s b h of dropout mask in the embedding, 4 s b h (1 + v/h) in the head."""
    gpt, s, b, h, v = transformer(GPT), 512, 3, 1024, 50304
    assert gpt.layers[0].activation_bytes(b) == s * b * h
    assert gpt.layers[-1].activation_bytes(b) == pytest.approx(4 * s * b * h * (1 + v / h))


def test_full_recomputation_keeps_the_layer_input() -> None:
    assert transformer(GPT).layers[1].output_bytes(3) == 2 * 512 * 3 * 1024


def test_flash_keeps_statistics_in_place_of_the_scores() -> None:
    s, b, h, a = 512, 3, 1024, 16
    flash = replace(GPT, attention=replace(GPT.attention, kind="flash"))
    assert layer_bytes(flash, b) == 34 * s * b * h + 4 * b * a * s


def test_full_precision_doubles_all_but_the_masks() -> None:
    s, b, h, a = 512, 3, 1024, 16
    masks = 2 * s * b * h + a * s * s * b
    full, half = (layer_bytes(replace(GPT, precision=p), b) - masks for p in ("fp32", "bf16"))
    assert full == 2 * half


def totals(layer: OperatorLayer, b: int) -> tuple[float, float, float]:
    kernels: tuple[Kernel, ...] = (*layer.forward(b), *layer.backward(b))
    return sum(k.flops for k in kernels), sum(k.nbytes for k in kernels), sum(k.launches for k in kernels)


@pytest.mark.parametrize("name", ["gpt2", "bert_base", "llama3_8b"])
def test_fusing_saves_traffic_and_launches_but_no_flops(name: str) -> None:
    fused, apart = (model(name, "bf16", fused) for fused in (True, False))
    pairs = zip(fused.layers[1:], apart.layers[1:], strict=True)
    for one, other in pairs:
        assert isinstance(one, OperatorLayer)
        assert isinstance(other, OperatorLayer)
        (flops, nbytes, launches), (same, more, many) = totals(one, 2), totals(other, 2)
        assert flops == same
        assert nbytes < more
        assert launches < many


@pytest.mark.parametrize("t", [2, 4, 16])
def test_tensor_parallel_ranks_share_the_products_equally(t: int) -> None:
    whole = transformer(replace(GPT, vocab_size=50304))
    part = sharded(whole, t)
    assert part.flops(2) * t == pytest.approx(whole.flops(2))
    inside = [layer.parameters for layer in part.layers if layer.kind == "transformer"]
    h = 1024  # norms, and the biases after the two row-parallel products, are on every rank
    assert all(count == (12 * h**2 + 7 * h) / t + 6 * h for count in inside)


def test_few_key_value_heads_are_held_several_times() -> None:
    shape = Shape(2, 1024, 512, 32000, SelfAttention(16, 2, bias=False), Mlp(4096, bias=False), norm=Norm("rmsnorm"))
    assert counts(sharded(transformer(shape), 8).layers[1])[1:4] == (128 * 1024, 64 * 1024, 64 * 1024)


def test_a_degree_that_does_not_divide_is_told_with_those_that_do() -> None:
    gpt3 = model("gpt3_175b")
    assert isinstance(gpt3, Transformer)
    with pytest.raises(ScenarioError) as error:
        sharded(gpt3, 10)
    assert str(error.value) == "tp = 10 does not divide the 96 heads of gpt3-175b; try 8 or 12"
    with pytest.raises(ScenarioError, match="tp = 16 does not divide seq_length = 520, which sequence"):
        sharded(transformer(replace(GPT, seq_length=520)), 16, sequence_parallel=True)


@pytest.mark.parametrize("b", [1, 4])
def test_flash_shapes_are_what_is_executed(b: int) -> None:
    """Causal flash attention executes half of the square, its diagonal's tiles whole, and five products backward."""

    def executed(kernel: Kernel) -> int:
        assert kernel.shape is not None
        batch, m, n, k = kernel.shape
        return 2 * batch * m * n * k

    causal, full = (FlashAttention(512, 16, 16, 64, precision="bf16", causal=causal) for causal in (True, False))
    (forward,), (backward,) = full.forward(b), full.backward_input(b)
    assert executed(forward) == forward.flops == 4 * b * 16 * 512**2 * 64
    assert executed(backward) == 2.5 * forward.flops
    assert backward.flops == 2 * forward.flops
    assert executed(causal.forward(b)[0]) == forward.flops * (1 + 64 / 512) / 2
    assert causal.forward(b)[0].flops == forward.flops


def test_flash_moves_less_than_unfused_attention() -> None:
    def moved(part: CoreAttention, phase: Callable[[CoreAttention], tuple[Kernel, ...]]) -> float:
        return sum(kernel.nbytes for kernel in phase(part))

    for phase in (lambda part: part.forward(2), lambda part: part.backward_input(2)):
        unfused, flash = core(GPT), core(replace(GPT, attention=replace(GPT.attention, kind="flash")))
        assert moved(flash, phase) < moved(unfused, phase) / 4


@pytest.mark.parametrize("name", ["gpt2", "bert_base", "llama2_7b"])
def test_the_backward_pass_is_its_two_halves_and_twice_the_flops(name: str) -> None:
    for layer in model(name, "bf16").layers:
        both = (*layer.backward_input(2), *layer.backward_weights(2))
        assert layer.backward(2) == both
        assert sum(k.flops for k in both) == 2 * sum(k.flops for k in layer.forward(2))


def test_layers_of_a_model_are_equal_but_for_their_names() -> None:
    kinds = [(kind, len(list(run))) for kind, run in groupby(model("gpt2").layers, key=lambda layer: layer.kind)]
    assert kinds == [("embedding", 1), ("transformer", 12), ("head", 1)]
    assert len({layer.name for layer in model("gpt2").layers}) == 14
    assert len({layer.forward(2) for layer in model("gpt2").layers}) == 3
