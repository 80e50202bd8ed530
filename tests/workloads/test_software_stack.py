"""Software stacks: every file loads, and torch.compile fuses elementwise kernels but leaves products as they are."""

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.errors import ScenarioError, SimulatorError
from clustersim.topologies.catalogue import GPUS, device
from clustersim.workloads.architectures.shape import Mlp, SelfAttention, Shape
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.transformer import transformer
from clustersim.workloads.operators.lora import EVERY
from clustersim.workloads.operators.model import OperatorLayer
from clustersim.workloads.operators.operator import FUSIBLE, fuses
from clustersim.workloads.operators.sharded import Cut
from clustersim.workloads.software_stack import OWN, aliases, holds, known_stack, software, specification


@pytest.mark.parametrize("name", [*lookup.names("clustersim.workloads.software"), *aliases()])
def test_every_stack_loads_under_its_name(name: str) -> None:
    assert software(name).name == name


@pytest.mark.parametrize(("compiled", "eager"), [("ddp_compile", "ddp_sdpa"), ("fsdp_compile", "fsdp_sdpa")])
def test_compiling_fuses_elementwise_kernels_and_leaves_products(compiled: str, eager: str) -> None:
    fast, slow = software(compiled), software(eager)
    assert fast.fused
    assert slow.fused in (False, frozenset({"optimizer"}))
    assert fast.launch_seconds < slow.launch_seconds
    assert (fast.load_seconds, fast.flash_backward) == (slow.load_seconds, slow.flash_backward)
    layers = [model("llama3_8b", "bf16", stack.fused).layers[1] for stack in (fast, slow)]
    kernels = []
    for layer in layers:
        assert isinstance(layer, OperatorLayer)
        kernels.append((*layer.forward(1), *layer.backward(1)))
    assert Counter(k for k in kernels[0] if k.flops) == Counter(k for k in kernels[1] if k.flops)
    for count in (lambda k: k.launches, lambda k: k.nbytes):
        assert sum(map(count, kernels[0])) < sum(map(count, kernels[1]))


@pytest.mark.parametrize("gpu", ["a100_80gb", "h200", "b200"])
def test_attention_of_torch_is_that_of_cudnn_since_2026(gpu: str) -> None:
    """With torch 2.11, on Hopper and Blackwell; compiling and the method of data parallelism change nothing of it."""
    (kernel,) = (kernel for kernel in model("llama3_8b", "bf16").layers[1].forward(1) if kernel.attention)
    accelerator = device(GPUS, gpu).accelerator()
    found: dict[bool, set[float]] = {}
    for name, later in product(("ddp_sdpa", "ddp_compile", "fsdp_sdpa", "fsdp_compile"), (False, True)):
        stack = software(f"{name}_2026" if later else name)
        found.setdefault(later, set()).add(accelerator.kernel_seconds(kernel, stack))
    (before,), (after,) = found[False], found[True]
    assert (after < 0.95 * before) == (gpu != "a100_80gb")


@pytest.mark.parametrize("gpu", ["a100_80gb", "h200", "b200"])
def test_fused_attention_of_xla_on_gpus_is_that_of_cudnn(gpu: str) -> None:
    """As torch has it since 2.11; a TPU has kernels of its own, whatever the stack says."""
    kernels = [kernel for kernel in model("llama3_8b", "bf16").layers[1].backward(1) if kernel.attention]
    assert kernels
    accelerator = device(GPUS, gpu).accelerator()
    seconds = [accelerator.kernel_seconds(kernels[0], software(name)) for name in ("xla", "xla_gpu", "fsdp_sdpa_2026")]
    assert len(set(seconds)) == 1
    tpu = device(GPUS, "tpu_v5p").accelerator()
    assert tpu.kernel_seconds(kernels[0], software("xla")) == tpu.kernel_seconds(kernels[0], Software())


def test_apex_o2_keeps_no_activations_in_fp32_and_autocast_does() -> None:
    """34 bytes of a layer for each feature of a position, and 5 for each score of each head (arXiv:2205.05198)."""
    held = [model("bert_large", "fp16").with_software(software(name)) for name in ("apex_o2", "ddp")]
    pure, mixed = (each.layers[1].activation_bytes(1) for each in held)
    rows, hidden, heads = 512, 1024, 16
    assert pure == pytest.approx(rows * (34 * hidden + 5 * heads * rows), rel=0.05)
    assert mixed > 1.25 * pure


def test_a_compiled_step_is_faster() -> None:
    changes = {"training.global_batch_size": 16}
    steps = [
        Scenario.load("llama3_8b_fsdp_dgx_h100", {**changes, "software": name}).run().summary()["step_time_s"]
        for name in ("fsdp_compile", "fsdp_sdpa")
    ]
    assert steps[0] < steps[1]


