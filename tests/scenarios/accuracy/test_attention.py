"""The fit to measured fused attention: the stored values are those of the sample, and the catalogue has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clustersim.scenarios.accuracy.attention import START, Attention, calibration, landed, read_attention, shipped
from clustersim.scenarios.specification.loading import SHIPPED
from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.topologies.catalogue import GPUS, device

SAMPLE = SHIPPED / "published" / "attention.csv"
STORED = read(SHIPPED / "accuracy" / "attention.yaml").data
TABLES = read_attention(SAMPLE)


def test_the_stored_fit_is_that_of_the_sample() -> None:
    made = calibration(SAMPLE)
    for generation, values in STORED["generations"].items():
        assert made["generations"][generation] == pytest.approx(values, rel=0.02)
    assert STORED["errors"].keys() == {one.gpu for one in TABLES}


def test_a_gpu_left_out_is_predicted_by_its_generation() -> None:
    """Hardly worse than with it, and without a bias: head sizes and exponential units are in the model."""
    errors = [one for one in STORED["errors"].values() if "left_out_mean" in one]
    assert len(errors) == 6
    assert all(one["left_out_mean"] < 0.14 and abs(one["left_out_bias"]) < 0.04 for one in errors)


def for_each_score(one: Attention, seconds: np.ndarray, head_size: int) -> float:
    """The median time of a score in sequences of 4,096 tokens and more."""
    batch, length, heads, _, size = one.sides.T
    chosen = (length >= 4096) & (size == head_size) & (one.seconds > 5e-4)
    return float(np.median((seconds / (batch * heads * length**2))[chosen]))


@pytest.mark.parametrize("gpu", ["h100", "h200", "b200", "b300", "gb200", "gb300"])
def test_small_heads_are_slower_by_their_exponentials(gpu: str) -> None:
    """A score of heads of 64 has half of the products of one of 128, and takes more than half of its time."""
    one = next(table for table in TABLES if table.gpu == gpu)
    measured, modelled = (
        for_each_score(one, seconds, 64) / for_each_score(one, seconds, 128)
        for seconds in (one.seconds, one.predicted(shipped()[one.generation]))
    )
    assert 0.55 < measured < 0.85
    assert modelled == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize("gpu", ["h100", "b200"])
def test_the_catalogue_has_the_fit(gpu: str) -> None:
    entry = device(GPUS, gpu)
    for key, value in landed(gpu).items():
        assert getattr(entry, key) == pytest.approx(value, rel=2e-3), key


def test_the_simulator_adds_exponentials_to_products() -> None:
    """One exponential a score, by hand: two products forward and five backward."""
    gpu = replace(
        device(GPUS, "h100").accelerator(), spread=0.0, cudnn_attention_start=0.0, cudnn_attention_backward_start=0.0
    )
    software = Software(cudnn_attention=True)
    assert gpu.cudnn_attention_efficiency and gpu.cudnn_attention_backward
    scores, size = 1e10, 64
    for which, products, share in (
        ("forward", 2, gpu.cudnn_attention_efficiency),
        ("backward", 5, gpu.cudnn_attention_backward),
    ):
        kernel = Kernel(1.0, 0.0, (products * 100, 10_000, 10_000, size), "bf16", attention=which)  # type: ignore[arg-type]
        expected = products * 2 * scores * size / (989e12 * share) + scores / (gpu.exponentials * 132)
        assert gpu.kernel_seconds(kernel, software) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "gpu,batch,length,heads,key_value_heads,head_size,us\nh100,1,512,8,8,128,-1\n",
            "attention.csv:2: sides and times",
        ),
        (
            "gpu,batch,length,heads,key_value_heads,head_size\nh100,1,512,8,8,128\n",
            "attention.csv:2: a kernel of attention",
        ),
        (
            "gpu,batch,length,heads,key_value_heads,head_size,us\nl40s,1,512,8,8,128,9\n",
            "l40s: attention is fitted for",
        ),
        ("gpu,batch,length,heads,key_value_heads,head_size,us\nh1,1,512,8,8,128,9\n", 'unknown name "h1"'),
        ("gpu,batch,length,heads,key_value_heads,head_size,us\n", "attention.csv: has no rows"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "attention.csv"
    path.write_text(text)
    with pytest.raises(CalibrationError, match=message):
        read_attention(path)


def test_the_start_of_the_fit_has_all_parameters() -> None:
    assert all(values.keys() == START.keys() for values in shipped().values())
