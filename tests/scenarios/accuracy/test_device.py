"""A measured device is written as an accelerator that scenarios accept."""

import pytest

from clustersim import topologies
from clustersim.scenarios.accuracy.communication import write
from clustersim.scenarios.accuracy.device import contents, device_report, fitted, in_steps, section
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.simulator.replay.measurements import DeviceMeasurements, TimedCopy, TimedProduct
from clustersim.workloads.software_stack import specification
from tests.extras import require

require("torch", "the measurement needs torch")


COPIES = tuple(TimedCopy(2.0**power, 2e-6 + 2.0**power / 1.6e12) for power in range(20, 32, 2))


def measured(name, sms=None, host=()):
    sides = (256, 1024, 4096)
    products = tuple(TimedProduct("bf16", (s, s, s), 5e-6 + 2 * s**3 / 200e12) for s in sides)
    return DeviceMeasurements(name, products, COPIES, 3.5e-6, host, host, 80e9 if sms else None, sms)


@pytest.mark.parametrize(
    ("name", "sms", "keys"),
    [
        ("NVIDIA A100-SXM4-80GB", 108, {"preset", "matmul_efficiency", "memory_efficiency", "k_half"}),
        ("Some GPU", 60, {"name", "peak_flops", "memory", "memory_bandwidth", "sms", "k_half", "sources"}),
        ("cpu", None, {"name", "peak_flops", "memory_bandwidth", "sources"}),
    ],
)
def test_the_file_is_an_accelerator(name, sms, keys, tmp_path):
    found = fitted(measured(name, sms, COPIES))
    write(contents(found, {"date": "2026-01-31"}), tmp_path / "gpu.yaml")
    data = read(tmp_path / "gpu.yaml").data
    assert set(data["accelerator"]) == keys
    assert data["software"]["launch"] == "3.5 us"
    assert specification(str(tmp_path / "gpu.yaml")).build().launch_seconds == pytest.approx(3.5e-6)
    node = {"accelerator": str(tmp_path / "gpu.yaml"), "accelerators": 2, "host": data["host"]}
    cluster = topologies.cluster({"nodes": 1, "node": node})
    made, fit = cluster.accelerator("gpu 0"), found.entry.accelerator
    assert made.peak("bf16") * made.matmul_efficiency == pytest.approx(
        fit.peak("bf16") * fit.matmul_efficiency, rel=0.01
    )
    assert made.memory_bandwidth * made.memory_efficiency == pytest.approx(1.6e12, rel=0.02)
    if name.startswith("NVIDIA"):
        assert (made.name, made.memory_bytes) == ("a100_80gb", 80 * 2**30)


def test_the_report_has_every_product(tmp_path):
    report = device_report(fitted(measured("cpu")))
    assert [line.split()[1] for line in report.splitlines() if line.startswith("  bf16")] == ["256", "1024", "4096"]
    assert "launch: 3.5 us of the host for each kernel of eager training" in report


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "Some GPU"])
def test_products_measured_alone_are_slower_in_steps(name):
    alone = fitted(measured(name, 108))
    made, slower = alone.entry.accelerator, in_steps(alone)
    assert slower.entry.accelerator.matmul_efficiency == pytest.approx(0.916 * made.matmul_efficiency)
    assert section(slower)["matmul_efficiency"] == pytest.approx(0.916 * made.matmul_efficiency, rel=0.01)
    assert "products in steps: 0.916 of the rate alone" in device_report(slower)
    # the table is of products alone
    assert device_report(slower).partition("memory:")[0] == device_report(alone).partition("memory:")[0]


def test_a_processor_multiplies_in_steps_as_alone():
    found = fitted(measured("cpu"))
    assert in_steps(found) is found
