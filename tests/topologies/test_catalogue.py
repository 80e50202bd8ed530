"""The catalogue: every file loads, every value has its source, and figures agree with the published table."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import Section
from clustersim.simulator.reading.validation import validated
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.topologies.catalogue import CPUS, GPUS, LINKS, device, link, link_data, products_at_power
from clustersim.topologies.cluster_section import CLUSTERS
from clustersim.topologies.node_and_fabric import Gpu

DATA = Path(__file__).parents[2] / "../shared/data"
FOLDERS = (GPUS, CPUS, LINKS, CLUSTERS)
FILES = [(folder, name) for folder in FOLDERS for name in lookup.names(folder)]

GPU_NAMES = {
    *("v100_16gb", "v100_32gb", "a10g", "a100_40gb", "a100_80gb", "l40s", "rtx_4090"),
    *("h100", "h100_96gb", "h200", "h800", "b200", "mi250x_gcd", "unit"),
    *("p100", "t4", "a30", "a40", "rtx_a6000", "l4", "rtx_3090", "rtx_5090", "rtx_6000_ada", "a800", "h20"),
    *("b300", "gb200", "gb300", "mi300x", "mi325x", "tpu_v4", "tpu_v5e", "tpu_v5p"),
}
CLUSTER_NAMES = {
    *("zhores", "dgx1", "dgx_a100_40gb", "dgx_a100_80gb", "dgx_h100"),
    *("selene", "perlmutter", "frontier", "p3_8xlarge", "p3_16xlarge", "p100_25gbe", "p4d_24xlarge"),
    *("dgx2", "dgx_h200", "dgx_b200", "gb200_nvl72", "p5_48xlarge", "p5en_48xlarge", "p6_b200_48xlarge", "g5_48xlarge"),
    *("nd_a100_v4", "nd_h100_v5", "a3_highgpu_8g", "rtx_4090_workstation", "mi300x_platform"),
    *("dgx_b300", "gb300_nvl72", "tpu_v4_512", "tpu_v5e_pod", "tpu_v5p_512"),
}


def test_the_names_of_the_contract_exist() -> None:
    assert set(lookup.names(GPUS)) == GPU_NAMES
    assert set(lookup.names(CLUSTERS)) == CLUSTER_NAMES
    assert {"nvlink2", "nvlink5", "pcie3", "pcie5", "ib_edr", "ib_hdr", "ib_ndr", "slingshot11"} <= set(
        lookup.names(LINKS)
    )


@pytest.mark.parametrize(("folder", "name"), FILES)
def test_every_value_has_its_source(folder: str, name: str) -> None:
    data = read(lookup.data_file(folder, name)).data
    sources = data.pop("sources")
    if folder == CLUSTERS:
        node = data.pop("node")
        # the shape of the fabric is one value, and so are the links between GPUs
        assert set(sources) == {*data, *(f"node.{key}" for key in node)}
    else:
        assert set(sources) == set(data)
    assert all(len(text) > 8 for text in sources.values())


@pytest.mark.parametrize("name", lookup.names(GPUS))
def test_gpus_load_and_price(name: str) -> None:
    accelerator = device(GPUS, name).accelerator()
    assert accelerator.name == name
    assert accelerator.peak("fp32") > 0
    assert 0 < accelerator.matmul_efficiency <= 1


INHERITING = [name for name in lookup.names(GPUS) if device(GPUS, name).efficiency_of]


SHARES = {"memory_efficiency", "attention_efficiency", "attention_backward", "spread", "k_half", "tile_side", "burst"}


@pytest.mark.parametrize("name", INHERITING)
def test_efficiencies_that_a_file_lacks_are_those_of_a_measured_gpu(name: str) -> None:
    entry = device(GPUS, name)
    assert entry.efficiency_of
    gpu, measured = entry.accelerator(), device(GPUS, entry.efficiency_of).accelerator()
    for key in SHARES - entry.model_fields_set:
        assert getattr(gpu, key) == getattr(measured, key)
    if entry.generation is None and "matmul_efficiency" not in entry.model_fields_set:
        assert gpu.matmul_efficiency == measured.matmul_efficiency


def test_products_of_a_generation_run_at_the_rate_that_power_allows() -> None:
    h100, less, h20 = (device(GPUS, name).accelerator() for name in ("h100", "h100_96gb", "h20"))
    assert less.matmul_efficiency == pytest.approx(h100.matmul_efficiency * (500 / 700) ** 0.5)
    # an H20 has the power for more than its peak
    assert h20.matmul_efficiency * h20.burst == pytest.approx(0.95)


@pytest.mark.parametrize("name", ["b300", "gb200", "gb300"])
def test_blackwell_keeps_one_ratio_of_rate_to_the_square_root_of_power(name: str) -> None:
    b200, other = device(GPUS, "b200"), device(GPUS, name)
    one, two = (each.accelerator() for each in (b200, other))
    expected = products_at_power(one.matmul_efficiency * one.burst, b200, other)
    assert two.matmul_efficiency * two.burst == pytest.approx(expected, rel=0.06)


class Holder(Section):
    gpu: Gpu


def read_gpu(folder: Path, text: str) -> Accelerator:
    path = folder / "x.yaml"
    path.write_text(f"gpu: {text}\n")
    return validated(read(path), Holder).gpu.accelerator()


def test_a_gpu_of_ones_own_may_take_efficiencies_and_set_some(tmp_path: Path) -> None:
    gpu = read_gpu(
        tmp_path,
        "{peak_flops: {fp16: 100 TFLOP/s}, memory_bandwidth: 1 TB/s, efficiency_of: a100_80gb, memory_efficiency: 0.5}",
    )
    a100 = device(GPUS, "a100_80gb").accelerator()
    assert (gpu.matmul_efficiency, gpu.memory_efficiency) == (a100.matmul_efficiency, 0.5)
    assert (gpu.k_half, gpu.tile_side) == (a100.k_half, a100.tile_side)


def test_an_unknown_gpu_cannot_lend_its_efficiencies(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as error:
        read_gpu(tmp_path, "{peak_flops: 1 TFLOP/s, efficiency_of: a1000}")
    assert '1:45: gpu.efficiency_of: unknown GPU "a1000"; there are: a100_40gb, a100_80gb' in str(error.value)


def _flash() -> tuple[float, float]:
    """Shares of the peak of an H800 over those of an A100, forward and backward.

    zhuzilin/ring-flash-attention, README.md: calls a second of one GPU's flash attention over 64K causal tokens, for
    eight GPUs, alone and with the backward pass.
    """
    peaks = 312 / 989
    forward, both = 73.9 / 46.7 * peaks, (1 / 11.8 - 1 / 46.7) / (1 / 19.3 - 1 / 73.9) * peaks
    return forward, both


FLASH = _flash()


@pytest.mark.parametrize("name", ["h100", "b200", "a100_40gb"])
def test_what_is_inherited_from_the_fit_follows_the_rule_that_its_source_tells(name: str) -> None:
    fitted, gpu = device(GPUS, "a100_80gb").accelerator(), device(GPUS, name).accelerator()
    assert (gpu.memory_efficiency, gpu.spread) == (fitted.memory_efficiency, fitted.spread)
    forward, backward = FLASH if "times 0.499" in lookup.data_file(GPUS, name).read_text() else (1.0, 1.0)
    assert gpu.attention_efficiency == pytest.approx(fitted.attention_efficiency * forward, abs=1e-3)
    assert gpu.attention_backward == pytest.approx(fitted.attention_backward * backward, abs=1e-3)


def test_an_h800_is_an_h100_with_fewer_links() -> None:
    h100, h800 = device(GPUS, "h100"), device(GPUS, "h800")
    assert replace(h800.accelerator(), name="h100") == h100.accelerator()
    assert h800.links is not None
    # 400 GB/s both directions (arXiv:2505.11432)
    assert link(h800.links.kind, count=h800.links.count).bandwidth == 200e9


@pytest.mark.parametrize("name", lookup.names(LINKS))
def test_links_load(name: str) -> None:
    data = link_data(name)
    assert 1e9 <= data.bandwidth <= 1e12
    assert 0 < data.latency < 10e-6


def rows() -> dict[str, dict[str, str]]:
    path = DATA / "hardware_specs.csv"
    if not path.exists():
        pytest.skip("the published data sheets are not here")
    with path.open() as file:
        return {row["device"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("v100_16gb", "V100-SXM2-16GB"),
        ("v100_32gb", "V100-SXM2-32GB"),
        ("a100_40gb", "A100-SXM-40GB"),
        ("a100_80gb", "A100-SXM-80GB"),
        ("h100", "H100-SXM-80GB"),
        ("h200", "H200-SXM"),
        ("b200", "B200-SXM"),
        ("mi250x_gcd", "MI250X single GCD"),
        ("mi300x", "MI300X"),
    ],
)
def test_gpus_agree_with_the_published_table(name: str, row: str) -> None:
    published, gpu = rows()[row], device(GPUS, name)
    accelerator = gpu.accelerator()
    assert accelerator.peak("fp16") == pytest.approx(float(published["fp16_bf16_dense_TFLOPs"]) * 1e12, rel=2e-3)
    assert accelerator.memory_bandwidth == pytest.approx(float(published["hbm_GBps"]) * 1e9, rel=0.03)
    assert accelerator.memory_bytes == pytest.approx(float(published["hbm_GB"]) * 1e9, rel=0.08)
    if published["nvlink_unidir_GBps"]:
        assert gpu.links is not None
        whole = link(gpu.links.kind, count=gpu.links.count)
        assert whole.bandwidth == pytest.approx(float(published["nvlink_unidir_GBps"]) * 1e9)


MEMORIES = {
    "nvidia-smi, memory.total: ": "MiB",
    "rocm-smi, VRAM Total Memory: ": "B",
    "Google Cloud, TPU v": "",
    "AMD": "",
}
"""Where a memory is read, and the unit in which the source prints it."""


@pytest.mark.parametrize("name", sorted(GPU_NAMES - {"unit"}))
def test_memories_are_what_the_driver_reports_in_one_unit(name: str) -> None:
    """All are MiB; those that a driver reports are its figure to the digit."""
    data = read(lookup.data_file(GPUS, name)).data
    count, unit = data["memory"].split()
    assert unit == "MiB"
    source = data["sources"]["memory"]
    told = next(prefix for prefix in MEMORIES if source.startswith(prefix))
    if MEMORIES[told]:
        first = int(source.removeprefix(told).split()[0].replace(",", ""))
        assert first == int(count) * (1 if MEMORIES[told] == "MiB" else 2**20)
    assert device(GPUS, name).accelerator().memory_bytes == int(count) * 2**20


def test_memories_that_nvidia_smi_prints() -> None:
    printed = {"h200": 143_771, "b200": 183_359, "b300": 275_040, "gb200": 189_471, "gb300": 284_208, "h20": 97_871}
    printed |= {
        "rtx_4090": 24_564,
        "rtx_3090": 24_576,
        "rtx_5090": 32_607,
        "p100": 16_280,
        "l40s": 46_068,
        "a30": 24_576,
    }
    assert {name: device(GPUS, name).accelerator().memory_bytes / 2**20 for name in printed} == printed
    assert device(GPUS, "mi300x").accelerator().memory_bytes == 206_141_652_992
    assert device(GPUS, "mi325x").accelerator().memory_bytes == 256 * 2**30


@pytest.mark.parametrize(
    ("folder", "name", "key"),
    [
        *((GPUS, name, key) for name, key in (("b200", "memory_bandwidth"), ("b300", "peak_flops"), ("h20", "power"))),
        *((LINKS, f"ici_{name}", "bandwidth") for name in ("v4", "v5e", "v5p")),
    ],
)
def test_a_contested_figure_names_both_sources(folder: str, name: str, key: str) -> None:
    source = read(lookup.data_file(folder, name)).data["sources"][key]
    assert "which is taken" in source
    assert "contested" in source


def test_products_of_mi250x_in_fp32_run_on_matrix_units() -> None:
    assert device(GPUS, "mi250x_gcd").accelerator().peak("fp32") == pytest.approx(47.85e12)
