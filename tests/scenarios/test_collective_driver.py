"""What drives a collective: processes of nccl-tests, one process for all GPUs, or torch."""

from __future__ import annotations

from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.network.library.nccl import nccl


def collective(size: str, driver: str | None = None, **more: Any) -> dict[str, Any]:
    what = {"kind": "all_reduce", "size": size} | ({} if driver is None else {"driver": driver}) | more
    scenario = {"version": 1, "cluster": {"preset": "dgx_a100_80gb"}, "collective": what}
    (row,) = Scenario.model_validate(scenario).run().summary()["collective"]
    return dict(row)


@pytest.mark.parametrize("size", ["1 KiB", "100 MiB"])
def test_torch_adds_its_handover(size: str) -> None:
    alone, by_torch = collective(size), collective(size, "torch")
    assert collective(size, "processes") == alone
    assert by_torch["time_s"] - alone["time_s"] == pytest.approx(nccl().handover)
    assert 10e-6 < nccl().handover < 40e-6


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_one_process_launches_on_every_gpu_in_turn(ranks: int) -> None:
    """A vector of 1 MiB opens all 24 channels (NCCL on DGX A100); on eight GPUs the host is slower than they are, on
    two it is not, and on four both take some 49 us."""
    library = nccl()
    host = ranks * (library.issue + 24 * library.issue_channel)
    by_torch, by_one = (collective("1 MiB", driver, ranks=ranks)["time_s"] for driver in ("torch", "one_process"))
    assert by_one == pytest.approx(max(by_torch, host))
    low, high = {2: (0.5, 0.8), 4: (0.9, 1.1), 8: (1.5, 2.0)}[ranks]
    assert low < host / by_torch < high


def test_of_large_vectors_the_host_is_not_seen() -> None:
    assert collective("1 GiB", "one_process")["time_s"] == collective("1 GiB", "torch")["time_s"]
