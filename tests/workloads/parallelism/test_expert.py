"""Expert parallelism: layouts, bytes to each peer, uneven loads, and what the degrees of one rank add: nothing."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.results.result import Result
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import BySender, Collective, Compute

H, F, EXPERTS, TOPK, LENGTH, LAYERS = 64, 96, 8, 2, 128, 2
WIDTH = 2

MODEL = {
    "num_layers": LAYERS,
    "hidden_size": H,
    "num_attention_heads": 4,
    "ffn_hidden_size": F,
    "seq_length": LENGTH,
    "vocab_size": 1000,
    "activation": "swiglu",
    "normalization": "rmsnorm",
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "tie_embeddings": False,
    "dropout": 0,
    "attention": "flash",
    "num_experts": EXPERTS,
    "moe_router_topk": TOPK,
}


def scenario(parallelism: dict[str, Any], gpus: int = 8, batch: int = 16, **model: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": gpus, "bandwidth": "10 GB/s", "latency": "1 us"},
            "model": {**MODEL, **model},
            "training": {"global_batch_size": batch, "micro_batch_size": 1, "precision": "bf16"},
            "parallelism": parallelism,
            "network": {"transport": "ideal"},
            "software": "ideal",
        }
    )


def run(parallelism: dict[str, Any], gpus: int = 8, batch: int = 16, **model: Any) -> Result:
    return scenario(parallelism, gpus, batch, **model).run()


def exchanges(made: BuiltScenario, rank: int, over: str) -> list[Collective]:
    return [op for op in made.schedule().program(rank).ops if isinstance(op, Collective) and op.over == over]


def of_tokens(made: BuiltScenario, rank: int) -> list[Collective]:
    """The exchanges of tokens, without those of their counts."""
    return [op for op in exchanges(made, rank, "ep") if op.kind == "all_to_all"]


def count_bytes(ranks: int, micro_batches: int, layers: int = LAYERS) -> int:
    """What one rank sends for counts: by a ring those of all ranks but one, 8 bytes an expert and forward pass."""
    return layers * micro_batches * (ranks - 1) * EXPERTS * 8


def test_the_layout_of_experts_is_folded_onto_that_of_attention() -> None:
    """arXiv:2504.14960, section 3: attention has tp 2 x dp 4, experts ep 4 x expert dp 2, over the same ranks."""
    mesh = scenario({"tp": 2, "sequence_parallel": True, "ep": 4, "expert_tp": 1}).schedule().mesh
    assert mesh.axes["tp"].groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert mesh.axes["dp"].groups == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert mesh.axes["ep"].groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert mesh.axes["dp.expert"].groups == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_experts_are_shared_by_the_ranks_of_tensor_parallelism_unless_told() -> None:
    mesh = scenario({"tp": 2, "sequence_parallel": True, "ep": 4}).schedule().mesh
    assert mesh.axes["ep.tp"].groups == mesh.axes["tp"].groups
    assert mesh.axes["ep"].groups == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert all(len(group) == 1 for group in mesh.axes["dp.expert"].groups)


def test_every_pipeline_stage_has_a_layout_of_its_own() -> None:
    mesh = scenario({"pp": 2, "ep": 2}).schedule().mesh
    assert mesh.axes["ep"].groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert mesh.axes["dp.expert"].groups == ((0, 2), (1, 3), (4, 6), (5, 7))


@pytest.mark.parametrize(
    ("parallelism", "rows", "sources"),
    [
        ({"ep": 4}, LENGTH, 4),
        ({"ep": 8, "data": {"method": "zero", "stage": 1}}, LENGTH, 8),
        ({"ep": 4, "data": {"method": "fsdp"}}, LENGTH, 4),
        ({"tp": 2, "sequence_parallel": True, "ep": 4, "expert_tp": 1}, LENGTH // 2, 4),
        ({"tp": 2, "sequence_parallel": True, "pp": 2, "ep": 2, "expert_tp": 2}, LENGTH // 2, 2),
    ],
    ids=str,
)
def test_traffic_is_that_of_the_tokens(parallelism: dict[str, Any], rows: int, sources: int) -> None:
    """Each of topk copies of a token goes to one of *sources* ranks, and back; the gradient does so once more."""
    result = run(parallelism)
    made = result.scenario
    stages, shared = parallelism.get("pp", 1), parallelism.get("expert_tp", parallelism.get("tp", 1))
    micro_batches = made.derived.micro_batches
    sent = rows * TOPK * H * WIDTH * (sources - 1) / sources
    ops = of_tokens(made, 0)
    assert len(ops) == LAYERS // stages * micro_batches * 4
    assert all(op.nbytes == rows * TOPK * H * WIDTH and op.per_peer is None for op in ops)
    # by rings each rank that shares an expert passes on, and sums, the tokens of the others
    gathered = rows * TOPK * H * WIDTH * (shared - 1)
    each = LAYERS // stages * micro_batches * 4 * (sent + gathered)
    counts = count_bytes(sources, micro_batches, LAYERS // stages)
    assert result.summary()["traffic_bytes"]["ep"] == pytest.approx(8 * (each + counts), rel=1e-12)


def table(tmp_path: Path, tokens: list[int]) -> str:
    path = tmp_path / "tokens.csv"
    path.write_text("expert,tokens\n" + "\n".join(f"{expert},{count}" for expert, count in enumerate(tokens)) + "\n")
    return str(path)


TOKENS = [40, 8, 64, 0, 16, 48, 56, 24]
"""Of the 2 x 128 copies of a sequence's tokens, those of each expert."""


