"""Advice on parallelism for models whose answer is known."""

from collections.abc import Mapping
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.search.parallelism_advice import Ladder, advice, figure
from clustersim.scenarios.search.planner import Planner
from clustersim.scenarios.specification.loading import shipped
from clustersim.simulator.reading.errors import ScenarioError
from tests.samples import sample
from tests.workloads.parallelism.zero_states import zero_state_bytes


def scenario(model: str, cluster: str, nodes: int, batch: int, **training: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": cluster, "nodes": nodes},
            "model": {"preset": model},
            "training": {"global_batch_size": batch, **training},
        }
    )


FEW = {"tp": "auto", "pp": "auto", "data": "auto"}
"""A search of few candidates."""

HALF: Mapping[str, Any] = {"precision": "fp16", "micro_batch_size": 1, "recompute": "full"}


@pytest.fixture(scope="module")
def gpt3() -> Scenario:
    return Scenario.load("gpt3_175b_1024a100")


def test_resnet50_fits_a_v100_and_wants_data_parallelism() -> None:
    told = advice(scenario("resnet50", "zhores", 25, 6400))
    assert "data parallelism, a replica on each of 100." in told
    assert "ZeRO" not in told
    assert "tensor parallelism." in told


def test_gpt2_xl_does_not_fit_a_v100_until_its_optimizer_is_sharded() -> None:
    asked = scenario("gpt2_xl", "zhores", 4, 64, **HALF)
    told = advice(asked)
    # torch's autocast keeps fp32 gradients: 18 bytes for each of 1.5576 billion parameters; ZeRO-1 over 16 GPUs, by
    # DeepSpeed, 4 + 12/16 (arXiv:1910.02054, section 3.1 and figure 1)
    assert "18 bytes of parameters, gradients and optimizer states each are 28 GB" in told
    assert "First of these that fits: ZeRO-1 over dp 16" in told
    assert "4.75 bytes of states a parameter" in told
    # its 25 heads cannot be shared by 2 or 4
    assert "Tensor parallelism is left out: tp = 2 does not divide the 25 heads" in told


@pytest.mark.exhaustive
def test_gpt3_needs_a_node_of_tensor_parallelism_and_a_pipeline(gpt3: Scenario) -> None:
    told = advice(gpt3)
    # fp16: 2 + 2 + 12; the fp32 copies of gradients, 4 more, exist during the optimizer step only
    assert "16 bytes of parameters, gradients and optimizer states each are 2.79 TB" in told
    # 1,024 replicas do not divide the batch of 1,536
    assert "cannot run: global_batch_size: 1536 is not a multiple of micro_batch_size 1 x dp 1024" in told
    assert "tp 8 x dp 128" in told
    # as Narayanan et al. 2021 (arXiv:2104.04473, table 2) trained it
    assert "tp 8 x pp 8 x dp 16" in told


@pytest.mark.exhaustive
def test_what_is_held_is_no_less_than_the_states_and_falls_with_the_stage(gpt3: Scenario) -> None:
    fed = gpt3.changed({"training.global_batch_size": 2048}, "a batch that 1,024 replicas share")
    assert fed.model is not None
    ladder = Ladder(Planner(Scenario.model_validate(fed.source.data)))
    plain, *sharded = ladder.rungs[:4]
    assert [dict(rung.candidate.values["data"]).get("stage") for rung in sharded] == [1, 2, 3]
    peaks = [rung.nbytes for rung in (plain, *sharded)]
    assert peaks == sorted(peaks, reverse=True)
    for stage, rung in enumerate((plain, *sharded)):
        states = sum(zero_state_bytes(stage, 1024, "adam", "bf16").values()) * fed.model.parameters
        assert rung.nbytes >= states
    assert sharded[-1].fits


def test_eight_gpus_are_not_enough_for_gpt3() -> None:
    asked = scenario("gpt3_175b", "dgx_a100_80gb", 1, 64, **HALF)
    told = advice(asked.changed({"plan.search": FEW}, "a small search"))
    # 16 bytes of states are 2.79 TB, / 8 are 349 GB, for whichever candidate
    assert "Nothing fits, however it is distributed: take more GPUs." in told


