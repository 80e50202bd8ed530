"""The launcher receives every rank's messages, reports the first failure, and leaves no process behind."""

import os
import signal
import time
from pathlib import Path

import pytest

from clustersim.simulator.reading.errors import ReplayError
from clustersim.simulator.replay.launch import launch
from clustersim.simulator.replay.rank_process import NetworkPlace
from tests.extras import require

require("torch")


def process(member, argument):
    """Report this process, then do as *argument* says."""
    import torch
    import torch.distributed as dist

    member.report(os.getpid())
    dist.barrier()
    if argument == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if argument == "exit":
        os._exit(3)
    if argument == "fail":
        raise ValueError("no such thing\nas torch tells it at length")
    vector = torch.ones(1)
    dist.all_reduce(vector)
    if argument == "hang":
        time.sleep(600)
    if argument == "late":
        # the others have finished before; the store, by which ranks find one another, is rank 0's
        time.sleep(1.0)
        dist.distributed_c10d._get_default_store().add("late", 1)
    return member.rank, float(vector)


def launched(*arguments, timeout=300.0):
    """The results, and the processes that ran."""
    processes = {}
    try:
        return launch(process, arguments, timeout=timeout, on_report=processes.__setitem__), processes
    except ReplayError as error:
        return str(error), processes


def gone(processes):
    """Whether all of *processes* have ended. The fork server takes a moment to reap them."""
    for _ in range(2400):
        left = [process for process in processes if Path(f"/proc/{process}").exists()]
        if not left:
            return True
        time.sleep(0.05)
    return False


def test_rank_0_keeps_the_store_until_all_are_done():
    results, processes = launched("", "", "late")
    assert results == [(0, 3.0), (1, 3.0), (2, 3.0)]
    assert gone(processes.values())


def test_results_come_in_order_of_ranks():
    results, processes = launched("", "", "")
    assert results == [(0, 3.0), (1, 3.0), (2, 3.0)]
    assert sorted(processes) == [0, 1, 2]
    assert gone(processes.values())


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("die", "rank 1 died (SIGKILL)"),
        ("exit", "rank 1 died (exit status 3)"),
        ("fail", "rank 1 failed: ValueError: no such thing"),
    ],
)
def test_the_failed_rank_is_reported_and_the_others_end(what, expected):
    error, processes = launched("", what, "")
    assert error == expected
    assert len(processes) == 3
    assert gone(processes.values())


def test_time_runs_out():
    launched("")  # from now on there is a fork server
    error, processes = launched("hang", "hang", timeout=2.0)
    assert error == "no end after 2 s: ranks 0, 1 are still at work; see --timeout"
    assert gone(processes.values())


def test_a_missing_namespace():
    with pytest.raises(ReplayError, match=r"rank 0 failed: FileNotFoundError: .*nowhere"):
        launch(process, [""], places=[NetworkPlace(0, namespace="nowhere")], timeout=300.0)


def test_nccl_without_gpus():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ReplayError, match="nccl needs a GPU for each rank of a machine, but GPU 0 is missing"):
        launch(process, [""], backend="nccl", timeout=300.0)