def test_bytes_to_each_peer_are_the_tokens_routed_row_by_row(tmp_path: Path) -> None:
    made = scenario({"ep": 4}, router_load=table(tmp_path, TOKENS))
    to_rank = [48, 64, 64, 80]
    nbytes = tuple(float(tokens * H * WIDTH) for tokens in to_rank)
    for rank in range(8):
        kinds = [op.per_peer for op in of_tokens(made, rank)]
        micro_batches = made.derived.micro_batches
        # to the experts, and back; then the gradients
        assert kinds == [nbytes, BySender(nbytes)] * (2 * LAYERS * micro_batches)
    check(made.schedule())
    result = made.run()
    # what a rank sends to itself is no traffic; all four ranks of a group send the same bytes to each peer
    there = sum(nbytes) * 4 - sum(nbytes)
    tokens = 2 * LAYERS * micro_batches * 4 * there + 8 * count_bytes(4, micro_batches)
    assert result.summary()["traffic_bytes"]["ep"] == pytest.approx(tokens, rel=1e-12)


def test_links_carry_exactly_the_tokens_of_each_pair(tmp_path: Path) -> None:
    """The bytes of the plan, receiver by receiver, in both directions."""
    made = scenario({"ep": 4}, gpus=4, batch=4, router_load=table(tmp_path, TOKENS))
    timeline = made.run().timeline
    mesh = made.schedule().mesh
    received: dict[int, float] = defaultdict(float)
    for rank in range(4):
        for op in of_tokens(made, rank):
            assert op.per_peer is not None
            place = mesh.axes["ep"].place(rank)
            assert place is not None
            own = tuple(op.per_peer)[place[1]]
            if isinstance(op.per_peer, BySender):
                for other in range(4):
                    received[other] += own * (other != rank)
            else:
                received[rank] += 3 * own
    counts = 4 * count_bytes(4, made.derived.micro_batches)
    assert sum(received.values()) + counts == pytest.approx(sum(timeline_bytes(timeline)), rel=1e-12)


def timeline_bytes(timeline: Any) -> list[float]:
    from clustersim.simulator.analysis import network_traffic

    return [network_traffic.by_axis(timeline)["ep"]]


def products(made: BuiltScenario, rank: int) -> float:
    ops = (op for op in made.schedule().program(rank).ops if isinstance(op, Compute))
    return sum(kernel.flops for op in ops for kernel in op.kernels)


