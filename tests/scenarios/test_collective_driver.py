"""What drives a collective: processes of nccl-tests, one process for all GPUs, or torch."""

from __future__ import annotations

from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.network.library.nccl import nccl


def collective(
    size: str,
    driver: str | None = None,
    *,
    preset: str = "dgx_a100_80gb",
    nodes: int = 1,
    release: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    what = {"kind": "all_reduce", "size": size} | ({} if driver is None else {"driver": driver}) | more
    scenario = {"version": 1, "cluster": {"preset": preset, "nodes": nodes}, "collective": what}
    if release:
        scenario["network"] = {"version": release}
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


def test_one_process_drives_the_gpus_of_its_own_server() -> None:
    """Of 12 and of 16 GPUs of two servers a process launches on eight at most: a vector of 1 KiB opens one channel, one
    of 64 KiB sixteen.
    """
    library = nccl()
    for size, ranks, channels in (("1 KiB", 12, 1), ("64 KiB", 16, 16)):
        host = 8 * (library.issue + channels * library.issue_channel)
        assert collective(size, "one_process", nodes=2, ranks=ranks)["time_s"] == pytest.approx(host)


@pytest.mark.parametrize(("release", "counted"), [("2.10.3", 24), ("2.12.12", 24), ("2.13.4", 0), ("2.18.5", 0)])
def test_channels_take_time_of_the_host_until_their_records_are_in_one_heap(release: str, counted: int) -> None:
    library = nccl()
    host = 8 * (library.issue + counted * library.issue_channel)
    by_torch, by_one = (collective("1 MiB", driver, release=release)["time_s"] for driver in ("torch", "one_process"))
    assert by_one == pytest.approx(max(by_torch, host))
    assert (by_one > by_torch) == (counted > 0)


def test_gpus_that_only_newer_releases_know_have_one_heap() -> None:
    assert collective("1 KiB", "one_process", preset="dgx_h100")["time_s"] == pytest.approx(8 * nccl().issue)


def test_of_large_vectors_the_host_is_not_seen() -> None:
    assert collective("1 GiB", "one_process")["time_s"] == collective("1 GiB", "torch")["time_s"]
