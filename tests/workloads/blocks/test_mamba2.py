"""Mamba-2: FLOPs in closed form and beside Megatron-LM's, bytes kept and exchanged, chunks, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from clustersim import BYTES, Accelerator, HiddenStates, Operator, Scenario, SimulatorError, model
from clustersim.topologies.catalogue import GPUS, device
from clustersim.workloads.blocks.mamba2 import Mamba2, StateSpaceScan
from clustersim.workloads.operators.attentions.context_parallel import ContextCut
from clustersim.workloads.operators.sharded import Cut

# Nemotron-H-8B
ROWS, FEATURES, HEADS, GROUPS, SIZE, STATE, CHUNK = 8192, 4096, 128, 8, 64, 128, 128
INNER = HEADS * SIZE
BLOCK = Mamba2(num_heads=HEADS, chunk_size=CHUNK)
HIDDEN = HiddenStates(ROWS, FEATURES, "bf16")
SCAN = StateSpaceScan(ROWS, HEADS, GROUPS, SIZE, STATE, CHUNK, "bf16")


def flops(operators: tuple[Operator, ...], *passes: str) -> float:
    return sum(kernel.flops for one in operators for name in passes for kernel in getattr(one, name)(1))


def test_flops_of_the_scan_are_those_of_its_products() -> None:
    """Dao and Gu 2024, section 6: C B^T, its product with x, and two products of states; backward twice as many."""
    forward = 2 * ROWS * (GROUPS * CHUNK * STATE + HEADS * CHUNK * SIZE + 2 * HEADS * SIZE * STATE)
    assert flops((SCAN,), "forward") == forward
    assert flops((SCAN,), "backward_input", "backward_weights") == pytest.approx(2 * forward)


def test_a_layer_has_the_flops_that_megatron_counts() -> None:
    """Megatron-LM, training/training.py, mamba_layer_flops: the scan is 7 x inner features x state, an estimate."""
    products = 2 * ROWS * FEATURES * (2 * INNER + 2 * GROUPS * STATE + HEADS + INNER)
    own = flops(BLOCK.operators(HIDDEN), "forward")
    assert own - flops((SCAN,), "forward") == products
    assert own == pytest.approx(products + 7 * ROWS * INNER * STATE, rel=0.01)


@pytest.mark.parametrize("sequence", [False, True])
def test_tensor_parallelism_halves_weights_scan_and_activations(sequence: bool) -> None:
    cut = Cut("tp", 2, sequence=sequence)
    share = 2 if sequence else 1
    whole = BLOCK.operators(HIDDEN)
    half = BLOCK.operators(replace(HIDDEN, cut=cut, kept_share=share))
    for one, other in zip(whole, half, strict=True):
        assert [t.count for t in one.tensors] == [2 * t.count for t in other.tensors]
    kept = [[one.kept_bytes(1) for one in operators] for operators in (whole, half)]
    assert kept[1][1:] == [nbytes / 2 for nbytes in kept[0][1:]]
    assert kept[1][0] == kept[0][0] / share
    assert flops(half, "forward", "backward_input", "backward_weights") == pytest.approx(
        flops(whole, "forward", "backward_input", "backward_weights") / 2
    )


def test_it_exchanges_what_attention_does() -> None:
    """An all-reduce of the hidden states in each pass; with shards of the sequence a gather and a scatter."""
    nbytes = ROWS * FEATURES * BYTES["bf16"]

    def sent(sequence: bool) -> list[tuple[str, str, float]]:
        cut = Cut("tp", 2, sequence=sequence)
        made = BLOCK.operators(replace(HIDDEN, cut=cut, kept_share=2 if sequence else 1))
        return [
            (phase, one.kind, one.nbytes)
            for phase in "FI"
            for operator in made
            for segment in operator.segments(phase, 1)
            for one in segment.exchanges
        ]

    assert sent(False) == [("F", "all_reduce", nbytes), ("I", "all_reduce", nbytes)]
    assert sorted(sent(True)) == [(phase, kind, nbytes) for phase in "FI" for kind in ("all_gather", "reduce_scatter")]


def test_context_parallelism_exchanges_positions_for_heads() -> None:
    """Megatron-LM, MambaContextParallel: z, x, B, C and dt ahead of the convolution, y behind the scan."""
    hidden = replace(HIDDEN, rows=ROWS // 16, context=ContextCut("cp", 16))
    made = BLOCK.operators(hidden)
    convolution, scan = made[1:3]
    sent = [one for operator in made for s in operator.segments("F", 1) for one in s.exchanges]
    # eight groups are repeated for sixteen ranks
    features = [INNER, INNER, 16 * STATE, 16 * STATE, HEADS, INNER]
    assert [one.nbytes for one in sent] == [ROWS // 16 * n * 2 for n in features]
    assert {one.kind for one in sent} == {"all_to_all"}
    back = [one.nbytes for operator in made for s in operator.segments("I", 1) for one in s.exchanges]
    assert sum(back) == sum(one.nbytes for one in sent)
    assert flops((scan,), "forward") == flops((replace(SCAN, heads=HEADS // 16, groups=1),), "forward")
    assert convolution.kept_bytes(1) == ROWS * (INNER // 16 + 2 * STATE) * 2
    assert sum(t.count for one in made for t in one.tensors) == sum(
        t.count for one in BLOCK.operators(HIDDEN) for t in one.tensors
    )


def test_short_chunks_have_more_states_and_long_ones_more_products() -> None:
    """The best chunk of an A100, forward and backward, is that of the authors of the kernels, 256."""
    a100: Accelerator = device(GPUS, "a100_80gb").accelerator()

    def seconds(chunk: int) -> float:
        scan = replace(SCAN, chunk=chunk)
        return sum(a100.kernel_seconds(kernel) for kernel in (*scan.forward(1), *scan.backward_input(1)))

    times = {chunk: seconds(chunk) for chunk in (16, 32, 64, 128, 256, 512, 1024, 8192)}
    assert min(times, key=lambda chunk: times[chunk]) == 256
    assert times[16] > 3 * times[256] < times[8192]
    bytes_of_states = [replace(SCAN, chunk=chunk, groups=0).transient_bytes("F", 1) for chunk in (64, 128)]
    assert bytes_of_states[0] == 2 * bytes_of_states[1]


def test_the_scan_takes_linear_time_and_attention_does_not() -> None:
    short, long = (flops((replace(SCAN, length=length),), "forward") for length in (8192, 65536))
    assert long == 8 * short


def test_a_sequence_shorter_than_a_chunk_is_one_chunk() -> None:
    assert replace(SCAN, length=100).forward(1) == replace(SCAN, length=100, chunk=100).forward(1)


def test_parameters_of_the_presets_are_the_published_ones() -> None:
    """Hand counts by transformers' modules: Mamba-2 2.7B by the sizes of its config, Nemotron-H-8B likewise."""
    layer = 2560 * (4 * 2560 + 2 * 128 + 80) + 5 * (5120 + 256) + 3 * 80 + 5120 + 5120 * 2560 + 2560
    assert model("mamba2_2_7b").parameters == 64 * layer + 50288 * 2560 + 2560 == 2_702_599_680
    mamba = 4096 * (2 * 8192 + 2 * 8 * 128 + 128) + 5 * (8192 + 2048) + 3 * 128 + 8192 + 8192 * 4096 + 4096
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096
    mlp = 2 * 4096 * 21504 + 4096
    counted = 24 * mamba + 4 * attention + 24 * mlp + 2 * 131072 * 4096 + 4096
    assert model("nemotron_h_8b").parameters == counted == 8_100_852_736
    # by the files of Nemotron 3 Nano, with the corrections of scores
    mamba = 2688 * (2 * 4096 + 2 * 8 * 128 + 64) + 5 * (4096 + 2048) + 3 * 64 + 4096 + 4096 * 2688 + 2688
    attention = 2 * 2688 * 4096 + 2 * 2688 * 256 + 2688
    experts = 129 * 2688 + 128 - 2688 + 128 * 2 * 2688 * 1856 + 2 * 2688 * 3712 + 2688
    counted = 23 * mamba + 6 * attention + 23 * experts + 2 * 131072 * 2688 + 2688
    assert model("nemotron3_nano_30b").parameters == counted == 31_577_940_288