def test_ranks_compute_the_tokens_of_their_experts(tmp_path: Path) -> None:
    made = scenario({"ep": 4}, router_load=table(tmp_path, TOKENS))
    balanced = products(scenario({"ep": 4}), 0)
    each_token = 3 * LAYERS * made.derived.micro_batches * 4 * 2 * 3 * H * F
    for rank, tokens in enumerate([48, 64, 64, 80, 48, 64, 64, 80]):
        assert products(made, rank) - balanced == pytest.approx((tokens - 64) * each_token)
    assert sum(products(made, rank) for rank in range(8)) == pytest.approx(8 * balanced)


def on_h100(parallelism: dict[str, Any], **model: Any) -> dict[str, Any]:
    """The numbers of a larger model on a node of H100."""
    sizes = {"hidden_size": 2048, "num_attention_heads": 16, "ffn_hidden_size": 4096, "seq_length": 2048}
    data = scenario(parallelism).specification.model_dump(exclude_unset=True)
    data |= {"cluster": {"preset": "dgx_h100"}, "model": {**MODEL, **sizes, **model}, "network": {}}
    return Scenario.model_validate({**data, "version": 1, "parallelism": parallelism}).run().summary()


def test_the_step_follows_the_fullest_rank(tmp_path: Path) -> None:
    """The products of the experts of the fullest rank take as long as if all ranks had as many tokens."""
    loads = {"balanced": "balanced", "skewed": table(tmp_path, TOKENS), "steep": {"zipf": 2.0}}
    times = {name: on_h100({"ep": 4}, router_load=load)["step_time_s"] for name, load in loads.items()}
    assert times["balanced"] < times["skewed"] < times["steep"]
    # as many tokens as the fullest rank has, on every rank
    full = on_h100({"ep": 4}, capacity_factor=80 / 64, pad_to_capacity=True)["step_time_s"]
    assert times["skewed"] == pytest.approx(full, rel=0.05)


def test_memory_of_the_fullest_rank_is_that_of_its_tokens(tmp_path: Path) -> None:
    def kept(result: Result) -> float:
        return float(result.summary()["memory"]["by_category_bytes"]["activations"])

    plain, skewed = run({"ep": 4}), run({"ep": 4}, router_load=table(tmp_path, TOKENS))
    # inputs of both products, the two halves before the activation, and what it makes
    more = (80 - 64) * 4 * LAYERS * WIDTH * (H + 2 * F + F)
    assert kept(skewed) - kept(plain) == pytest.approx(more)


@pytest.mark.parametrize("method", [{"method": "ddp"}, {"method": "zero", "stage": 1}, {"method": "fsdp"}], ids=str)
@pytest.mark.parametrize("parallelism", [{}, {"tp": 2, "sequence_parallel": True}, {"tp": 2}, {"pp": 2}], ids=str)
def test_one_rank_adds_nothing(parallelism: dict[str, Any], method: dict[str, Any]) -> None:
    if method["method"] == "fsdp" and "pp" in parallelism:
        pytest.skip("FSDP gathers in every micro-batch")
    plain = run({**parallelism, "data": method}).summary()
    one = run({**parallelism, "data": method, "ep": 1, "expert_tp": parallelism.get("tp", 1)}).summary()
    for key in ("step_time_s", "breakdown_s", "traffic_bytes", "memory"):
        assert plain[key] == one[key]
    assert "ep" not in plain["traffic_bytes"]