@pytest.mark.exhaustive
def test_a_layer_larger_than_a_gpu_is_cut_by_tensors() -> None:
    # 12 h^2 = 7.9 billion parameters x (2 + 2) bytes are 31 GB, twice a V100
    told = advice(scenario("megatron_1t", "zhores", 25, 100, **HALF))
    assert "more than a GPU has: its operations must be cut, tensor parallelism." in told


def test_activations_are_first_recomputed() -> None:
    told = advice(scenario("gpt2_medium", "zhores", 1, 32, precision="fp16"))
    # 18 x 355 million are 6.4 GB of 17.2
    assert "states fit one GPU (18 bytes" in told
    assert "micro_batch_size: 1 and recompute: full bring data parallelism down to" in told


@pytest.mark.exhaustive
def test_what_does_not_fit_even_so_is_no_advice() -> None:
    asked = scenario("gpt2_large", "zhores", 1, 32, precision="fp16")
    ladder = Ladder(Planner(asked))
    least = ladder.judged(data={"method": "ddp"}, micro_batch_size=1, recompute="full")
    # 16 x 774 million are 12.4 GB, since no copies in 16 bits are there when the optimizer runs, DDP's buckets 3.1 GB,
    # as much a foreach optimizer's roots, and 1.3 GB of context
    assert 19.8e9 < least.nbytes < 20.2e9
    assert not least.fits
    assert "bring data parallelism down to" not in advice(asked)


@pytest.mark.exhaustive
def test_advice_and_check_give_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "model.num_layers=48"]
    assert run(["check", "gpt2_xl_zero_zhores", *settings]) == 0
    checked = [line.partition("needs ")[2].partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert run(["show", "gpt2_xl_zero_zhores", "advice", *settings]) == 0
    given = [line for line in capsys.readouterr().out.splitlines() if line.startswith("as given")]
    assert len(given) == len(checked) == 4
    assert all(need in line for need, line in zip(checked, given, strict=True))


def test_advice_names_a_format_of_16_bits_where_it_would_help() -> None:
    plain = scenario("gpt3_175b", "dgx_a100_80gb", 1, 64, precision="fp32")
    told = advice(plain.changed({"plan.search": FEW}, "a small search"))
    assert "take more GPUs or precision: bf16." in told


@pytest.mark.exhaustive
def test_selective_recomputation_beside_flash_attention_is_called_useless() -> None:
    flash = Scenario.load("llama3_8b_fsdp_dgx_h100", {"training.recompute": "selective"})
    assert "selective costs time and saves next to no memory" in advice(flash)
    scores = flash.changed({"model.attention": "unfused"}, "attention")
    assert "saves next to no memory" not in advice(scores)


@pytest.mark.exhaustive
def test_all_gpus_are_tried_with_a_smaller_micro_batch() -> None:
    # a batch of 64 in micro-batches of 4 feeds 16 of 64 GPUs
    told = advice(Scenario.load("gpt_6_7b_64a100"))
    assert "ZeRO-3 over dp 64, micro-batch 1       40.3 of 85.9 GB  fits" in told


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("llama3_8b_131k_32h100", "ZeRO-3 over cp 8 x dp 4"),
        ("mixtral_8x7b_dgx_h100", "ZeRO-3 over dp 64, ep 8"),
    ],
)
def test_context_and_expert_parallelism_stay(name: str, kept: str) -> None:
    loaded = Scenario.load(name)
    told = advice(next(iter(loaded.variants.values()), loaded))
    assert any(line.startswith(kept) and line.rstrip().split("  ")[-1] for line in told.splitlines())
    assert not any(line.startswith(("dp ", "ZeRO-3 over dp 32")) and "ep 8" not in line for line in told.splitlines())


SEARCH = {**FEW, "sequence_parallel": "auto", "micro_batch_size": "auto"}
"""A search that has all candidates of the advice; keys that it does not name stay as they are."""

AGREEING = ("gpipe_vs_varuna", "gpt2_xl_zero_zhores", "hello", "t5_11b_32a100")
"""A sample of the shipped scenarios: an order of their own, sharding, one that fits, two stacks of layers."""


