"""The published runs that predictions are compared with: each loads and has a source, and small ones are simulated."""

import csv
from functools import cache
from pathlib import Path

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.accuracy.layers_and_products import layer_classes
from clustersim.scenarios.commands.schema import for_editors
from clustersim.scenarios.results.expectations import ExpectationOutcome, held
from clustersim.scenarios.specification.loading import SHIPPED, named_files, shipped
from clustersim.simulator.hardware.kernel import matmul
from clustersim.simulator.reading.yaml_and_json import read
from tests.json_schema import validator
from tests.samples import sample

PUBLISHED = SHIPPED / "published"
ROWS = {
    "alpa_intra_operator": 6,
    "bloom_a100_scan": 27,
    "b200_one_node": 5,
    "deepspeed_bert": 12,
    "dle_resnet50": 31,
    "dlperf_ddp_v100": 10,
    "dlperf_gpt_v100": 6,
    "flash_attention_gpt": 5,
    "fms_acceleration": 41,
    "fsdp_mpt_a100_40gb": 78,
    "fsdp_qlora": 10,
    "google_recipes": 10,
    "hagemann_llama_layouts": 86,
    "kempnerforge": 14,
    "korthikanti_22b_layer": 5,
    "libai_megatron_v100": 13,
    "lucie_a100": 42,
    "maxtext_v5p": 8,
    "megascale_175b": 16,
    "h200_finetuning": 28,
    "megascale_ablation": 9,
    "megascale_moe": 5,
    "litgpt_memory": 12,
    "megatron_kwai": 10,
    "megatron_sc21_weak_scaling": 10,
    "mixtral_fp8": 4,
    "mlperf_gpt3": 14,
    "mlperf_lora": 18,
    "moe_parallel_folding": 10,
    "nccl_8xa100_collectives": 151,
    "nccl_8xh100_allreduce": 32,
    "nccl_allreduce_ml_engineering": 40,
    "nccl_allreduce_one_node": 66,
    "nccl_aws": 35,
    "nccl_azure": 63,
    "nccl_dstack": 93,
    "nccl_galvatron": 42,
    "nccl_oci": 31,
    "nccl_one_node": 1176,
    "gloo_slow_networks": 48,
    "nccl_slow_networks": 52,
    "nemo_2412": 18,
    "nemo_automodel": 14,
    "ptd_p_against_zero_3": 12,
    "qwen3_moe_h800": 8,
    "qwen_finetune": 39,
    "rccl_tests": 106,
    "timm_3090": 23,
    "torchtitan_2025": 10,
    "ultrascale_playbook_runs": 94,
    "vectorlm": 18,
    "vtrain_3_6b_64a100": 26,
    "vtrain_layers": 12,
    "zero_bubble": 48,
}
"""How many runs the papers' tables have."""

MEASURED = {
    "b200_one_node": 5,
    "b200_products": 232,
    "attention": 427,
    "products": 1500,
    "dlperf_ddp_v100": 10,
    "dlperf_gpt_v100": 6,
    "fsdp_mpt_llmfoundry": 78,
    "layer_profiles_v100": 962,
    "libai_megatron_v100": 13,
    "nccl_8xA100_all_collectives": 151,
    "nccl_8xH100_allreduce": 32,
    "nccl_allreduce_one_node": 66,
    "nccl_measured": 40,
    "vtrain_layer_times": 12,
    "vtrain_multi_node_measured": 26,
    "vtrain_single_node_steps": 35,
}
"""Tables of measurements from public repositories, and their rows."""


HEAVY = ("axonn_grids", "nccl_one_node")
"""Published scenarios that take seconds to load."""


@cache
def outcomes(name: str, engine: str = "auto") -> list[ExpectationOutcome]:
    scenario = Scenario.load(name, {"simulation.engine": engine})
    return held(scenario, scenario.run().summary())


@pytest.mark.parametrize("name", sample(shipped("published"), 8, heavy=HEAVY))
def test_each_loads_by_its_bare_name_and_tells_its_sources(name: str) -> None:
    text = (PUBLISHED / f"{name}.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=../scenario.schema.json\n# ")
    refused: dict[str, str] = {}
    scenario = Scenario.load(name, refused=refused)
    runs = [*scenario.variants.values()] or [scenario]
    expectations = [one for run in runs for one in run.specification.expect.values()]
    assert expectations
    assert all(one.source and one.tolerance >= 0.05 for one in expectations)
    assert len(runs) == ROWS.get(name, len(runs))
    assert not refused


def test_long_products_of_a_b200_take_what_was_measured() -> None:
    """Products of 1 ms and more, by the scenario's one efficiency: 5 % in the mean, and none a fifth off."""
    cluster = next(iter(Scenario.load("b200_one_node").variants.values())).cluster()
    gpu = cluster.accelerator(cluster.gpus[0])
    errors = []
    with (PUBLISHED / "b200_products.csv").open() as file:
        for line in csv.DictReader(file):
            sides = (int(line[side]) for side in ("m", "n", "k"))
            kernel = matmul(*sides, batch=int(line["batch"]), precision="bf16", result=line["out"])
            measured = kernel.flops / (float(line["efficiency"]) * gpu.peak("bf16"))
            errors.append(gpu.kernel_seconds(kernel) / measured - 1)
    assert abs(sum(errors)) / len(errors) < 0.01
    assert sum(map(abs, errors)) / len(errors) < 0.05
    assert max(map(abs, errors)) < 0.2