def test_short_eager_steps_with_adapters_take_the_time_of_the_host_whatever_the_width() -> None:
    """Forward, forward again and backward of a layer: 2.5 operators of 8 us for each kernel."""

    def layer(hidden: int, software: str) -> float:
        def step(layers: int) -> float:
            keys = {"num_layers": layers, "hidden_size": hidden, "ffn_hidden_size": 2 * hidden, "seq_length": 256}
            lora = {"rank": 64, "targets": list(EVERY), "dropout": 0.05}
            made = Scenario.model_validate(
                {
                    "version": 1,
                    "cluster": {"preset": "dgx_a100_80gb", "node": {"accelerators": 1}},
                    "model": {"preset": "llama2_7b", **keys, "attention": "flash", "lora": lora},
                    "training": {"global_batch_size": 1, "precision": "bf16", "recompute": "full"},
                    "software": software,
                }
            )
            return float(made.run().timeline.step_time)

        return (step(6) - step(2)) / 4

    narrow, wide = (layer(hidden, "auto") for hidden in (1024, 2048))
    assert wide == pytest.approx(narrow, rel=0.05)
    assert 4e-3 < narrow < 6e-3
    assert layer(1024, "ddp_sdpa") < 0.5 * narrow


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("", "fused: is missing; true, false or a list of operators, or torch_compile: true"),
        ("fused: false\ntorch_compile: true\n", "false contradicts torch_compile: true"),
        ("fused: [rope]\ntorch_compile: true\n", "a list contradicts torch_compile: true"),
        ("fused: [rmsnorm]\n", "rms_norm"),
    ],
)
def test_a_stack_says_whether_it_fuses(
    keys: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "__init__.py").touch()
    (tmp_path / "stacks" / "own.yaml").write_text(f"name: own\nlaunch: 1 us\nsource: none\n{keys}")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ScenarioError, match=message):
        software("stacks.own")


def test_fusion_is_stated_by_operator() -> None:
    """Megatron-LM of 2023 fuses GPT's operators, and composes those that LLaMA has in their place."""
    counts = {}
    for operator in ("none", "swiglu", "rope", "rms_norm"):
        layer = model("llama2_7b", "bf16", frozenset({"softmax", operator} - {"none"})).layers[1]
        counts[operator] = sum(kernel.nbytes for kernel in (*layer.forward(1), *layer.backward(1)))
    assert all(counts[operator] < counts["none"] for operator in ("swiglu", "rope", "rms_norm"))
    assert not fuses(software("megatron_2023").fused, "swiglu")
    assert software("megatron_core").fused == frozenset(FUSIBLE) - {"router"}


@pytest.mark.parametrize("tp", [2, 8])
def test_gathered_inputs_are_kept_or_gathered_again(tp: int) -> None:
    """Two products of a layer gather their input; kept whole, each costs 2 (1 - 1/t) bytes an element more."""
    shape = Shape(
        2, 1024, 512, 1000, SelfAttention(16, 16), Mlp(4096), precision="bf16", cut=Cut("tp", tp, sequence=True)
    )
    again, kept = (
        transformer(replace(shape, software=Software(keep_gathered=keep))).layers[1] for keep in (False, True)
    )
    more = kept.activation_bytes(1) - again.activation_bytes(1)
    assert more == pytest.approx(2 * 2 * 512 * 1024 * (1 - 1 / tp))
    gathers = [sum(one.kind == "all_gather" for s in x.segments("B", 1) for one in s.exchanges) for x in (again, kept)]
    assert gathers[0] - gathers[1] == 2


def test_the_whole_loss_on_every_rank() -> None:
    """Ranks that gather the logits hold and move those of all classes."""
    shape = Shape(
        1,
        1024,
        512,
        1024,
        SelfAttention(16, 16),
        Mlp(4096),
        software=Software(cross_entropy="eager"),
        precision="bf16",
        cut=Cut("tp", 4),
    )
    own, whole = (
        transformer(replace(shape, software=Software(cross_entropy="eager", gather_logits=gather))).layers[-1]
        for gather in (False, True)
    )
    assert whole.transient_bytes("F", 1) == 4 * own.transient_bytes("F", 1)
    assert [one.kind for s in whole.segments("F", 1) for one in s.exchanges] == ["all_gather"]
    assert [one.kind for s in own.segments("F", 1) for one in s.exchanges] == ["all_reduce"] * 3


def test_a_separate_gate_exchanges_the_gradient_of_its_input_twice() -> None:
    """Each of the two products all-reduces; with shards of the sequence their sum is scattered once."""
    for sequence, times in ((False, (2, 3)), (True, (2, 2))):
        shape = Shape(1, 1024, 512, 1024, SelfAttention(16, 16), Mlp(4096, "swiglu"), precision="bf16")
        shape = replace(shape, cut=Cut("tp", 4, sequence=sequence))
        kind = "reduce_scatter" if sequence else "all_reduce"
        for separate, count in zip((False, True), times, strict=True):
            layer = transformer(replace(shape, software=Software(separate_gate=separate))).layers[1]
            assert sum(one.kind == kind for s in layer.segments("B", 1) for one in s.exchanges) == count
            assert layer.parameters == transformer(shape).layers[1].parameters