SMALLER: dict[str, dict[str, Any]] = {
    "bloom_176b_384a100": {
        "cluster.nodes": 16,
        "training.global_batch_size": 256,
        "model.num_layers": 22,
        "parallelism.pp": 4,
    },
    "gpt3_175b_1024a100": {"cluster.nodes": 32, "training.global_batch_size": 384, "model.num_layers": 24},
    "local_steps_slow_network": {"cluster.nodes": 2, "training.global_batch_size": 128, "model.num_layers": 12},
    "megascale_175b_12288a100": {
        "cluster.nodes": 48,
        "training.global_batch_size": 192,
        "model.num_layers": 48,
        "parallelism.dp": 6,
    },
    "megatron_1t_3072a100": {
        "cluster.nodes": 32,
        "training.global_batch_size": 256,
        "model.num_layers": 16,
        "parallelism.pp": 8,
        "parallelism.dp": 4,
    },
    "mixtral_8x7b_dgx_h100": {"cluster.nodes": 2, "training.global_batch_size": 64},
    "mt_nlg_530b": {
        "cluster.nodes": 40,
        "training.global_batch_size": 320,
        "model.num_layers": 30,
        "parallelism.pp": 10,
        "parallelism.dp": 4,
    },
}
"""Changes that make large scenarios small, and leave them too large for a GPU and for data parallelism alone."""


def agree(one: Scenario) -> None:
    """Plan and advice judge the same candidates alike, and no candidate of the advice beats the plan."""
    planner = Planner(one)
    ladder = Ladder(planner)
    rungs = ladder.rungs
    planner.bound(planner.candidates)
    open_to_plan = {candidate.key for candidate in planner.open}
    fastest = planner.fastest(planner.open)
    for rung in rungs:
        assert rung.fits == (not planner.kind(rung.candidate)), rung.name
        assert not rung.fits or rung.candidate.key in open_to_plan, rung.name
    fitting = [rung.seconds for rung in rungs if rung.seconds is not None]
    if fastest is None:
        assert not fitting
        assert ladder.beyond is None
    else:
        best = planner.estimated_seconds(fastest)
        assert best is not None
        assert best <= min(fitting, default=best)
        assert fitting or ladder.beyond is not None


def agreeing(names: tuple[str, ...]) -> list[Scenario]:
    """The scenarios, or the first variant of each, that both commands take; those that are `SMALLER` so."""
    found = []
    for name in names:
        loaded = Scenario.load(name, SMALLER.get(name, {}))
        for one in list(loaded.variants.values())[:1] or [loaded]:
            try:
                Planner(one)
            except ScenarioError:
                continue
            found.append(one)
    return found


@pytest.mark.parametrize("name", sample(AGREEING, heavy=["t5_11b_32a100"]))
def test_plan_and_advice_agree(name: str) -> None:
    found = agreeing((name,))
    assert found, "a scenario that can be planned"
    for one in found:
        agree(one.changed({"plan.search": SEARCH}, "a search"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(set(shipped()) - set(AGREEING)))
def test_plan_and_advice_agree_on_every_shipped_scenario(name: str) -> None:
    found = agreeing((name,))
    if not found:
        pytest.skip("plan does not take it")
    for one in found:
        agree(one.changed({"plan.search": SEARCH}, "a search"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["llama3_8b_131k_32h100", "mixtral_8x7b_dgx_h100"])
def test_plan_and_advice_agree_on_all_candidates(name: str) -> None:
    found = agreeing((name,))
    assert found, "a scenario that can be planned"
    for one in found:
        agree(one)


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "zhores_resnet50_ddp", "advice"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("resnet50, 25.6 million parameters, on 100 GPUs of 17.2 GB\n")
    assert err == ""
    assert run(["show", "allreduce_dgx_a100", "advice"]) == 2


def test_a_collective_has_no_model() -> None:
    with pytest.raises(ScenarioError, match="no model to give advice on"):
        advice(Scenario.load("allreduce_dgx_a100"))


def test_counts() -> None:
    assert [figure(n) for n in (100, 12_288, 1.5e6, 174_604_763_136)] == ["100", "12,288", "1.5 million", "175 billion"]