def test_published_scenarios_read_only_files_beside_them() -> None:
    files = {name for one in shipped("published") for _, name in named_files(read(PUBLISHED / f"{one}.yaml").data)}
    assert files
    assert all(Path(name).name == name and (PUBLISHED / name).is_file() for name in files)


@pytest.mark.parametrize("name", MEASURED)
def test_each_row_of_a_measured_table_has_its_source_and_licence(name: str) -> None:
    with (PUBLISHED / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == MEASURED[name]
    sources = (PUBLISHED / "SOURCES.md").read_text()
    for row in rows:
        repository, _, place = row["source"].partition(" ")
        assert place
        assert repository in sources
        assert row["licence"] in ("MIT", "Apache-2.0", "CC-BY-SA-4.0")


@pytest.mark.exhaustive
def test_the_schema_takes_every_published_scenario() -> None:
    schema = validator(for_editors())
    for name in shipped("published"):
        assert [*schema.iter_errors(read(PUBLISHED / f"{name}.yaml").data)] == [], name


@pytest.mark.exhaustive
def test_model_states_are_those_of_zero() -> None:
    found = outcomes("zero_model_states", engine="compiled")
    assert len(found) == 21
    # what a layer that is gathered and a bucket take beside the states: half a gigabyte of 8 at the most
    assert all(-2e-3 < one.error < 0.07 for one in found)


def test_gpipe_scales_as_its_bubble() -> None:
    # of 32 micro-batches, by 1/K of the forward pass of one: K - 1 before the last stage begins, then forward, backward
    # (2) and all but the first again (1), and K - 1 times 2 back
    def slots(stages: int) -> int:
        return (stages - 1) + 32 + 2 * 32 + 31 + 2 * (stages - 1)

    for one in outcomes("gpipe_transformer"):
        stages = int(one.variant.rpartition(" ")[2])
        assert one.value == pytest.approx(slots(2) / 2 / (slots(stages) / stages))


@pytest.mark.exhaustive
def test_activations_shrink_as_korthikanti_draws_them() -> None:
    found = {one.variant: one for one in outcomes("korthikanti_activation_memory")}
    assert len(found) == 8
    for variant, one in found.items():
        if "full" not in variant:
            assert abs(one.error) < 0.06, variant
        else:
            # at the peak a recomputed layer is held beside the checkpoints that the figure counts
            assert 0 < one.error < 0.3, variant


def test_layer_classes_tell_all_that_was_measured() -> None:
    classes = [one for one in layer_classes(PUBLISHED / "layer_profiles_v100.csv") if one.model == "resnet50"]
    assert [one.kind for one in classes] == ["convolution", "linear", "batch norm", "other elementwise", "all"]
    # all of the profile but its input; and the sum is that of the classes
    assert classes[-1].forward[0] == pytest.approx(201.45 - 18.962, abs=1e-3)
    for column in (0, 1):
        assert sum(one.backward[column] for one in classes[:-1]) == pytest.approx(classes[-1].backward[column])


MODELLED = ("parallel block", "sliding window", "TP overlap", "PP overlap", "DP overlap", "efficient operators")
"""Rows of MegaScale's table 3 that are within two points of MFU; the scenario says why the others are not."""


@pytest.mark.exhaustive
def test_what_megascale_changes_comes_out_within_two_points_where_it_is_modelled() -> None:
    found = {outcome.variant: (outcome.value, outcome.expected) for outcome in outcomes("megascale_ablation")}
    for name in MODELLED:
        value, published = found[name]
        assert value == pytest.approx(published, abs=0.02), name


@pytest.mark.exhaustive
def test_each_change_of_megascale_gains() -> None:
    values = [outcome.value for outcome in outcomes("megascale_ablation")]
    assert values == sorted(values)


@pytest.mark.exhaustive
def test_megascales_window_is_what_its_table_leaves_out() -> None:
    """MFU x step time over the FLOPs of full attention, in the runs of 3,072 GPUs and more of table 2."""
    scenario = Scenario.load("megascale_175b")
    shares = []
    with (PUBLISHED / "megascale_175b.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["system"] == "MegaScale" and int(row["gpus"]) >= 3072:
                full = Scenario.load("megascale_175b").variants[f"Megatron-LM on {row['gpus']} GPUs"].model
                assert full is not None
                counted = float(row["mfu"]) / 100 * float(row["step_time_s"]) * int(row["gpus"]) * 312e12
                shares.append(counted / full.flops(1) / int(row["batch"]))
    windowed, full = (scenario.variants[f"{name} on 3072 GPUs"].model for name in ("MegaScale", "Megatron-LM"))
    assert windowed is not None
    assert full is not None
    assert sum(shares) / len(shares) == pytest.approx(windowed.flops(1) / full.flops(1), abs=1e-3)
