"""The catalogue: every file loads, every value has its source, and figures agree with the published table."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from clustersim.simulator.hardware.accelerator import FLASH_2_BACKWARD, Accelerator
from clustersim.simulator.hardware.kernel import Kernel, matmul
from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import Section
from clustersim.simulator.reading.validation import validated
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.topologies import cluster
from clustersim.topologies.catalogue import CPUS, GPUS, IN_STEPS, LINKS, device, link, link_data, products_at_power
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
    *("a100_pcie_40gb", "a100_pcie_80gb", "a100_64gb", "h100_pcie", "h100_nvl", "gh200", "rtx_pro_6000", "l40"),
    *("mi350x", "mi355x", "tpu_v6e", "tpu_v7x", "trainium2", "gaudi2", "gaudi3"),
}
CLUSTER_NAMES = {
    *("zhores", "dgx1", "dgx_a100_40gb", "dgx_a100_80gb", "dgx_h100"),
    *("selene", "perlmutter", "frontier", "p3_8xlarge", "p3_16xlarge", "p100_25gbe", "p4d_24xlarge"),
    *("dgx2", "dgx_h200", "dgx_b200", "gb200_nvl72", "p5_48xlarge", "p5en_48xlarge", "p6_b200_48xlarge", "g5_48xlarge"),
    *("nd_a100_v4", "nd_h100_v5", "a3_highgpu_8g", "rtx_4090_workstation", "mi300x_platform"),
    *("dgx_b300", "gb300_nvl72", "tpu_v4_512", "tpu_v5e_pod", "tpu_v5p_512"),
    *("p4de_24xlarge", "p5e_48xlarge", "p6_b300_48xlarge", "p6e_gb200", "trn2_48xlarge", "nd_h200_v5", "nd_gb200_v6"),
    *("a3_megagpu_8g", "a3_ultragpu_8g", "a4_highgpu_8g", "a4x_nvl72", "alps", "jupiter", "leonardo", "lumi"),
    *("tpu_v6e_pod", "tpu_v7x_pod", "tpu_v7x_512", "gaudi2_server", "gaudi3_server", "mi355x_platform"),
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
    by_power = {"burst"} if entry.generation is not None else set()
    for key in SHARES - entry.model_fields_set - by_power:
        assert getattr(gpu, key) == getattr(measured, key)
    if entry.generation is None and "matmul_efficiency" not in entry.model_fields_set:
        assert gpu.matmul_efficiency == measured.matmul_efficiency


def test_products_of_a_generation_run_at_the_rate_that_power_allows() -> None:
    h100, less, h20 = (device(GPUS, name).accelerator() for name in ("h100", "h100_96gb", "h20"))
    assert less.matmul_efficiency == pytest.approx(h100.matmul_efficiency * (500 / 700) ** 0.5)
    # an H20 has the power for more than its peak, so that its clock falls neither in a burst nor in a step
    assert h20.matmul_efficiency * h20.burst == pytest.approx(0.95)
    assert h20.burst == pytest.approx(1.0 / IN_STEPS)


def test_long_products_of_an_rtx_4090_run_as_measured() -> None:
    """mli/transformers-benchmarks, issue 4: fp16 for seconds; zzc0721/torch-performance-test-data, issue 78: bf16."""
    gpu = device(GPUS, "rtx_4090").accelerator()
    flops = 2.0 * 8192**3
    product = Kernel(flops, 3 * 2.0 * 8192**2, precision="bf16", shape=(1, 8192, 8192, 8192))
    alone = gpu.kernel_seconds(product) * IN_STEPS
    assert flops / alone / 1e12 == pytest.approx((158.6 + 160.2) / 2, rel=0.03)


LARGE_PRODUCTS = {
    "a10g": (66.6, 0.03),
    "a40": (110.6, 0.03),
    "l4": (59.4, 0.03),
    "rtx_5090": (234.7, 0.1),
    "rtx_a6000": (110.6, 0.05),
}
"""TFLOP/s in bf16 of 8192 x 8192 (zzc0721/torch-performance-test-data, issues 126, 185, 120 and 96), and the tolerance:
an RTX A6000 is an A40 with more bandwidth; a share of the peak is 1 at the most, which an RTX 5090 exceeds."""


@pytest.mark.parametrize("name", LARGE_PRODUCTS)
def test_large_products_alone_run_as_measured(name: str) -> None:
    (measured, tolerance), gpu, flops = LARGE_PRODUCTS[name], device(GPUS, name).accelerator(), 2.0 * 8192**3
    seconds = gpu.alone().kernel_seconds(
        Kernel(flops, 3 * 2.0 * 8192**2, precision="bf16", shape=(1, 8192, 8192, 8192))
    )
    assert flops / seconds / 1e12 == pytest.approx(measured, rel=tolerance)


def test_a_p100_sums_products_of_fp16_at_the_rate_of_fp32() -> None:
    """zzc0721/torch-performance-test-data, issue 180: 7.3 TFLOP/s in fp16 and 9.5 in fp32, of 21.2 and 10.6."""
    gpu, sides = device(GPUS, "p100").accelerator().alone(), (8192, 8192, 8192)
    halves, singles = (gpu.kernel_seconds(matmul(*sides, precision=one)) for one in ("fp16", "fp32"))
    assert 2.0 * 8192**3 / halves / 1e12 == pytest.approx(7.29, rel=0.03)
    assert 2.0 * 8192**3 / singles / 1e12 == pytest.approx(9.5, rel=0.12)


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


@pytest.mark.parametrize("name", ["h100", "b200", "a100_40gb"])
def test_what_is_inherited_from_the_fit_follows_the_rule_that_its_source_tells(name: str) -> None:
    fitted, gpu = device(GPUS, "a100_80gb").accelerator(), device(GPUS, name).accelerator()
    assert (gpu.memory_efficiency, gpu.spread) == (fitted.memory_efficiency, fitted.spread)
    measured = device(GPUS, "a100_80gb" if name.startswith("a100") else "h100").accelerator()
    # FlashAttention-2 runs at one rate on each SM of Hopper and Blackwell
    grown = gpu.sms / measured.sms * measured.peak("bf16") / gpu.peak("bf16") if name == "b200" else 1.0
    assert gpu.attention_efficiency == pytest.approx(measured.attention_efficiency * grown, abs=5e-4)
    assert gpu.attention_backward == pytest.approx(measured.attention_backward * grown, abs=5e-4)


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
        ("a100_pcie_80gb", "A100-PCIe-80GB"),
        ("h100_pcie", "H100-PCIe-80GB"),
        ("gh200", "GH200"),
        ("gaudi2", "Gaudi2"),
        ("tpu_v5p", "TPUv5p chip"),
    ],
)
def test_gpus_agree_with_the_published_table(name: str, row: str) -> None:
    published, gpu = rows()[row], device(GPUS, name)
    accelerator = gpu.accelerator()
    precision = "fp16" if name.startswith("v100") else "bf16"
    assert accelerator.peak(precision) == pytest.approx(float(published["fp16_bf16_dense_TFLOPs"]) * 1e12, rel=2e-3)
    assert accelerator.memory_bandwidth == pytest.approx(float(published["hbm_GBps"]) * 1e9, rel=0.03)
    assert accelerator.memory_bytes == pytest.approx(float(published["hbm_GB"]) * 1e9, rel=0.08)
    if published["nvlink_unidir_GBps"]:
        assert gpu.links is not None
        whole = link(gpu.links.kind, count=gpu.links.count)
        assert whole.bandwidth == pytest.approx(float(published["nvlink_unidir_GBps"]) * 1e9)


MEMORIES = {
    "nvidia-smi, memory.total: ": "MiB",
    "rocm-smi, VRAM Total Memory: ": "B",
    "hl-smi, memory.total: ": "MiB",
    "Google Cloud, TPU v": "",
    "AWS Neuron": "",
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
        *((GPUS, name, key) for name, key in (("gaudi3", "peak_flops"), ("tpu_v6e", "memory_bandwidth"))),
        *((LINKS, f"ici_{name}", "bandwidth") for name in ("v4", "v5e", "v5p", "v6e")),
    ],
)
def test_a_contested_figure_names_both_sources(folder: str, name: str, key: str) -> None:
    source = read(lookup.data_file(folder, name)).data["sources"][key]
    assert "which is taken" in source
    assert "contested" in source


def test_products_of_mi250x_in_fp32_run_on_matrix_units() -> None:
    assert device(GPUS, "mi250x_gcd").accelerator().peak("fp32") == pytest.approx(47.85e12)


SECOND: dict[str, tuple[float, float | None, float | None, float | None]] = {
    "mi355x": (2500, 5000, 288, 8.0),
    "tpu_v7x": (2307, 4614, None, None),
    "gaudi3": (1677, 1677, 128, 3.7),
    "gaudi2": (432, 865, 96, 2.46),
    "tpu_v6e": (918, 918, None, None),
    "trainium2": (667, 1299, 96, 2.9),
    "h100_pcie": (756, 1513, 80, 2.0),
    "gh200": (989, 1979, 96, 4.0),
    "a100_pcie_80gb": (312, None, 80, 1.94),
}
"""stas00/ml-engineering, compute/accelerator/README.md (August 2026): TFLOPS in bf16 and fp8, memory in GB, TB/s."""


@pytest.mark.parametrize("name", sorted(SECOND))
def test_accelerators_agree_with_a_second_table(name: str) -> None:
    bf16, fp8, memory, bandwidth = SECOND[name]
    made = device(GPUS, name).accelerator()
    assert made.peak("bf16") == pytest.approx(bf16 * 1e12, rel=0.01)
    if fp8 is not None:
        assert made.peak("fp8") == pytest.approx(fp8 * 1e12, rel=0.01)
    if memory is not None and bandwidth is not None:
        # some makers count in powers of two, and print GB
        assert memory * 1e9 <= made.memory_bytes <= memory * 2**30
        assert made.memory_bandwidth == pytest.approx(bandwidth * 1e12, rel=0.01)


@pytest.mark.parametrize(
    ("name", "other", "precision", "ratio"),
    [
        # 2.4 and 2.2 GHz; 124 and 108 SMs; half of the tensor rate; the clocks of two editions; twice at half the bits
        ("mi355x", "mi350x", "bf16", 2.4 / 2.2),
        ("a100_64gb", "a100_80gb", "bf16", 124 / 108),
        ("l40s", "l40", "bf16", 2),
        ("l40s", "l40", "fp32", 91.6 / 90.5),
        ("gh200", "h100", "fp8", 1),
        ("tpu_v6e", "tpu_v5e", "bf16", 4.66),
        ("a100_pcie_40gb", "a100_40gb", "bf16", 1),
    ],
)
def test_siblings_keep_the_ratio_of_their_units_and_clocks(name: str, other: str, precision: str, ratio: float) -> None:
    one, two = (device(GPUS, each).accelerator().peak(precision) for each in (name, other))
    assert one / two == pytest.approx(ratio, rel=2e-3)


def test_mi355x_counts_its_units() -> None:
    # CDNA 4: 256 compute units of 4,096 FLOP a clock in 16 bits, and of 256 in fp32
    for name, clock in (("mi350x", 2.2e9), ("mi355x", 2.4e9)):
        made = device(GPUS, name).accelerator()
        assert made.peak("bf16") == pytest.approx(made.sms * 4096 * clock, rel=1e-3)
        assert made.peak("fp32") == pytest.approx(made.sms * 256 * clock, rel=1e-3)


def test_products_under_less_power_are_slower() -> None:
    """Sustained rates in bf16: cards for PCIe run below the modules with the same die."""
    order = ("a100_pcie_40gb", "a100_pcie_80gb", "a100_80gb", "h100_pcie", "h100_nvl", "gh200")
    rates = [(made := device(GPUS, name).accelerator()).peak("bf16") * made.matmul_efficiency for name in order]
    assert rates == sorted(rates)
    gb200, gb300 = (device(GPUS, name).accelerator() for name in ("gb200", "gb300"))
    assert gb300.peak("bf16") == gb200.peak("bf16")
    assert gb300.matmul_efficiency / gb200.matmul_efficiency == pytest.approx((1400 / 1200) ** 0.5, rel=0.07)


NODES = {
    # Tb/s of a node's NICs, as the vendor prints it
    "p4de_24xlarge": (8, 0.4),
    "p5e_48xlarge": (8, 3.2),
    "p6_b300_48xlarge": (8, 6.4),
    "p6e_gb200": (72, 28.8),
    "trn2_48xlarge": (16, 3.2),
    "a3_megagpu_8g": (8, 1.6),
    "a3_ultragpu_8g": (8, 3.2),
    "a4_highgpu_8g": (8, 3.2),
    "a4x_nvl72": (72, 18 * 1.6),
    "nd_h200_v5": (8, 3.2),
    "nd_gb200_v6": (72, 28.8),
    "alps": (4, 0.8),
    "jupiter": (4, 0.8),
    "leonardo": (4, 0.4),
    "lumi": (8, 0.8),
    "tpu_v6e_pod": (256, 25.6),
    "tpu_v7x_512": (512, 51.2),
    "gaudi2_server": (8, 2.4),
    "gaudi3_server": (8, 4.8),
    "mi355x_platform": (8, 3.2),
}


@pytest.mark.parametrize("name", sorted(NODES))
def test_the_network_of_a_node_is_what_its_vendor_prints(name: str) -> None:
    node = read(lookup.data_file(CLUSTERS, name)).data["node"]
    gpus, terabits = NODES[name]
    assert node["accelerators"] == gpus
    assert node["nics"] * link(node["nic"]["kind"]).bandwidth == pytest.approx(terabits * 1e12 / 8)


@pytest.mark.parametrize(
    ("name", "accelerators"),
    [("alps", 10_752), ("jupiter", 4 * 5884), ("leonardo", 13_824), ("lumi", 2 * 11_912), ("tpu_v7x_pod", 9_216)],
)
def test_machines_have_as_many_accelerators_as_published(name: str, accelerators: int) -> None:
    data = read(lookup.data_file(CLUSTERS, name)).data
    assert data["nodes"] * data["node"]["accelerators"] == accelerators


@pytest.mark.parametrize(
    ("name", "pair", "neighbours"),
    [
        ("alps", 150e9, 3),
        ("jupiter", 150e9, 3),
        ("leonardo", 100e9, 3),
        ("gaudi2_server", 3 * 12.5e9, 7),
        ("gaudi3_server", 3 * 25e9, 7),
        ("mi355x_platform", 76.8e9, 7),
        ("trn2_48xlarge", 128e9, 4),
    ],
)
def test_links_between_two_of_a_node(name: str, pair: float, neighbours: int) -> None:
    made = cluster({"preset": name, "nodes": 1})
    joined = made.between(made.gpus)
    assert {bandwidth for row in joined for bandwidth in row if bandwidth} == {pair}
    assert {sum(map(bool, row)) for row in joined} == {neighbours}


def test_trainium_2_makes_the_instance_that_aws_prints() -> None:
    # AWS Neuron documentation, Trn2 Architecture: 10.7 PFLOPS, 1,536 GiB, 46.4 TB/s, 1,024 GB/s of NeuronLink a chip
    chip, instance = device(GPUS, "trainium2"), cluster({"preset": "trn2_48xlarge", "nodes": 1})
    made = chip.accelerator()
    assert len(instance.gpus) * made.peak("bf16") == pytest.approx(10.7e15, rel=5e-3)
    assert len(instance.gpus) * made.memory_bytes == 1536 * 2**30
    assert len(instance.gpus) * made.memory_bandwidth == pytest.approx(46.4e12)
    assert chip.links is not None
    assert 2 * link(chip.links.kind, count=chip.links.count).bandwidth == pytest.approx(1024e9)


@pytest.mark.parametrize(
    ("name", "measured"), [("mi250x_gcd", "a100_80gb"), ("mi325x", "mi300x"), ("mi355x", "mi300x")]
)
def test_attention_that_was_not_measured_follows_the_products(name: str, measured: str) -> None:
    """It reaches the share of a GPU's products that it reaches on the GPU on which it was *measured*."""
    one, other = (device(GPUS, gpu).accelerator() for gpu in (name, measured))
    for attribute in ("attention_efficiency", "attention_backward"):
        ratio = getattr(one, attribute) / getattr(other, attribute)
        assert ratio == pytest.approx(one.matmul_efficiency / other.matmul_efficiency, rel=0.01)


def test_attention_of_mi300x_is_that_of_flash_attention_2() -> None:
    """340 and 202 TFLOP/s (ROCm/flash-attention, issue 142), of which steps reach 0.916 as on the A100."""
    gpu = device(GPUS, "mi300x").accelerator()
    assert gpu.attention_efficiency * gpu.peak("bf16") == pytest.approx(0.916 * 340e12, rel=0.01)
    assert gpu.attention_backward * FLASH_2_BACKWARD * gpu.peak("bf16") == pytest.approx(0.916 * 202e12, rel=0.01)