def run(**sections: Any) -> Scenario:
    data = {
        "version": 1,
        "cluster": {"preset": "uniform", "gpus": 8, "bandwidth": "10 GB/s", "latency": "5 us"},
        "model": {"preset": "nemotron_h_8b", "num_layers": 2},
        "training": {"global_batch_size": 8, "micro_batch_size": 1, "precision": "bf16"},
        "network": {"transport": "ideal"},
    }
    data["model"] |= sections.pop("model", {})
    return Scenario.model_validate({**data, **sections})


FAULTS = {
    "unknown key": ({"mamba2": {"chunk": 3}}, {}, "blocks.mamba2.chunk: unknown key"),
    "zero": ({"mamba2": {"chunk_size": 0}}, {}, "blocks.mamba2.chunk_size: must be at least 1, not 0"),
    "text": ({"mamba2": {"use_conv_bias": "maybe"}}, {}, "blocks.mamba2.use_conv_bias: must be true or false"),
    "no mapping": ({"mamba2": 3}, {}, "blocks.mamba2: must be a mapping"),
    "groups": ({"mamba2": {"n_groups": 7}}, {}, "blocks.mamba2.n_groups: 7 does not divide the 128 heads"),
    "heads": (
        {"mamba2": {"num_heads": None, "head_dim": 63}},
        {},
        "head_dim: 63 does not divide expand x hidden_size = 8192; give num_heads",
    ),
    "nobody's": ({"mamba": {}}, {}, "blocks.mamba: no layer has it; layers have"),
    "attention's": ({"attention": {}}, {}, "blocks.attention: has its keys in the model section itself"),
    "tp": (
        {"mamba2": {"n_groups": 1}},
        {"tp": 2},
        "tp = 2 does not divide the 1 groups of mamba2 of nemotron-h-8b; try 1",
    ),
    "cp": (
        {"mamba2": {"n_groups": 8, "num_heads": 24}},
        {"cp": 16},
        "cp = 16 does not fit nemotron-h-8b: its 24 heads",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    blocks, parallelism, message = FAULTS[name]
    gpus = parallelism.get("cp", 8)
    cluster = {"preset": "uniform", "gpus": gpus, "bandwidth": "10 GB/s", "latency": "5 us"}
    with pytest.raises(SimulatorError) as error:
        run(model={"blocks": blocks}, parallelism=parallelism, cluster=cluster).schedule()
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"layers": ["mambo"]},
            "layers.0: must be attention, mlp, attention_beside_mamba2, compressed_attention, feed_forward, "
            "gated_delta_net, grouped_attention, kimi_delta_attention, mamba, mamba2 or short_convolution",
        ),
        ({"layers": [[]]}, "layers.0: must be text, not a list; must not be empty"),
        ({"layers": []}, "layers: must not be empty"),
        ({"layers": None}, "blocks: belongs to layers, which have mamba2; give layers too"),
        ({"block": "parallel"}, "layers: is not modelled with block: parallel; leave one of them out"),
        ({"head": "masked_lm"}, "layers: is not modelled with head: masked_lm; leave one of them out"),
        ({"lora": {"rank": 8}}, "layers: is not modelled with lora; leave one of them out"),
    ],
)
def test_faults_of_layers(more: dict[str, Any], message: str) -> None:
    with pytest.raises(SimulatorError) as error:
        run(model=more)
    assert message in str(error.value)
