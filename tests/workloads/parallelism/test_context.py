"""Context parallelism in whole scenarios: laws, bytes by formula, groups, memory, and measured attention calls."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.results.result import Result
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective, Compute, Send
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies import cluster
from clustersim.workloads.operators.attentions.context_parallel import ContextCut, cut_over
from clustersim.workloads.operators.attentions.core_attention import FlashAttention
from clustersim.workloads.operators.by_coordinate import with_neighbours
from clustersim.workloads.operators.lowering import lowered
from clustersim.workloads.operators.model import OperatorLayer
from clustersim.workloads.software_stack import software

DATA = Path(__file__).parents[3] / "../shared/data/context_parallel.csv"
LAYERS, HIDDEN, GROUPS, LENGTH, WIDTH = 2, 64, 4, 256, 2
MODEL = {
    "num_layers": LAYERS,
    "hidden_size": HIDDEN,
    "num_attention_heads": 8,
    "num_key_value_heads": GROUPS,
    "seq_length": LENGTH,
    "vocab_size": 1000,
    "attention": "flash",
    "dropout": 0,
    "position_embedding_type": "rope",
}


def scenario(parallelism: dict[str, Any], gpus: int = 8, **sections: Any) -> Scenario:
    model, training = {**MODEL, **sections.pop("model", {})}, sections.pop("training", {})
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": gpus, "bandwidth": "10 GB/s", "latency": "5 us"},
            "model": model,
            "training": {"global_batch_size": 8, "micro_batch_size": 1, "precision": "bf16", **training},
            "parallelism": parallelism,
            "network": {"transport": "ideal"},
            **sections,
        }
    )


def run(parallelism: dict[str, Any], gpus: int = 8, **sections: Any) -> Result:
    result = scenario(parallelism, gpus, **sections).run()
    assert isinstance(result, Result)
    return result


def attention_seconds(result: Result) -> list[float]:
    """By rank, the time of the blocks of scores in the forward pass of the first layer."""
    schedule = result.scenario.schedule()
    return [
        sum(
            sum(kernel.flops for kernel in op.kernels if kernel.attention)
            for op in schedule.program(rank).ops
            if isinstance(op, Compute) and str(op.action) == "0F0" and op.layer == "layer 0"
        )
        for rank in range(schedule.mesh.world_size)
    ]


def test_one_rank_adds_nothing() -> None:
    plain, one = run({}), run({"cp": 1})
    a, b = plain.summary(), one.summary()
    for summary in (a, b):
        summary["simulation"].pop("wall_s")
    assert a == b
    assert "cp" not in one.scenario.schedule().mesh.axes
    assert one.scenario.derived.described == "tp 1 x pp 1 x dp 8"


def test_groups_in_the_order_of_megatron() -> None:
    """tp-cp-dp-pp; gradients are reduced over all ranks with the same weights, the norm over the others."""
    mesh = scenario({"tp": 2, "cp": 2, "pp": 2}, 16).schedule().mesh
    assert mesh.axes["tp"].groups[:2] == ((0, 1), (2, 3))
    assert mesh.axes["cp"].groups[:3] == ((0, 2), (1, 3), (4, 6))
    assert mesh.axes["pp"].groups[0] == (0, 8)
    assert mesh.axes["dp"].groups[:2] == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert mesh.axes["norm"].groups[0] == (0, 8, 1, 9)
    asked = scenario({"cp": 2, "tp": 2, "rank_order": ["cp", "tp", "dp", "pp"]}).schedule().mesh
    assert asked.axes["cp"].groups[0] == (0, 1)
    # an axis of one rank may stand in the order, and an axis of several must
    assert scenario({"rank_order": ["tp", "cp", "dp", "pp"]}).derived.replicas == 8
    with pytest.raises(ScenarioError, match=r"rank_order: must name each of tp, cp, dp and pp once, not tp, dp, pp"):
        scenario({"cp": 2, "rank_order": ["tp", "dp", "pp"]})


BLOCK = 2 * LENGTH // 4 * GROUPS * HIDDEN // 8 * WIDTH
"""Bytes of the keys and values of one of four ranks, for one sequence."""

QUERIES = LENGTH // 4 * HIDDEN * WIDTH


@pytest.mark.parametrize(
    ("method", "forward", "backward"),
    [
        # blocks to the next rank; backward their gradients too
        ("ring", 3 * BLOCK, 2 * 3 * BLOCK),
        # a ring gathers in as many bytes; backward a gather and a reduce-scatter
        ("all_gather", 3 * BLOCK, 2 * 3 * BLOCK),
        # three quarters of queries, keys, values and outputs go to other ranks
        ("ulysses", 3 / 4 * (2 * QUERIES + BLOCK), 3 / 4 * (2 * QUERIES + BLOCK)),
    ],
)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_bytes(method: str, forward: float, backward: float, recompute: str) -> None:
    """What all ranks send over cp in a step, exactly."""
    result = run({"cp": 4, "cp_method": method}, training={"recompute": recompute})
    # recomputation of attention exchanges again what it needs
    passes, sequences = forward * (1 if recompute == "none" else 2) + backward, 8
    assert result.summary()["traffic_bytes"]["cp"] == pytest.approx(4 * sequences * LAYERS * passes, rel=1e-12)


@pytest.mark.parametrize(("heads", "ranks"), [(1, 4), (2, 8), (4, 4), (8, 4)])
def test_fewer_key_and_value_heads_than_ranks_are_repeated(heads: int, ranks: int) -> None:
    """Each rank receives whole heads: what ulysses sends is that of a model with as many as there are ranks."""

    def sent(key_value_heads: int) -> float:
        result = run({"cp": ranks, "cp_method": "ulysses"}, model={"num_key_value_heads": key_value_heads})
        return float(result.summary()["traffic_bytes"]["cp"])

    assert sent(heads) == pytest.approx(sent(max(heads, ranks)), rel=1e-12)


def test_gradients_are_reduced_over_all_ranks_with_the_same_weights() -> None:
    for method in ("ddp", "zero", "fsdp"):
        data, training = {"method": method}, {"global_batch_size": 16}
        with_cp, without = (run({"cp": degree, "data": data}, training=training) for degree in (4, 1))
        assert with_cp.scenario.derived.replicas == 2
        for category in ("parameters", "gradients", "optimizer"):
            held = [one.summary()["memory"]["by_category_bytes"][category] for one in (with_cp, without)]
            assert held[0] == held[1]
        if method != "fsdp":
            # FSDP communicates in each of the four times as many micro-batches
            assert with_cp.summary()["traffic_bytes"]["dp"] == without.summary()["traffic_bytes"]["dp"]


def test_the_slowest_rank_of_a_causal_contiguous_ring() -> None:
    """It computes 2 - 1/cp times the mean, and the others wait for it; a zigzag ring has no such rank."""
    zigzag, contiguous = (run({"cp": 4, "cp_layout": layout}) for layout in ("zigzag", "contiguous"))
    flops = attention_seconds(contiguous)
    assert max(flops) / (sum(flops) / len(flops)) == pytest.approx(2 - 1 / 4)
    assert len(set(attention_seconds(zigzag))) == 1
    # GPUs of the cluster compute a FLOP in a second: the slowest rank's attention is all that differs
    slower = contiguous.summary()["step_time_s"] - zigzag.summary()["step_time_s"]
    micro_batches, passes = 4, 1 + 2
    expected = (1 - 1 / 4) * attention_seconds(zigzag)[0] * LAYERS * micro_batches * passes
    assert slower == pytest.approx(expected, rel=1e-9)
    assert "bubble" in contiguous.summary()["breakdown_s"]
    bidirectional = {"head": "masked_lm"}
    both = [run({"cp": 4, "cp_layout": layout}, model=bidirectional) for layout in ("zigzag", "contiguous")]
    assert both[0].summary()["step_time_s"] == both[1].summary()["step_time_s"]


def test_flops_and_activations_are_divided() -> None:
    whole, *parts = (run({"cp": degree, "dp": 1, "cp_method": m}, degree) for degree, m in METHODS)
    for part, (degree, method) in zip(parts, METHODS[1:], strict=True):
        assert part.summary()["mfu"] * part.summary()["step_time_s"] * degree == pytest.approx(
            whole.summary()["mfu"] * whole.summary()["step_time_s"]
        )
        held = [one.summary()["memory"]["by_category_bytes"]["activations"] for one in (whole, part)]
        assert degree * held[1] == pytest.approx(held[0]), method


METHODS: list[tuple[int, Any]] = [(1, None), (4, "ring"), (4, "all_gather"), (4, "ulysses"), (2, "zigzag")]


@pytest.mark.parametrize("method", ["ring", "all_gather", "ulysses"])
@pytest.mark.parametrize(
    "others",
    [
        {"tp": 2, "sequence_parallel": True},
        {"pp": 2, "schedule": "interleaved", "virtual_stages": 1},
        {"tp": 2, "pp": 2, "data": {"method": "zero", "stage": 1}},
        {"data": {"method": "fsdp", "hybrid": 2}},
        {"data": {"method": "zero", "stage": 3}},
    ],
)
def test_combinations(method: str, others: dict[str, Any]) -> None:
    made = scenario({"cp": 2, "cp_method": method, **others}, training={"recompute": "full"})
    schedule = made.schedule()
    check(schedule)
    cp = [op for program in schedule.programs for op in program.ops if getattr(op, "over", "") == "cp"]
    assert {type(op) for op in cp if isinstance(op, Collective | Send)} == {Send if method == "ring" else Collective}
    result = made.run()
    assert isinstance(result, Result)
    assert result.summary()["traffic_bytes"]["cp"] > 0


def test_unequal_replicas_share_sequences_too() -> None:
    mesh = scenario({"cp": 2, "pp": 2, "dp": [3, 1]}, training={"global_batch_size": 6}).schedule().mesh
    assert mesh.axes["cp"].groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert mesh.axes["dp"].groups == (tuple(range(6)), (6, 7))


def test_a_million_tokens() -> None:
    """Activations of a rank are those of its share; keys and values of all others pass it."""
    length, one = 2**20, {"num_layers": 1}
    few = run({"cp": 2, "dp": 1}, 2, model={"seq_length": length // 8, **one}, training={"global_batch_size": 1})
    many = run({"cp": 16, "dp": 1}, 16, model={"seq_length": length, **one}, training={"global_batch_size": 1})
    held = [result.summary()["memory"]["by_category_bytes"]["activations"] for result in (few, many)]
    assert held[0] == held[1]
    block = 2 * length // 16 * GROUPS * HIDDEN // 8 * WIDTH
    assert many.summary()["traffic_bytes"]["cp"] == pytest.approx(16 * 3 * 15 * block)


@pytest.mark.parametrize(
    ("parallelism", "model", "message"),
    [
        ({"cp": 2, "cp_method": "circle"}, {}, "parallelism.cp_method: "),
        ({"cp_method": "ring"}, {}, "parallelism.cp_method: belongs to context parallelism, but cp is 1"),
        ({"cp_layout": "zigzag"}, {}, "parallelism.cp_layout: belongs to context parallelism, but cp is 1"),
        (
            {"cp": 2, "cp_method": "zigzag", "cp_layout": "contiguous"},
            {},
            "parallelism.cp_layout: contiguous contradicts cp_method: zigzag; take cp_method: ring",
        ),
        (
            {"cp": 2, "cp_method": "ulysses", "cp_layout": "zigzag"},
            {},
            "parallelism.cp_layout: belongs to ring and all_gather; with ulysses a rank attends to all positions",
        ),
        (
            {"cp": 8, "cp_method": "ulysses"},
            {"num_attention_heads": 12, "head_dim": 8},
            "parallelism.cp: cp = 8 does not divide the 12 heads of transformer; cp_method: ulysses gives each rank "
            "some of them; try 6 or 12",
        ),
        (
            {"cp": 8, "cp_method": "ulysses"},
            {"num_attention_heads": 24, "num_key_value_heads": 12, "head_dim": 8},
            "parallelism.cp: cp = 8 does not divide the 12 key and value heads of transformer, nor they it; cp_method: "
            "ulysses gives each rank some of them, or repeats of one; try 6 or 12",
        ),
        (
            {"cp": 4},
            {"seq_length": 100},
            "parallelism.cp: seq_length = 100 of transformer is not divisible by 2 x cp = 8, the chunks of cp_layout: "
            "zigzag",
        ),
        (
            {"cp": 8, "cp_layout": "contiguous"},
            {"seq_length": 100},
            "parallelism.cp: seq_length = 100 of transformer is not divisible by cp = 8; try 5 or 10",
        ),
        (
            {"cp": 2, "tp": 4, "sequence_parallel": True},
            {"seq_length": 36},
            "parallelism.cp: seq_length = 36 of transformer is not divisible by cp 2 x tp 4, which sequence_parallel "
            "needs",
        ),
        (
            {"cp": 2},
            {"attention": "unfused"},
            "parallelism.cp: cp = 2: cp_method: ring needs attention: flash, and transformer has unfused; cp_method: "
            "ulysses takes any",
        ),
        (
            {"cp": 2},
            {"attention_window": 8},
            "parallelism.cp: cp = 2: cp_method: ring computes whole blocks of scores, and transformer has an "
            "attention_window; take all_gather",
        ),
    ],
)
def test_what_is_refused(parallelism: dict[str, Any], model: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(message)):
        scenario(parallelism, model=model).schedule()


def test_contiguous_parts_may_be_odd_and_heads_need_no_flash() -> None:
    assert scenario({"cp": 4, "cp_layout": "contiguous"}, model={"seq_length": 100}).schedule()
    unfused = run({"cp": 2, "cp_method": "ulysses"}, model={"attention": "unfused"}).summary()
    whole = run({}, model={"attention": "unfused"}).summary()
    halves = [one["memory"]["by_category_bytes"]["activations"] for one in (unfused, whole)]
    assert 2 * halves[0] == pytest.approx(halves[1])


def _call(gpu: str, method: str, *, backward: bool) -> float:
    """Seconds of one attention call over 64K tokens; *method* ideal: of one GPU, divided by eight."""
    length, ranks = (65_536, 1) if method == "ideal" else (8192, 8)
    whole = FlashAttention(length, 32, 8, 128, drop=False, precision="bf16")
    operator = cut_over(whole, ContextCut("cp", ranks, "ring", zigzag=method == "zigzag"), fused_sum=False)
    layer = OperatorLayer("attention", "transformer", (operator,), 1.0)
    ops = [op for phase in "FI"[: 1 + backward] for op in lowered(Action(phase, 0, 0), layer, 1, {})]
    schedule = Schedule(Mesh.regular({"cp": ranks}), (Program("rank", tuple(ops)),), (0,) * ranks)
    node = {"preset": "dgx_h100", "node": {"accelerator": "h800"}} if gpu == "8xH800" else {"preset": "dgx_a100_80gb"}
    timeline = simulate(with_neighbours(schedule), cluster(node), transport=nccl(), software=software("fsdp_sdpa"))
    return timeline.step_time / (8 if method == "ideal" else 1)


Calls = dict[tuple[str, bool, str], tuple[float, float]]
"""(predicted, measured) seconds by GPU, whether backward, and method."""


@pytest.fixture(scope="module")
def calls() -> Calls:
    """zhuzilin/ring-flash-attention, README.md; *ideal*: flash attention on one GPU, divided by eight."""
    if not DATA.exists():
        pytest.skip("the measurements lie beside the repository")
    found: Calls = {}
    for row in csv.DictReader(DATA.open()):
        gpu, backward, method = row["hardware"], "backward" in row["model"], row["method"].split()[0].strip(":")
        if "batch API" in row["model"] and method in ("ideal", "ring", "zigzag"):
            found[gpu, backward, method] = _call(gpu, method, backward=backward), 1 / float(row["value"])
    assert len(found) == 12
    return found


def test_measured_calls_of_ring_attention(calls: Calls) -> None:
    """10 % in the mean; without the start of a tile it would be 24 %."""
    errors = [abs(predicted / measured - 1) for predicted, measured in calls.values()]
    assert sum(errors) / len(errors) < 0.12


def _relative_errors(calls: Calls) -> list[float]:
    """The errors of ring and zigzag relative to the ideal call."""
    relative = {
        (gpu, backward, method): [
            seconds / ideal for seconds, ideal in zip(pair, calls[gpu, backward, "ideal"], strict=True)
        ]
        for (gpu, backward, method), pair in calls.items()
    }
    return [predicted / measured - 1 for predicted, measured in relative.values() if predicted != 1.0]


def test_measured_blocks_run_faster_than_one_long_call(calls: Calls) -> None:
    """A ring computes 7.5 blocks, a zigzag and the ideal 4: whatever sums and messages take, the two differ by 7/8 of
    the ideal if a block runs as fast as a long call. So it is here; measured forward it is 0.83 to 0.85 of that.
    """
    for gpu in ("8xH800", "8xA100"):
        ideal, ring, zigzag = (calls[gpu, False, method] for method in ("ideal", "ring", "zigzag"))
        predicted, measured = ((b - c) / (7 / 8 * a) for a, b, c in zip(ideal, ring, zigzag, strict=True))
        assert predicted == pytest.approx(1.0, abs=0.02)
        assert 0.82 < measured < 0.86


@pytest.mark.xfail(
    strict=True,
    reason="6.5 % in the mean, since measured blocks take 15 to 17 % less than their part of one long call; without "
    "starts of tiles it would be 3.8 %, by calls that are 24 % off instead of 10 %",
)
def test_measured_ring_attention(calls: Calls) -> None:
    errors = _relative_errors(calls)
    assert len(errors) == 8
    assert sum(map(abs, errors)) / len(errors) < 0.05


@pytest.mark.xfail(strict=True, reason="three of eight are 9 to 10 % off, rings of long blocks")
def test_each_measured_ring_attention(calls: Calls) -> None:
    assert max(map(abs, _relative_errors(calls))) < 0.08