@pytest.mark.parametrize("method", ["ddp", "zero", "fsdp"])
def test_gradients_of_experts_are_reduced_over_their_own_groups(method: str) -> None:
    made = scenario({"ep": 4, "data": {"method": method}})
    kind = "all_reduce" if method == "ddp" else "reduce_scatter"
    model = made.model
    assert model is not None
    experts = LAYERS * EXPERTS * 3 * H * F
    for over, count in [("dp.expert", experts // 4), ("dp", model.parameters - experts)]:
        own = [op.nbytes for op in exchanges(made, 0, over) if op.kind == kind and op.nbytes > 4]
        times = made.derived.micro_batches if method == "fsdp" else 1
        assert sum(own) == times * count * WIDTH
    traffic = made.run().summary()["traffic_bytes"]["dp"]
    assert traffic > 0


def test_replicas_of_experts_start_equal() -> None:
    initial = scenario({"ep": 4}).initial()
    assert initial is not None
    model = scenario({}).model
    assert model is not None
    experts = LAYERS * EXPERTS * 3 * H * F
    ops = {op.over: op.nbytes for op in initial.programs[0].ops if isinstance(op, Collective)}
    assert ops == {"dp": WIDTH * (model.parameters - experts), "dp.expert": WIDTH * experts / 4}


@pytest.mark.parametrize(
    "parallelism", [{"ep": 4}, {"pp": 2, "ep": 2, "data": {"method": "zero", "stage": 1}}], ids=str
)
def test_both_engines_agree_on_uneven_loads(parallelism: dict[str, Any], tmp_path: Path) -> None:
    made = scenario(parallelism, router_load=table(tmp_path, TOKENS))
    times = [
        made.changed({"simulation.engine": engine}, "test").run().summary()["step_time_s"]
        for engine in ("simpy", "compiled")
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-9)


def test_optimizer_states_are_sharded_over_both_groups() -> None:
    whole = scenario({"ep": 4}).schedule().programs[0].resident
    sharded = scenario({"ep": 4, "data": {"method": "zero", "stage": 1}}).schedule().programs[0].resident
    model = scenario({}).model
    assert model is not None
    experts = LAYERS * EXPERTS * 3 * H * F
    rest = model.parameters - experts
    assert whole["parameters"] == WIDTH * (rest + experts / 4)
    assert sharded["optimizer"] == pytest.approx(12 * (rest / 8 + experts / 4 / 2))


def test_a_token_goes_to_each_domain_once() -> None:
    """Two hops: across domains once for each domain that has an expert of the token, then to each expert."""
    made = scenario({"ep": 8, "ep_domain": 4})
    mesh = made.schedule().mesh
    assert mesh.axes["ep.within"].groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert mesh.axes["ep.across"].groups == ((0, 4), (1, 5), (2, 6), (3, 7))
    # both experts of a token are in one domain with probability 3/7
    hit = 1 - (4 * 3) / (8 * 7)
    across, within = (exchanges(made, 0, f"ep.{name}")[0].nbytes for name in ("across", "within"))
    assert across == pytest.approx(2 * hit * LENGTH * H * WIDTH)
    assert within == LENGTH * TOPK * H * WIDTH
    limited = scenario({"ep": 8, "ep_domain": 4}, n_group=2, topk_group=1)
    assert exchanges(limited, 0, "ep.across")[0].nbytes == LENGTH * H * WIDTH


def test_tokens_go_there_in_fp8_and_come_back_in_bf16() -> None:
    """An fp32 scale for each 128 features (arXiv:2412.19437, section 3.3)."""
    there, back = (op.nbytes for op in of_tokens(scenario({"ep": 4, "dispatch_precision": "fp8"}), 0)[:2])
    assert there == LENGTH * TOPK * H * (1 + 4 / 128)
    assert back == LENGTH * TOPK * H * WIDTH


def test_tokens_above_the_capacity_are_dropped(tmp_path: Path) -> None:
    load = table(tmp_path, TOKENS)
    made = scenario({"ep": 4}, router_load=load, capacity_factor=1.0)
    # 32 a rank and expert at most
    to_rank = [32 + 8, 32 + 0, 16 + 32, 32 + 24]
    assert of_tokens(made, 0)[0].per_peer == tuple(float(tokens * H * WIDTH) for tokens in to_rank)
    padded = scenario({"ep": 4}, router_load=load, capacity_factor=1.25, pad_to_capacity=True)
    assert exchanges(padded, 0, "ep")[0].nbytes == EXPERTS * 40 * H * WIDTH


def test_the_shared_expert_runs_beside_the_exchanges() -> None:
    sizes = {"moe_shared_expert_intermediate_size": 4096}
    after, beside = (on_h100({"ep": 8, "moe_overlap": how}, **sizes) for how in ("none", "shared_experts"))
    assert after["traffic_bytes"] == beside["traffic_bytes"]
    assert beside["breakdown_s"]["exposed_ep"] < after["breakdown_s"]["exposed_ep"] / 2
    assert beside["step_time_s"] < after["step_time_s"]
    assert after["mfu"] * after["step_time_s"] == pytest.approx(beside["mfu"] * beside["step_time_s"])


@settings(max_examples=12, deadline=None)
@given(
    tp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2]),
    ep=st.sampled_from([1, 2, 4]),
    expert_tp=st.sampled_from([1, 2]),
    zipf=st.sampled_from([0.0, 1.0]),
    method=st.sampled_from(["ddp", "zero"]),
    recompute=st.sampled_from(["none", "full"]),
)
def test_the_check_holds_for_all_layouts(
    tp: int, pp: int, ep: int, expert_tp: int, zipf: float, method: str, recompute: str
) -> None:
    if pp * max(tp, ep * expert_tp) > 8:
        return
    parallelism = {"tp": tp, "pp": pp, "ep": ep, "expert_tp": expert_tp, "data": {"method": method}}
    made = scenario({**parallelism, "sequence_parallel": tp > 1}, router_load={"zipf": zipf})
    made = made.changed({"training.recompute": recompute}, "test")
    check(made.schedule())
    every = sum(products(made, rank) for rank in range(8))
    alone = products(scenario({}), 0) * 8
    if recompute == "none":
        assert every == pytest.approx(alone, rel=1e-9)


FAULTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"ep": 3}, {}, "parallelism.ep: ep = 3 does not divide the 8 experts of transformer; try 2 or 4"),
    ({"ep": 8, "pp": 2}, {}, "ep x expert_tp = 8 x 1 = 8 does not divide the 4 ranks of a pipeline stage; try ep = 4"),
    ({"tp": 2, "ep": 2}, {}, "ep 2 x expert_tp 2 with tp 2 needs sequence_parallel: true"),
    ({"expert_tp": 5}, {}, "expert_tp = 5 does not divide the 96 features of an expert; try 4 or 6"),
    ({"ep": 8, "ep_domain": 3}, {}, "parallelism.ep_domain: 3 does not divide ep = 8; try 2 or 4"),
    ({"ep": 2}, {"num_experts": None, "moe_router_topk": 3}, "moe_router_topk: belongs to a mixture of experts"),
    ({"ep": 2, "pp": 2, "dp": [3, 1]}, {}, "parallelism.ep: needs as many replicas of each stage"),
    ({"ep": 2, "data": {"method": "naive"}}, {}, "parallelism.ep: reduces some gradients apart, but naive"),
    ({"ep": 2, "moe_overlap": "all"}, {}, "parallelism.moe_overlap: must be none, shared_experts or batch"),
]


@pytest.mark.parametrize(("parallelism", "model", "message"), FAULTS, ids=range(len(FAULTS)))
def test_faults_name_the_key(parallelism: dict[str, Any], model: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(parallelism, **model).schedule()
    assert message in str(error.value)


def test_a_dense_model_has_no_expert_parallelism() -> None:
    with pytest.raises(ScenarioError, match=r"parallelism\.ep: ep = 2: gpt2 has no experts; leave it out"):
        Scenario.model_validate(
            {
                "version": 1,
                "cluster": {"preset": "uniform", "gpus": 2, "bandwidth": "10 GB/s", "latency": "1 us"},
                "model": {"preset": "gpt2"},
                "training": {"global_batch_size": 2},
                "parallelism": {"ep": 2},
            }
        ).schedule()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expert,tokens\n0,1\n", "layer 0 has no row for expert 1; there are 8 experts"),
        ("expert,count\n0,1\n", 'has no column "tokens"'),
        ("expert,tokens\n9,1\n", 'expert must be a number from 0 to 7, not "9"'),
        ("expert,tokens\n0,-1\n", 'tokens must be a number of 0 or more, not "-1"'),
        ("expert,tokens\n0,1\n0,2\n", "has expert 0 twice"),
        (
            "expert,tokens\n" + "\n".join(f"{e},{9 if e == 2 else 1}" for e in range(8)),
            "expert 2 of layer 0 has 9 of 16",
        ),
    ],
)
def test_faults_of_a_table_of_loads(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tokens.csv"
    path.write_text(text)
    with pytest.raises(ScenarioError) as error:
        scenario({"ep": 4}, router_load=str(path)).schedule()
    assert message in str(error.value)
    assert "tokens.csv" in str(error.value)