@pytest.mark.parametrize(("stack", "aligned"), [("megatron", True), ("deepspeed", False), ("llm_c", True)])
def test_megatron_pads_the_vocabulary_and_nothing_else(stack: str, aligned: bool) -> None:
    """50,257 words are no multiple of eight elements; heads of 100 features are not either, and stay so."""
    shape = Shape(1, 400, 64, 50257, SelfAttention(4, 4), Mlp(1600), precision="bf16")
    made = transformer(shape).with_software(software(stack))
    logits = [kernel for kernel in made.layers[-1].forward(1) if kernel.flops]
    assert [kernel.aligned for kernel in logits] == [aligned]
    scores = [kernel for kernel in made.layers[1].forward(1) if kernel.shape and kernel.shape[0] > 1]
    assert scores
    assert not any(kernel.aligned for kernel in scores)


def own_keys(name: str) -> dict[str, object]:
    return {key: value for key, value in specification(name).model_dump().items() if key not in (*OWN, "offers")}


@pytest.mark.parametrize(
    ("name", "base", "differ"),
    [
        ("megatron_early_2021", "megatron_2021", {"scatter_gather"}),
        ("megatron_2021", "megatron", {"async_tensor", "accumulation", "flash_backward"}),
        ("megatron_2023", "megatron", {"flash_backward"}),
        ("megascale", "megatron", {"gather_ahead", "message_operators", "exchange"}),
        ("megascale_overlap", "megatron", {"flash_backward", "gather_ahead", "message_operators", "exchange"}),
        ("fsdp_2023", "fsdp", {"early_stop", "keeps_casts"}),
        ("llm_foundry", "fsdp", {"cross_entropy", "keeps_casts"}),
        ("llm_foundry_2023", "llm_foundry", {"early_stop"}),
        ("deepspeed", "megatron_deepspeed", {"flash_backward", "padded_vocabulary", "zero_fp32_gradients"}),
        ("aa_scaling_flash2", "aa_scaling", {"fused"}),
        ("aa_scaling_flash1", "aa_scaling_flash2", {"flash_forward", "flash_backward"}),
        ("torchtune", "fsdp_compile", {"cross_entropy"}),
        ("hai_llm", "megatron_core", {"communication_sms", "fused", "grouped_product"}),
    ],
)
def test_a_composed_stack_differs_from_another_in_these_keys_alone(name: str, base: str, differ: set[str]) -> None:
    composed, other = own_keys(name), own_keys(base)
    assert {key for key in composed if composed[key] != other[key]} == differ


def test_groups_override_the_preset_in_order_and_keys_override_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "composed").mkdir()
    (tmp_path / "composed" / "__init__.py").touch()
    for name, text in {
        "own": "with: [flash_attention_2, flash_attention_1, before_torch_2_1]\nearly_stop: true",
        "wrong": "with: [flash_attention_9]",
        "word": "with: flash_attention_2",
    }.items():
        path = tmp_path / "composed" / f"{name}.yaml"
        path.write_text(f"name: {name}\nsource: none\npreset: fsdp_sdpa\n{text}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert software("composed.own") == replace(software("fsdp_sdpa"), name="own", flash_backward=1.0)
    with pytest.raises(ScenarioError, match=r"wrong.yaml:4:7: with: must be a list of flash_attention_1,"):
        software("composed.wrong")
    with pytest.raises(ScenarioError, match=r"word.yaml:4:7: with: must be a list of "):
        software("composed.word")


def test_a_composed_stack_has_the_import_path_that_a_file_has() -> None:
    assert software("clustersim.workloads.software.megascale") == software("megascale")
    assert known_stack("clustersim.workloads.software.megascale") == "megascale"
    with pytest.raises(SimulatorError, match='unknown name "megascle"; there are: megascale,'):
        software("megascle")


@pytest.mark.parametrize(
    ("name", "key", "from_megatron"),
    [
        ("aa_scaling", "softmax_group", True),
        ("aa_scaling_flash2", "softmax_group", True),  # by way of aa_scaling
        ("aa_scaling_torch", "softmax_group", False),  # a key of its own
        ("aa_scaling", "launch", False),  # a key of one of its groups
        ("aa_scaling", "flash_backward", False),  # of the other one
        ("aa_scaling_flash2", "launch", False),
        ("alpa", "softmax_group", False),  # based on another stack
    ],
)
def test_a_stack_has_a_value_from_its_preset_unless_it_or_its_groups_say_otherwise(
    name: str, key: str, from_megatron: bool
) -> None:
    folder = "clustersim.workloads.software"
    assert holds(f"{folder}.{name}", f"{folder}.megatron:{key}") is from_megatron
