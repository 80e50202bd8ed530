"""The fit to measured products: the stored values price the sample, and the catalogue has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from clustersim.scenarios.accuracy.imported_measurements import fit_tables
from clustersim.scenarios.accuracy.products import (
    QUANTITIES,
    ProductFit,
    Products,
    by_class,
    fitted,
    held_out,
    landed,
    read_products,
    shipped,
)
from clustersim.scenarios.results.uncertainty import of_products
from clustersim.scenarios.specification.loading import SHIPPED
from clustersim.simulator.hardware.kernel import matmul
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.topologies.catalogue import GPUS, IN_STEPS, device

SAMPLE = SHIPPED / "published" / "products.csv"
STORED = read(SHIPPED / "accuracy" / "products.yaml").data
TABLES = read_products(SAMPLE)


def mean_errors(tables: list[Products], stored: ProductFit) -> dict[tuple[str, str], float]:
    return {(one.gpu, one.precision): float(np.abs(one.errors(stored.values(one.gpu))).mean()) for one in tables}


def test_the_stored_fit_prices_products_of_all_sizes() -> None:
    errors = mean_errors(TABLES, shipped())
    assert len(errors) == 15
    assert fmean(errors.values()) < 0.08
    assert max(error for (gpu, _), error in errors.items() if gpu != "l40s") < 0.11


def test_the_stored_errors_of_gpus_that_were_left_out() -> None:
    """8 % where the fit knows another GPU of the generation; the only Ampere and Ada GPUs are known less well."""
    without = {gpu: fmean(one["all"]["left_out_mean"] for one in of.values()) for gpu, of in STORED["errors"].items()}
    alone = {"a100_80gb", "l40s"}
    assert fmean(error for gpu, error in without.items() if gpu not in alone) < 0.08
    assert all(error > 0.1 for gpu, error in without.items() if gpu in alone)
    assert STORED["unmeasured"]["generation"] < 0.05 < STORED["unmeasured"]["nothing"]


def test_a_gpu_left_out_is_priced_by_its_generation() -> None:
    """A fit of the sample without the H200 prices it as well as the stored one, which is of all rows."""
    hopper = [one for one in TABLES if one.gpu in ("h100", "h200") and one.precision == "bf16"]
    for table, errors in held_out(hopper)["h200"]:
        assert np.abs(errors).mean() < 0.085
        assert by_class(table.flops, errors)["all"][0] == len(table.seconds) == 100


def test_a_fit_finds_the_values_that_made_the_times() -> None:
    truth = {name: quantity.start for name, quantity in QUANTITIES.items()} | {"k_half": 60.0, "tile_side": 120.0}
    made = [replace(one, seconds=one.predicted({**truth, "share": 0.7})) for one in TABLES if one.gpu == "gb200"]
    found = fitted(made)
    assert found.shares["gb200"] == pytest.approx(0.7, rel=0.02)
    # what is known before pulls at those that few rows determine
    for name in ("k_half", "tile_side", "kernel_latency", "overlap", "cast"):
        assert found.generations["blackwell"][name] == pytest.approx(truth[name], rel=0.12), name


@pytest.mark.parametrize("gpu", sorted(STORED["shares"]))
def test_the_catalogue_has_what_was_fitted(gpu: str) -> None:
    """Burst and step differ by the power limit and by what steps reach; together they are the fitted share."""
    made = device(GPUS, gpu).accelerator()
    for key, value in landed(shipped(), gpu).items():
        found = getattr(made, key)
        rounded = 0.03 if "latency" in key or gpu == "a100_80gb" else 5e-3  # steps determine the A100's
        assert found == pytest.approx(value, rel=rounded) or found is None, key
    assert (made.low_precision_efficiency is None) == (gpu == "a100_80gb")
    assert made.alone().matmul_efficiency == pytest.approx(shipped().shares[gpu], rel=5e-3)
    assert of_products(gpu) == 0.0


def test_products_in_steps_are_those_to_which_runs_on_the_a100_were_fitted() -> None:
    a100 = read(SHIPPED / "accuracy" / "a100.yaml").data["parameters"]["a100.matmul_efficiency"]["value"]
    assert a100 == pytest.approx(IN_STEPS * shipped().shares["a100_80gb"], rel=0.02)
    assert device(GPUS, "a100_80gb").accelerator().matmul_efficiency == a100


def test_a_short_product_of_the_simulator_takes_what_the_fit_says() -> None:
    """The simulator's price is the fit's without what belongs to the measurement: casts, caches, a lower clock."""
    table = next(one for one in TABLES if one.gpu == "h100" and one.precision == "bf16")
    values = shipped().values("h100") | {"sustained": 1.0, "cached": 1e-6}
    gpu = device(GPUS, "h100").accelerator().alone()
    kernels = [matmul(*map(int, sides), precision="bf16") for sides in table.sides]
    assert table.predicted(values) == pytest.approx([gpu.kernel_seconds(kernel) for kernel in kernels], rel=0.01)


def test_gpus_without_data_have_their_generations_uncertainty() -> None:
    assert of_products("h800") == STORED["unmeasured"]["generation"]
    assert of_products("rtx_3090") == STORED["unmeasured"]["nothing"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu,dtype,m,n,k,us\nh100,bf16,8,8,8,-1\n", "products.csv:2: sides and times of products are above 0"),
        ("gpu,dtype,m,n,k,us\nh100,bf16,8,8,x,1\n", "products.csv:2: a product needs dtype, gpu, k, m, n, us"),
        ("gpu,dtype,m,n,k,us\nrtx_3090,bf16,8,8,8,1\n", "rtx_3090: generation None; products are fitted for"),
        ("gpu,dtype,m,n,k,us\nnone,bf16,8,8,8,1\n", 'unknown name "none"; there are'),
        ("gpu,dtype,m,n,k,us\nh100,fp16,8,8,8,1\n", "products.csv:2: products of bf16 or fp8 are fitted, not of fp16"),
        ("gpu,dtype,m,n,k,us\n", "products.csv: has no rows"),
    ],
)
def test_a_bad_table_is_told_in_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "products.csv"
    path.write_text(text)
    with pytest.raises(CalibrationError) as error:
        fit_tables([path], tmp_path / "out.yaml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
