"""Kernel attention: FLOPs and bytes in closed form, the law of growth, the exchange of states, bad keys."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.operators.attentions.context_parallel import ContextCut
from clustersim.workloads.operators.attentions.core_attention import FlashAttention, Sizes
from clustersim.workloads.operators.attentions.kernel_attention import KernelAttention


def made(kind, *, masked=True, length=1024, context=None):
    sizes = Sizes(length, 12, 4, 64, masked=masked, precision="bf16")
    (operator,) = kind.operators(sizes, context) if context else kind.operators(sizes)
    return operator


def flops(kernels):
    return sum(kernel.flops for kernel in kernels)


@settings(deadline=None, max_examples=30)
@given(
    chunks=st.integers(1, 8), chunk=st.sampled_from([16, 64]), features=st.integers(8, 300), samples=st.integers(1, 3)
)
def test_flops_in_chunks_have_a_closed_form(chunks, chunk, features, samples):
    length = chunks * chunk
    operator = made(KernelAttention(features, chunk=chunk), length=length)
    # per position and head: scores and values within the chunk, the state made and used
    each = 2 * (chunk * features + chunk * 64 + 2 * features * 64)
    assert flops(operator.forward(samples)) == samples * 12 * length * each
    assert flops(operator.backward_input(samples)) == 2 * flops(operator.forward(samples))


def test_without_a_mask_there_is_one_state():
    operator = made(KernelAttention(64), masked=False)
    assert flops(operator.forward(2)) == 2 * 12 * 1024 * 4 * 64 * 64
    assert flops(operator.backward_input(2)) == 2 * flops(operator.forward(2))


def test_random_features_are_one_more_product_of_queries_and_of_keys():
    """Choromanski et al. 2021: 2 n d m each."""
    plain, random = (made(KernelAttention(256, random=one), masked=False) for one in (False, True))
    assert flops(random.forward(1)) - flops(plain.forward(1)) == 2 * 2 * 12 * 1024 * 64 * 256
    assert str(KernelAttention(256, random=True)) == "performer"


def test_time_is_linear_where_flash_attention_is_quadratic():
    kernel = [flops(made(KernelAttention(), length=n).forward(1)) for n in (4096, 65536)]
    square = [flops(FlashAttention(n, 12, 12, 64).forward(1)) for n in (4096, 65536)]
    assert kernel[1] == 16 * kernel[0]
    assert square[1] == 256 * square[0]


def test_it_keeps_features_and_a_denominator_for_each_row():
    operator = made(KernelAttention(128))
    inputs, features, rows = 1024 * 64 * (12 + 2 * 4) * 2, 2 * 1024 * 12 * 128 * 2, 1024 * 12 * 4
    assert operator.kept_bytes(3) == 3 * (inputs + features + rows)
    assert operator.recomputable_bytes(3) == 3 * (features + rows)


def exchanged(operator, phase):
    return [exchange for one in operator.segments(phase, 1) for exchange in one.exchanges]


@pytest.mark.parametrize("phase", ["F", "I"])
def test_ranks_of_a_sequence_exchange_states_whatever_its_length(phase):
    state = 12 * 64 * (64 + 1) * 2
    for length in (1024, 8192):
        of = {
            method: exchanged(
                made(KernelAttention(), length=length, context=ContextCut("cp", 4, method, zigzag)), phase
            )
            for method, zigzag in (("all_gather", False), ("ring", False))
        }
        (gathered,) = of["all_gather"]
        assert (gathered.kind, gathered.nbytes) == ("all_gather", 4 * state)
        assert [(one.kind, one.nbytes) for one in of["ring"]] == [("shift", state)] * 3
        (early_and_late,) = exchanged(made(KernelAttention(), context=ContextCut("cp", 4, "all_gather", True)), phase)
        assert early_and_late.nbytes == 2 * gathered.nbytes
    (summed,) = exchanged(made(KernelAttention(), masked=False, context=ContextCut("cp", 4, "ring", True)), phase)
    assert (summed.kind, summed.nbytes) == ("all_reduce", state)


def scenario(**changes):
    model = {"preset": "gpt2", "seq_length": 4096, "dropout": 0, "attention": {"kind": "linear"}}
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_a100_80gb", "nodes": 1},
            "model": {**model, **changes.pop("model", {})},
            "training": {"global_batch_size": 8, "micro_batch_size": 1, "precision": "bf16"},
            "parallelism": changes,
        }
    )


def test_tensor_and_sequence_parallelism_cut_heads_without_a_further_exchange():
    linear = scenario(tp=4, sequence_parallel=True).run().summary()["traffic_bytes"]["tp"]
    flash = scenario(tp=4, sequence_parallel=True, model={"attention": "flash"}).run().summary()["traffic_bytes"]["tp"]
    assert linear == flash


@pytest.mark.parametrize("method", ["ring", "all_gather", "ulysses"])
def test_context_parallelism_sends_less_than_keys_and_values(method):
    linear, flash = (
        scenario(cp=4, cp_method=method, model={"attention": attention}).run().summary()
        for attention in ({"kind": "linear"}, "flash")
    )
    assert linear["model_tflops_per_gpu"] > 0
    ratio = linear["traffic_bytes"]["cp"] / flash["traffic_bytes"]["cp"]
    # ulysses exchanges positions for heads in either case
    assert ratio == pytest.approx(1) if method == "ulysses" else ratio < 0.35


@pytest.mark.parametrize(
    ("attention", "told"),
    [
        ({"kind": "linear", "fetures": 3}, 'did you mean "features"'),
        ({"kind": "performer", "features": 0}, "features"),
        ({"kind": "linear", "rank": 3}, "rank"),
    ],
)
def test_bad_keys_are_told(attention, told):
    with pytest.raises(ScenarioError, match=told):
        scenario(model={"attention": attention})
