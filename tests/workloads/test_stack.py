"""Software stacks: every file loads, and torch.compile fuses elementwise kernels but leaves products as they are."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from scenarios import Scenario
from simulator import lookup
from simulator.errors import ScenarioError
from workloads.operators.fusion import FUSIBLE, fuses
from workloads.operators.layer import OperatorLayer
from workloads.operators.sharded import Cut
from workloads.shape import Shape
from workloads.specification import model
from workloads.stack import software
from workloads.transformer import transformer


@pytest.mark.parametrize("name", lookup.names("workloads.software"))
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


def test_a_compiled_step_is_faster() -> None:
    changes = {"training.global_batch_size": 16}
    steps = [
        Scenario.load("llama3_8b_fsdp_dgx_h100", {**changes, "software": name}).run().summary()["step_time_s"]
        for name in ("fsdp_compile", "fsdp_sdpa")
    ]
    assert steps[0] < steps[1]


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
    shape = Shape(2, 1024, 16, 16, 4096, 512, 1000, precision="bf16", cut=Cut("tp", tp, sequence=True))
    again, kept = (transformer(replace(shape, keep_gathered=keep)).layers[1] for keep in (False, True))
    more = kept.activation_bytes(1) - again.activation_bytes(1)
    assert more == pytest.approx(2 * 2 * 512 * 1024 * (1 - 1 / tp))
    gathers = [sum(one.kind == "all_gather" for s in x.segments("B", 1) for one in s.exchanges) for x in (again, kept)]
    assert gathers[0] - gathers[1] == 2


def test_the_whole_loss_on_every_rank() -> None:
    """Ranks that gather the logits hold and move those of all classes."""
    shape = Shape(1, 1024, 16, 16, 4096, 512, 1024, precision="bf16", cross_entropy="eager", cut=Cut("tp", 4))
    own, whole = (transformer(replace(shape, gather_logits=gather)).layers[-1] for gather in (False, True))
    assert whole.transient_bytes("F", 1) == 4 * own.transient_bytes("F", 1)
    assert [one.kind for s in whole.segments("F", 1) for one in s.exchanges] == ["all_gather"]
    assert [one.kind for s in own.segments("F", 1) for one in s.exchanges] == ["all_reduce"] * 3


def test_a_separate_gate_exchanges_the_gradient_of_its_input_twice() -> None:
    """Each of the two products all-reduces; with shards of the sequence their sum is scattered once."""
    for sequence, times in ((False, (2, 3)), (True, (2, 2))):
        shape = Shape(1, 1024, 16, 16, 4096, 512, 1024, precision="bf16", activation="swiglu")
        shape = replace(shape, cut=Cut("tp", 4, sequence=sequence))
        kind = "reduce_scatter" if sequence else "all_reduce"
        for separate, count in zip((False, True), times, strict=True):
            layer = transformer(replace(shape, separate_gate=separate)).layers[1]
            assert sum(one.kind == kind for s in layer.segments("B", 1) for one in s.exchanges) == count
            assert layer.parameters == transformer(shape).layers[1].parameters
