"""The scenarios that come with clustersim: each runs and gives the result that it demonstrates."""

import csv
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios.commands.schema import for_editors
from clustersim.scenarios.results.expectations import held
from clustersim.scenarios.results.result import Result, check_finite
from clustersim.scenarios.results.result_kinds import VariantsResult
from clustersim.scenarios.specification.loading import SHIPPED, shipped
from clustersim.simulator.analysis.memory import bound
from clustersim.simulator.charts.pipeline import stretches
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.simulator.schedule.check import check
from tests.json_schema import validator
from tests.samples import sample
from tests.shipped import HEAVY, SLOW, loaded, result_of


class Results(Mapping[str, Result]):
    """The results of the scenarios *names*; each is simulated when it is first read."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __getitem__(self, name: str) -> Result:
        return result_of(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


LARGE = {
    "bloom_176b_384a100": 384,
    "gpt3_175b_1024a100": 1024,
    "llama3_405b_campaign": 16_384,
    "megascale_175b_12288a100": 12_288,
    "megatron_1t_3072a100": 3072,
    "mt_nlg_530b": 2240,
}
"""The scenarios of more than 128 GPUs and how many they use, as their papers say; here they are checked, not run."""

TOO_FULL = {
    "gpt2_xl_offload_8a100": {"kept"},
    "gpt2_xl_zero_zhores": {"zero_0"},
    "llama3_70b_fp8_64h100": {"bf16", "blockwise"},
    "llama3_70b_lora_8h100": {"full"},
    "optimal_recompute_gpt2_xl": {"none"},
    "zero_offload_13b_one_v100": {"all on the GPU"},
}
"""Variants that are there to show what does not fit."""


@pytest.fixture(scope="module")
def results(pytestconfig: pytest.Config) -> Results:
    """Of all but the large ones; tests of the short suite that go through them see a sample."""
    names = [name for name in shipped() if name not in LARGE]
    if pytestconfig.getoption("--short"):
        names = [str(one.values[0]) for one in sample(names, 3, heavy=[*HEAVY, *SLOW]) if not one.marks]
    return Results(names)


def test_what_is_shipped() -> None:
    small = [
        "alexnet_pr_pc",
        "background_traffic",
        "ecmp_collisions",
        "allreduce_dgx_a100",
        "bert_sparse_attention_v100",
        "ddp_buckets_32v100",
        "dgx_a100_gpt2_xl_ddp",
        "gpipe_vs_varuna",
        "gpt2_one_v100",
        "gpt2_xl_offload_8a100",
        "gpt2_xl_zero_zhores",
        "gpt3_175b_one_a100",
        "gpt_offload_one_a100",
        "gpt_6_7b_64a100",
        "federated_hospitals",
        "gradient_rings",
        "hello",
        "horovod_vs_ddp",
        "lecture_3d_32gpus",
        "llama3_8b_131k_32h100",
        "llama2_7b_tpu_v5e",
        "llama3_70b_fp8_64h100",
        "llama3_70b_lora_8h100",
        "llama3_8b_fsdp_dgx_h100",
        "local_steps_slow_network",
        "mixtral_8x7b_dgx_h100",
        "naive_vs_ddp",
        "parameter_server_straggler",
        "optimal_recompute_gpt2_xl",
        "resnet50_one_v100",
        "tensor_grids",
        "sharp_vs_ring",
        "t5_11b_32a100",
        "slow_network_compression",
        "vit_h_14_8a100",
        "zero_offload_13b_one_v100",
        "zeropp_384v100",
        "zhores_resnet50_ddp",
        "zhores_vgg16_parameter_server_vs_ring",
    ]
    assert shipped() == sorted([*small, *LARGE])
    assert all(loaded(name).specification.description for name in shipped())


@pytest.mark.parametrize("name", LARGE)
def test_the_large_ones_use_as_many_gpus_as_their_papers(name: str) -> None:
    derived = loaded(name).derived
    assert derived.degree("tp") * derived.degree("pp") * derived.replicas == derived.gpus == LARGE[name]


@pytest.mark.parametrize(
    "name",
    [
        "bloom_176b_384a100",
        "megascale_175b_12288a100",
        pytest.param("gpt3_175b_1024a100", marks=pytest.mark.exhaustive),
        pytest.param("megatron_1t_3072a100", marks=pytest.mark.exhaustive),
        pytest.param("mt_nlg_530b", marks=pytest.mark.exhaustive),
    ],
)
def test_the_large_ones_hold_the_laws_and_fit(name: str) -> None:
    scenario = loaded(name)
    schedule = scenario.schedule()
    check(schedule)
    capacity = scenario.cluster().accelerator(scenario.derived.devices[0]).memory_bytes
    assert bound(schedule).peak.nbytes <= capacity


def test_each_has_a_result_and_a_report(results: Results) -> None:
    for name, result in results.items():
        summary = result.summary()
        check_finite(summary)
        assert summary["name"] == name
        # no nan and no infinity: they are no JSON
        assert json.loads(json.dumps(summary, allow_nan=False)) == summary
        assert result.report().startswith(f"{name} - ")
        variants = result.variants if isinstance(result, VariantsResult) else {name: result}
        assert {one for one, its in variants.items() if not its.fits} == TOO_FULL.get(name, set())


WINOGRAD = 2.25
"""How many times fewer products VGG takes than are counted (Lavin and Gray 2016, arXiv:1509.09308, F(2x2, 3x3))."""


def steps(results: Results) -> Iterator[dict[str, Any]]:
    for result in results.values():
        for one in result.summary().get("variants", {"": result.summary()}).values():
            if "breakdown_s" in one:
                yield one


def test_the_breakdown_is_the_step_time(results: Results) -> None:
    for summary in steps(results):
        assert math.isclose(sum(summary["breakdown_s"].values()), summary["step_time_s"], rel_tol=1e-9)
        assert math.isclose(summary["bubble_fraction"], summary["breakdown_s"]["bubble"] / summary["step_time_s"])


@pytest.mark.exhaustive
def test_all_steps_are_seen(results: Results) -> None:
    assert len(list(steps(results))) == 133


def test_utilisation_is_a_share(results: Results) -> None:
    vgg = [one["mfu"] for one in steps(Results([name for name in results if "vgg16" in name]))]
    for summary in steps(results):
        most = WINOGRAD if summary["mfu"] in vgg else 1
        assert 0 <= summary["mfu"] <= summary["hfu"] <= most
        assert all(0 <= use["mean"] <= use["max"] + 1e-12 <= 1 + 1e-9 for use in summary["link_utilisation"].values())


def test_hello_is_the_alpha_beta_model(results: Results) -> None:
    # four layers of 10 + 20 ms; of the all-reduces only the last is not hidden
    ring = 6 * 5e-6 + 2 * 3 / 4 * 100e6 / 10e9
    assert math.isclose(results["hello"].summary()["step_time_s"], 4 * 0.030 + ring, rel_tol=1e-9)


def test_zhores_times_follow_from_its_step(results: Results) -> None:
    result = results["zhores_resnet50_ddp"]
    summary = result.summary()
    assert summary["simulation"]["ranks"] == 100
    assert math.isclose(summary["samples_per_s"], 6400 / summary["step_time_s"])
    hours = 100 * 115.3e6 / summary["samples_per_s"] / 3600
    assert math.isclose(summary["training"]["gpu_hours"], hours)
    assert math.isclose(summary["training"]["days"], hours / 100 / 24)
    # 300 W each, as the data sheet of the V100 SXM2 has it; no cost is given
    assert math.isclose(summary["training"]["energy_mwh"], hours * 300e-6)
    assert summary["training"]["cost"] is None


def test_gpt2_xl_flops_are_those_of_the_formula(results: Results) -> None:
    summary = results["dgx_a100_gpt2_xl_ddp"].summary()
    # 72 B s l h^2 (1 + s/6h + V/12lh) for the step, Narayanan et al. 2021, arXiv:2104.04473, without recomputation
    batch, s, layers, h, vocabulary = 512, 1024, 48, 1600, 50257
    flops = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (12 * layers * h))
    achieved = summary["model_tflops_per_gpu"] * 1e12 * 32 * summary["step_time_s"]
    assert math.isclose(achieved, flops, rel_tol=1e-6)
    assert math.isclose(summary["mfu"], achieved / 32 / summary["step_time_s"] / 312e12, rel_tol=1e-9)
    assert summary["tokens_per_s"] == summary["samples_per_s"] * 1024


@pytest.mark.exhaustive
def test_the_parameter_server_falls_behind_the_ring(results: Results) -> None:
    variants = results["zhores_vgg16_parameter_server_vs_ring"].summary()["variants"]
    times = {name: variant["step_time_s"] for name, variant in variants.items()}
    assert times["one_server"] > times["server_per_node"] > times["ring"]
    # one server: 138,357,544 parameters of 4 bytes go out to and come back from 96 GPUs of other nodes through one NIC
    assert times["one_server"] > 2 * 96 * 138_357_544 * 4 / 12.5e9


def test_sharing_the_work_beats_the_main_gpu(results: Results) -> None:
    times = {name: v["step_time_s"] for name, v in results["naive_vs_ddp"].summary()["variants"].items()}
    assert times["naive"] > times["ddp_without_overlap"] > times["ddp"]


@pytest.mark.exhaustive
def test_positions_in_order_make_the_last_gpu_the_slowest(results: Results) -> None:
    variants = results["llama3_8b_131k_32h100"].summary()["variants"]
    times = {name: variant["step_time_s"] for name, variant in variants.items()}
    assert max(times.values()) == times["contiguous"] > 1.5 * times["zigzag"]
    # three ways with as much work on each GPU differ by what they expose
    assert times["zigzag"] / times["ulysses"] == pytest.approx(times["all_gather"] / times["ulysses"], rel=0.02)
    assert variants["zigzag"]["breakdown_s"]["exposed_cp"] < variants["all_gather"]["breakdown_s"]["exposed_cp"]
    # a ring sends blocks of keys and values forward, again in recomputation, and twice as much backward
    block = 131_072 // 8 * 2 * 8 * 128 * 2
    assert variants["zigzag"]["traffic_bytes"]["cp"] == pytest.approx(32 * 32 * 7 * 4 * block, rel=1e-12)
    assert variants["all_gather"]["traffic_bytes"]["cp"] == pytest.approx(32 * 32 * 7 * 4 * block, rel=1e-9)


def test_gpipe_and_varuna_run_as_the_lecture_draws_them() -> None:
    path = Path(__file__).parents[2] / "../shared/data/varuna_schedule_seed.csv"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside the project")
    variants = loaded("gpipe_vs_varuna").variants
    with path.open() as file:
        pictures = list(csv.DictReader(file))
    assert len(pictures) == 8
    for picture in pictures:
        stage = int(picture["stage"].removeprefix("S")) - 1
        timeline = variants[picture["schedule"].lower()].run().timeline
        # the lecture counts stages and micro-batches from 1
        done = [
            f"{action.phase}{action.micro_batch + 1}"
            for action, *_ in stretches(timeline, stage)
            if action.micro_batch is not None
        ]
        assert done == [picture[f"t{slot}"] for slot in range(1, 23) if picture[f"t{slot}"]]


def test_each_stage_of_zero_takes_less_memory_and_sends_more(results: Results) -> None:
    variants = results["gpt2_xl_zero_zhores"].summary()["variants"]
    peaks = [variants[f"zero_{stage}"]["memory"]["peak_bytes"] for stage in range(4)]
    assert peaks == sorted(peaks, reverse=True)
    # with m = 2 micro-batches: 2, 3, 2 m + 1 = 5 and 3 m = 6 times (d - 1)/d of the parameters' bytes: DeepSpeed
    # all-reduces gradients in stages 1 and 2, where arXiv:1910.02054, section 7, reduce-scatters them
    sent = [variants[f"zero_{stage}"]["traffic_bytes"]["dp"] for stage in range(4)]
    assert [round(nbytes / sent[0] * 2, 2) for nbytes in sent] == [2, 3, 5, 6]


def test_what_is_expected_of_the_small_ones_holds(results: Results) -> None:
    for name, result in results.items():
        for outcome in held(loaded(name), result.summary()):
            assert outcome.met, f"{name}: {outcome}"


@pytest.mark.parametrize("name", sample(LARGE, heavy=[*HEAVY, *SLOW]))
def test_the_large_ones_meet_what_they_expect(name: str) -> None:
    scenario = loaded(name)
    summary = result_of(name).summary()
    check_finite(summary)
    outcomes = held(scenario, summary)
    assert outcomes
    assert [str(outcome) for outcome in outcomes if not outcome.met] == []


def test_gpt3_is_trained_as_the_script_of_its_authors_does() -> None:
    """Megatron-LM, examples/pretrain_gpt3_175B.sh: no sequence parallelism, which came in 2022."""
    scenario = loaded("gpt3_175b_1024a100")
    parallelism, training = scenario.specification.parallelism, scenario.specification.training
    assert training is not None
    degrees = [scenario.derived.degree(axis) for axis in ("tp", "pp")]
    assert (degrees, scenario.derived.replicas) == ([8, 16], 8)
    assert (training.global_batch_size, training.micro_batch_size, training.precision) == (1536, 1, "fp16")
    assert scenario.specification.software == "megatron_2021"
    assert not parallelism.model_dump().get("sequence_parallel")


def test_the_lectures_172_years_are_58_tflops() -> None:
    years = 3.14e23 / 58e12 / 86400 / 365.25
    assert years == pytest.approx(172, rel=0.005)
    days = 90 * 1_281_167 / 534 / 86400
    assert days == pytest.approx(2.5, rel=1e-3)


def test_the_table_of_collectives(results: Results) -> None:
    rows = results["allreduce_dgx_a100"].summary()["collective"]
    assert list(results["allreduce_dgx_a100"].summary()) == ["name", "collective"]
    assert [row["size_bytes"] for row in rows] == [2.0**n for n in (15, 18, 20, 22, 24, 26, 28, 30)]
    for row in rows:
        assert math.isclose(row["algbw"], row["size_bytes"] / row["time_s"])
        assert math.isclose(row["busbw"], row["algbw"] * 2 * 7 / 8)
    assert all(a["time_s"] < b["time_s"] for a, b in itertools.pairwise(rows))


def test_the_schema_takes_every_shipped_scenario() -> None:
    schema = validator(for_editors())
    for name in shipped():
        assert [*schema.iter_errors(read(SHIPPED / f"{name}.yaml").data)] == [], name


def test_the_schema_beside_the_scenarios_is_that_of_the_command() -> None:
    path = SHIPPED / "scenario.schema.json"
    assert json.loads(path.read_text()) == for_editors(), (
        f"renew it: clustersim schema > {path.relative_to(SHIPPED.parent)}"
    )


def test_tensor_grids_send_less_the_more_dimensions_they_have(results: Results) -> None:
    variants = results["tensor_grids"].summary()["variants"]
    one, two, two_and_a_half, three, overlapped, replaced, chosen = variants.values()
    sent = [one["traffic_bytes"]["tp"] for one in (one, two, three, chosen)]
    assert sent == sorted(sent, reverse=True)
    assert two_and_a_half["traffic_bytes"]["tp"] < two["traffic_bytes"]["tp"]
    assert overlapped["step_time_s"] < three["step_time_s"]
    assert overlapped["traffic_bytes"]["tp"] == pytest.approx(three["traffic_bytes"]["tp"])
    assert replaced["traffic_bytes"]["tp"] > 2 * three["traffic_bytes"]["tp"]
    assert min(variant["step_time_s"] for variant in variants.values()) == chosen["step_time_s"]


def test_alexnet_on_a_grid_communicates_least(results: Results) -> None:
    """Gholami et al. (arXiv:1712.04432, abstract): the least cost is neither pure model nor pure data parallelism."""
    variants = results["alexnet_pr_pc"].summary()["variants"]
    exposed = {
        name: sum(seconds for part, seconds in one["breakdown_s"].items() if part.startswith("exposed"))
        for name, one in variants.items()
    }
    assert exposed["16 x 8"] < exposed["4 x 32"] < exposed["2 x 64"] < exposed["1 x 128, batch"]
    assert exposed["16 x 8"] < exposed["16 x 8, all by model"]
