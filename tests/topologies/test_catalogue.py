"""The catalogue: every file loads, every value has its source, and figures agree with the published table."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from simulator import lookup
from simulator.accelerator import Accelerator
from simulator.document import Section, read, validated
from simulator.errors import ScenarioError
from topologies.catalogue import CPUS, GPUS, LINKS, device, link, link_data
from topologies.sections import Gpu
from topologies.specification import CLUSTERS

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


SHARES = {"matmul_efficiency", "memory_efficiency", "attention_efficiency", "attention_backward", "spread"}


@pytest.mark.parametrize("name", INHERITING)
def test_efficiencies_that_a_file_lacks_are_those_of_a_measured_gpu(name: str) -> None:
    entry = device(GPUS, name)
    assert entry.efficiency_of
    gpu, measured = entry.accelerator(), device(GPUS, entry.efficiency_of).accelerator()
    for key in SHARES - entry.model_fields_set:
        assert getattr(gpu, key) == getattr(measured, key)
    # a tile's loads and stores cost as many more inner steps as the GPU computes more for each byte
    one, other = (each.peak("fp16") / each.memory_bandwidth for each in (gpu, measured))
    assert gpu.k_half / one == pytest.approx(measured.k_half / other)


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
    assert gpu.k_half == pytest.approx(a100.k_half * (100e12 / 1e12) / (312e12 / a100.memory_bandwidth))


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
    if name != "a100_40gb":  # fitted itself, with the other A100
        ratio = gpu.peak("bf16") / gpu.memory_bandwidth / (fitted.peak("bf16") / fitted.memory_bandwidth)
        assert gpu.k_half == pytest.approx(fitted.k_half * ratio, rel=5e-3)
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
