"""The fit of NCCL: shipped values against their measurements; neighbouring values fit them worse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scenarios.fitting.fit import fit
from scenarios.fitting.least_squares import HUBER
from scenarios.fitting.nccl_tests import NVLS, PARAMETERS, machine, predicted, rows
from scenarios.fitting.row import Row
from simulator.errors import CalibrationError
from simulator.least_squares import NORMAL_MAD
from simulator.network.transport.group_properties import NET, NVLINK
from simulator.network.transport.nccl import nccl

PUBLISHED = Path(__file__).parents[3] / "scenarios/published"
TABLES = ("nccl_allreduce_one_node", "nccl_measured", "nccl_8xH100_allreduce")


def shipped() -> dict[str, float]:
    library = nccl()
    return {
        "launch": library.launch,
        "nvlink_share": library.efficiency[NVLINK],
        "ampere_channels": library.limits["nvlink3"],
        "ll128_share": library.shares["ring", "LL128", False],
        "net_share": library.efficiency[NET],
        "handover": library.handover,
        "nvls_base": library.base_latency[NVLS],
        "nvls_round": library.round_latency[NVLS],
        "nvls_share": library.shares[(*NVLS, False)],
        "issue": library.issue,
        "issue_channel": library.issue_channel,
    }


@pytest.fixture(scope="module")
def measured() -> list[Row]:
    return [row for name in TABLES for row in rows(PUBLISHED / f"{name}.csv")]


def test_what_is_shipped_is_near_the_measured(measured: list[Row]) -> None:
    """One server, 1 MiB to 1 GiB: 4.2 % in the mean; 32 GPUs of 4 servers from 32 KiB: 7.3 %; 8 H100: 5.1 %."""
    values = shipped()
    one = [abs(row.error(values)) for row in measured if row.groups["data"] == TABLES[0]]
    four = [abs(row.error(values)) for row in measured if row.groups["machine"] == "4 nodes"]
    assert (len(one), len(four)) == (66, 20)
    assert np.mean(one) < 0.05
    assert np.mean(four) < 0.08
    assert np.mean([abs(row.error(values)) for row in measured if row.groups["machine"] == "H100"]) < 0.06


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [parameter.name for parameter in PARAMETERS])
def test_no_other_value_of_a_parameter_fits_better(name: str, measured: list[Row]) -> None:
    """By Huber's loss, a tenth up or down."""
    values = shipped()
    touched = [row for row in measured if name in row.uses]
    residuals = [row.residual(values) for row in touched]
    bend = HUBER * NORMAL_MAD * float(np.median(np.abs(residuals)))

    def loss(factor: float) -> float:
        sizes = (abs(row.residual({**values, name: values[name] * factor})) for row in touched)
        return sum(size**2 / 2 if size < bend else bend * (size - bend / 2) for size in sizes)

    assert loss(1.0) < min(loss(0.9), loss(1.1))


def test_small_vectors_show_the_host_that_launches_on_every_gpu_in_turn() -> None:
    """8 A100, 64 KiB: eight launches of two channels each; with a process for each GPU nothing of it is seen."""
    values = {**shipped(), "issue": 50e-6, "issue_channel": 1e-6}
    assert predicted(machine("A100"), 8, 2.0**16, values) == pytest.approx(8 * (50e-6 + 2 * 1e-6))
    alone = predicted(machine("4 nodes"), 32, 2.0**16, values)
    assert alone == predicted(machine("4 nodes"), 32, 2.0**16, shipped())


def test_a_table_of_something_else_is_told(tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    path.write_text("model,layer,forward_ms\nvgg16,1,2.5\n")
    with pytest.raises(
        CalibrationError,
        match=r"layers\.csv: is no table that can be fitted; a table of all-reduces has the columns gpu",
    ):
        fit([path], tmp_path / "out.yaml")
