"""Attention by torch's operators: kernels, bytes and what is kept, against torch, which is watched op by op.

A processor has no CUDA, but torch's autocast of CUDA can be asked there with tensors that have no data: which operators
it casts is tested so, forward; the same operators with the casts written out then run forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.workloads.operators.attentions.core_attention import SCALED_IN_FP32, CoreAttention
from clustersim.workloads.operators.attentions.cross_attention import CrossAttention
from clustersim.workloads.operators.attentions.torch_softmax import copied_heads
from clustersim.workloads.software_stack import software
from tests.watched import watched

SAMPLES, HEADS, LENGTH, SIZE = 2, 4, 128, 8
SCORES = SAMPLES * HEADS * LENGTH**2

Attend = Callable[..., Any]


def bytes_of(values: Any) -> int:
    """Of one tensor or several; what is expanded counts once."""
    given = values if isinstance(values, list | tuple) else [values]
    return sum(
        prod(size for size, stride in zip(one.shape, one.stride(), strict=True) if stride) * one.itemsize
        for one in given
    )


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch itself is asked")


def by_models(torch: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Attention as models write it that leave the types to autocast, such as nanoGPT and BERT."""
    scores = (q @ k.transpose(-1, -2)) * 0.5 + mask.to(q.dtype)
    return torch.nn.functional.dropout(scores.softmax(-1), 0.1) @ v


def by_transformers(torch: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    """As Transformers' modeling_gpt2.py, ``eager_attention_forward``: the mask is in fp32."""
    scores = (q @ k.transpose(-1, -2)) * 0.5 + mask
    return torch.nn.functional.dropout(scores.softmax(-1).type(v.dtype), 0.1) @ v


def with_casts(torch: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    """`by_models` with the casts of autocast written out."""
    scores = (q @ k.transpose(-1, -2)) * 0.5 + mask.to(q.dtype)
    return torch.native_dropout(scores.float().softmax(-1), 0.1, True)[0].to(q.dtype) @ v


def with_a_wide_mask(torch: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    """`by_transformers`, which needs no cast of autocast's."""
    scores = (q @ k.transpose(-1, -2)) * 0.5 + mask
    return torch.native_dropout(scores.softmax(-1).to(v.dtype), 0.1, True)[0] @ v


def in_16_bits(torch: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    """`by_models` without autocast."""
    scores = (q @ k.transpose(-1, -2)) * 0.5 + mask.to(q.dtype)
    return torch.native_dropout(scores.softmax(-1), 0.1, True)[0] @ v


def by_megatron(torch: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Megatron-LM, FusedScaleMaskSoftmax.forward_torch_softmax and ``attention_mask_func``."""
    scores = (q @ k.transpose(-1, -2)).float() * 0.5
    scores.masked_fill_(mask < 0, -10000.0)
    return torch.native_dropout(scores.softmax(-1).to(q.dtype), 0.1, True)[0] @ v


def operands(torch: Any, kind: Any, device: str = "cpu") -> tuple[Any, ...]:
    """Queries, keys and values that ask for gradients, and an fp32 mask."""
    made = [torch.empty(SAMPLES, HEADS, LENGTH, SIZE, dtype=kind, device=device) for _ in range(3)]
    return *made, torch.zeros(1, 1, LENGTH, LENGTH, device=device)


def dispatched(torch: Any, run: Callable[[], Any]) -> list[tuple[str, list[Any]]]:
    """What *run* calls, without views: (operator, types of what it returns)."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    found: list[tuple[str, list[Any]]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func.namespace == "aten" and not func.is_view and func.overloadpacket.__name__ != "_unsafe_view":
                found.append((func.overloadpacket.__name__, [one.dtype for one in tree_leaves(result)]))
            return result

    with Watch(), torch.no_grad():
        run()
    return found


def on_cuda(torch: Any, attend: Attend, kind: Any) -> list[tuple[str, list[Any]]]:
    """The operators of *attend* under the autocast of CUDA."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with FakeTensorMode():
        given = operands(torch, kind, "cuda")
        try:
            torch.set_autocast_dtype("cuda", kind)
            torch.set_autocast_enabled("cuda", True)
            return dispatched(torch, lambda: attend(torch, *given))
        finally:
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])


@pytest.mark.parametrize(("models", "written_out"), [(by_models, with_casts), (by_transformers, with_a_wide_mask)])
def test_autocast_runs_what_is_written_out_here(torch: Any, models: Attend, written_out: Attend) -> None:
    bf16 = torch.bfloat16
    given = operands(torch, bf16)
    assert on_cuda(torch, models, bf16) == dispatched(torch, lambda: written_out(torch, *given))


def test_a_softmax_of_fp16_casts_as_it_reads(torch: Any) -> None:
    """One operator fewer than in bf16, as it is counted."""
    half, brain = (on_cuda(torch, by_models, kind) for kind in (torch.float16, torch.bfloat16))
    assert len(half) == len(brain) - 1
    assert ("_softmax", [torch.float32]) in half
    counted = [
        sum(kernel.launches for kernel in attention(precision, "ddp").forward(SAMPLES))
        for precision in ("fp16", "bf16")
    ]
    # the mask is cast in neither model, nor counted
    assert counted == [len(half) - 1, len(brain) - 1]


def attention(precision: str, stack: str) -> CoreAttention:
    in_fp32 = software(stack).fp32_scores
    return CoreAttention(LENGTH, HEADS, HEADS, SIZE, fused=False, precision=precision, in_fp32=in_fp32)


MEGATRON = CoreAttention(LENGTH, HEADS, HEADS, SIZE, precision="bf16", group=3)

CASES: dict[str, tuple[Attend, CoreAttention]] = {
    "models under autocast": (with_casts, attention("bf16", "ddp")),
    "Transformers under autocast": (with_a_wide_mask, attention("bf16", "huggingface")),
    "models in 16 bits": (in_16_bits, attention("bf16", "fsdp")),
    "in fp32": (in_16_bits, attention("fp32", "ddp")),
    "Megatron-LM without its fused softmax": (by_megatron, MEGATRON),
}


@pytest.mark.parametrize(("attend", "core"), CASES.values(), ids=CASES)
def test_attention_is_what_torch_does(torch: Any, attend: Attend, core: CoreAttention) -> None:
    """Kernels and their bytes, and what is kept; queries, keys, values and the mask are small beside the scores."""
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[core.precision]
    *given, mask = operands(torch, kind)
    for one in given:
        one.requires_grad_()
    mask = mask.to(kind) if attend in (with_casts, in_16_bits) else mask
    saved: dict[int, Any] = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.setdefault(t.data_ptr(), t), lambda t: t):
        made = attend(torch, *given, mask)
    kept = sum(one.numel() * one.element_size() for one in saved.values() if one.numel() == SCORES)
    assert kept == core.recomputable_bytes(SAMPLES)
    del made
    results: list[Any] = []
    forward = watched(torch, lambda: results.append(attend(torch, *given, mask)), SCORES, on_cuda=True)
    gradient = torch.ones_like(results[0])
    backward = watched(torch, lambda: torch.autograd.grad(results[0], given, gradient), SCORES, on_cuda=True)
    width = kind.itemsize
    for kernels, seen in ((core.forward(SAMPLES), forward), (core.backward_input(SAMPLES), backward)):
        products = sum(1 for kernel in kernels if kernel.flops)
        assert sum(kernel.launches for kernel in kernels) == seen.kernels
        moved = sum(kernel.nbytes for kernel in kernels if not kernel.flops)
        assert moved == seen.moved - products * SCORES * width
        assert sum(kernel.accesses for kernel in kernels) == seen.accesses


def heads_of(torch: Any, x: Any, weights: list[Any], keys: int) -> Any:
    """Attention of *x* by Transformers' models: one map or three, heads, repeated keys and values (repeat_kv)."""
    made = [x @ weight for weight in weights]
    given = made if len(made) > 1 else made[0].split([HEADS * SIZE, keys * SIZE, keys * SIZE], dim=-1)
    q, k, v = (one.view(SAMPLES, LENGTH, -1, SIZE).transpose(1, 2) for one in given)
    if keys < HEADS:
        repeated = SAMPLES, keys, HEADS // keys, LENGTH, SIZE
        k, v = (one[:, :, None].expand(repeated).reshape(SAMPLES, HEADS, LENGTH, SIZE) for one in (k, v))
    attended = (q @ k.transpose(-1, -2)).softmax(-1) @ v
    return attended.transpose(1, 2).reshape(SAMPLES, LENGTH, HEADS * SIZE)


@pytest.mark.parametrize(("joint", "keys"), [(True, HEADS), (False, HEADS), (True, 2), (False, 2)])
def test_heads_are_copied_as_torch_does(torch: Any, joint: bool, keys: int) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    queries, each = HEADS * SIZE, keys * SIZE
    shapes = [queries + 2 * each] if joint else [queries, each, each]
    weights = [torch.randn(queries, many, dtype=torch.bfloat16, requires_grad=True) for many in shapes]
    x = torch.randn(SAMPLES, LENGTH, queries, dtype=torch.bfloat16)
    moved: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func.overloadpacket.__name__ in ("clone", "cat", "sum"):
                moved.append(bytes_of(args[0]) + bytes_of(result))
            return result

    results: list[Any] = []
    with Watch():
        results.append(heads_of(torch, x, weights, keys))
    forward = moved.copy()
    moved.clear()
    with Watch():
        torch.autograd.grad(results[0], weights, torch.ones_like(results[0]))
    made = copied_heads(LENGTH, queries, each, "bf16", joint=joint)
    for kernels, seen in ((made.forward(SAMPLES), forward), (made.backward_input(SAMPLES), moved)):
        assert sum(kernel.nbytes for kernel in kernels) == pytest.approx(sum(seen))
        assert sum(kernel.accesses for kernel in kernels) == pytest.approx(sum(seen) / 2)
        assert sum(kernel.launches for kernel in kernels) == len(seen)


def test_cross_attention_has_the_same_kernels() -> None:
    """For as many keys as queries."""
    core = attention("bf16", "ddp")
    cross = CrossAttention(**vars(core), keys=LENGTH)
    assert cross.forward(SAMPLES) == core.forward(SAMPLES)
    assert [one.nbytes for one in cross.backward_input(2)] == [one.nbytes for one in core.backward_input(2)]
    assert cross.recomputable_bytes(SAMPLES) == core.recomputable_bytes(SAMPLES)


@pytest.mark.parametrize(
    ("stack", "in_fp32"),
    [
        ("ddp", ("softmax", "dropout")),
        ("ddp_sdpa", ("softmax", "dropout")),
        ("huggingface", ("mask", "softmax")),
        ("aa_scaling_torch", SCALED_IN_FP32),
        ("internlm", ()),
        ("huggingface_deepspeed", ()),
        ("fsdp", ()),
        ("megatron", ()),
    ],
)
def test_the_stack_says_what_runs_in_fp32(stack: str, in_fp32: tuple[str, ...]) -> None:
    assert software(stack).fp32_scores == in_fp32


def step(software: Any, **model: Any) -> dict[str, Any]:
    scenario = {
        "version": 1,
        "cluster": {"preset": "dgx_h200", "nodes": 1, "node": {"accelerators": 1}},
        "model": {"preset": "gpt2", **model},
        "training": {"global_batch_size": 8, "precision": "bf16"},
        "software": software,
    }
    return dict(Scenario.model_validate(scenario).run().summary())


def test_autocast_costs_eager_models_time_and_memory_and_none_of_those_with_fused_kernels() -> None:
    """Without autocast's fp32 the same kernels move about half of the bytes."""
    none = {"preset": "ddp", "fp32_scores": [], "accumulation": "fused"}
    eager, narrow = (step(one) for one in ("ddp", none))
    assert 1.25 * narrow["step_time_s"] < eager["step_time_s"] < 2 * narrow["step_time_s"]
    assert eager["memory"]["peak_bytes"] > narrow["memory"]["peak_bytes"]
    flash = {"attention": "flash", "activation": "gelu"}
    own = {"preset": "ddp", "fp32_scores": []}
    assert step("ddp", **flash)["step_time_s"] == step(own, **flash)["step_time_s"]
