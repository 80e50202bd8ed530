"""Execution plans of MSCCL++: read, proved on symbolic chunks with the order of accesses, and as fast as they send."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clustersim.simulator.network.algorithm_files import algorithm_file
from clustersim.simulator.network.step import Group
from clustersim.simulator.reading.errors import SimulatorError

PLANS = Path(__file__).with_name("plans")

Op = dict[str, Any]


def synchronized(name: str, count: int) -> Op:
    return {"name": name, "channel_type": "memory", "channel_ids": list(range(count))}


def chunk(index: int, **where: Any) -> Op:
    return {**(where or {"type": "i"}), "index": index, "size": 1}


def plan(collective: str, ranks: int, blocks: list[list[Op]], inputs: int, outputs: int) -> dict[str, Any]:
    """One thread block on each GPU, with a channel to each other GPU and its input buffer as remote buffer."""
    every = range(ranks)
    gpus = []
    for rank, ops in enumerate(blocks):
        peers = [peer for peer in every if peer != rank]
        numbers = list(range(len(peers)))
        block = {
            "id": 0,
            "ops": ops,
            "channels": [{"channel_type": "memory", "channel_ids": numbers}],
            "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": numbers}],
        }
        gpus.append(
            {
                "id": rank,
                "input_chunks": inputs,
                "output_chunks": outputs,
                "scratch_chunks": 0,
                "threadblocks": [block],
                "channels": [{"channel_type": "memory", "connected_to": peers}],
                "remote_buffers": [{"rank": peer, "type": "i", "access_channel_types": ["memory"]} for peer in peers],
                "semaphores": [],
            }
        )
    return {"name": "own", "collective": collective, "protocol": "Simple", "inplace": True, "gpus": gpus}


def all_pairs(ranks: int) -> dict[str, Any]:
    """Each rank reads its block of all others, adds, and writes the sum to all: the all-reduce of MSCCL++'s paper."""
    others = range(ranks - 1)
    blocks = [
        [
            synchronized("signal", ranks - 1),
            synchronized("wait", ranks - 1),
            {
                "name": "rres",
                "channel_type": "memory",
                "src_buff": [chunk(rank), *(chunk(rank, buffer_id=one) for one in others)],
                "dst_buff": [chunk(rank), *(chunk(rank, buffer_id=one) for one in others)],
            },
            synchronized("signal", ranks - 1),
            synchronized("wait", ranks - 1),
        ]
        for rank in range(ranks)
    ]
    return plan("allreduce", ranks, blocks, ranks, ranks)


def written(folder: Path, text: str) -> str:
    path = folder / "plan.json"
    path.write_text(text)
    algorithm_file.algorithm.cache_clear()
    return str(path)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_all_pairs_takes_a_signal_a_reduction_and_a_copy(ranks: int, tmp_path: Path) -> None:
    """3 rounds between all pairs: nothing, then 1 / p of the vector twice."""
    steps = algorithm_file.algorithm(written(tmp_path, json.dumps(all_pairs(ranks))))(Group(ranks), 1.0)
    assert [(step.nbytes, step.repeat) for step in steps] == [(0.0, 1), (pytest.approx(1 / ranks), 2)]
    pairs = {(one, other) for one in range(ranks) for other in range(ranks) if one != other}
    assert all(set(step.transfers) == pairs for step in steps)


@pytest.mark.parametrize(
    ("name", "kind", "ranks", "blocks", "sent"),
    [
        ("allreduce", "all_reduce", 2, 8, 2.0),
        ("allreduce_packet", "all_reduce", 2, 2, 2.0),
        ("transfer_pack_tbg", "all_gather", 2, 6, 1.0),
    ],
)
def test_plans_of_mscclpp_are_right(name: str, kind: str, ranks: int, blocks: int, sent: float) -> None:
    """*sent*: bytes by all ranks, in vectors: 2 (p - 1) of an all-reduce, p - 1 of an all-gather."""
    own = algorithm_file.algorithm(str(PLANS / f"{name}.json"))
    assert (own.kind, own.ranks, own.thread_blocks, own.switched) == (kind, ranks, blocks, False)
    steps = own(Group(ranks), 1.0)
    assert sum(step.nbytes * len(step.transfers) * step.repeat for step in steps) == pytest.approx(sent)


@pytest.mark.parametrize(("name", "ranks"), [("allreduce_pipeline", 4), ("reduce_nvls", 2)])
def test_switches_carry_what_nvls_carries(name: str, ranks: int) -> None:
    """Each rank gets its block from all ranks and sends the sum to all, both through the switches."""
    own = algorithm_file.algorithm(str(PLANS / f"{name}.json"))
    assert own.switched
    through = [step for step in own(Group(ranks), 1e9) if step.in_switch]
    assert sum(step.nbytes * step.repeat for step in through) == pytest.approx(1e9 / ranks)
    assert {len(step.transfers) for step in through} == {2 * ranks * (ranks - 1)}


def test_a_pipeline_has_iterations_by_size() -> None:
    """Each is of 512 KiB of one of four chunks; copies and signals of the next one overlap the switches."""
    own = algorithm_file.algorithm(str(PLANS / "allreduce_pipeline.json"))
    steps = [[step.in_switch for step in own(Group(4), size * 2**20)] for size in (2, 4, 6)]
    assert steps == [[False, *[True] * iterations] for iterations in (1, 2, 3)]


def test_a_read_before_its_write_is_a_fault_in_any_order() -> None:
    """Thread block 1 of GPU 1 copies what thread block 0 of GPU 0 gets, which awaits thread block 0 of GPU 1 alone."""
    message = (
        r"gpu 0, threadblock 0, op 7 \(get\): rank 0 reads chunk s\[1\] of rank 1 without waiting for "
        r"gpu 1, threadblock 1, op 0 \(copy\), which writes it"
    )
    with pytest.raises(SimulatorError, match=message):
        algorithm_file.algorithm(str(PLANS / "reduce_tbg.json"))


def ops(given: dict[str, Any], rank: int = 0) -> list[Op]:
    found: list[Op] = given["gpus"][rank]["threadblocks"][0]["ops"]
    return found


WRONG: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (
        lambda given: [ops(given, 1).pop(place) for place in (3, 0)],
        r"gpu 0, threadblock 0, op 1 \(wait\): deadlock: rank 0 waits for a signal of rank 1 over memory channel 0, "
        r"for ever; chunk i\[0\] of rank 0 waits with it",
    ),
    (lambda given: ops(given).pop(), r"1 signals of rank 1 to rank 0 over memory channel 0 are not awaited"),
    (
        lambda given: [ops(given, rank).pop() for rank in range(4) for _ in range(2)],
        r"rank 0 ends without waiting for chunk o\[1\], which gpu 1, threadblock 0, op 2 \(rres\) writes",
    ),
    (
        lambda given: ops(given)[2]["src_buff"].pop(),
        r"all_reduce is wrong: rank 0 ends with no contribution of rank 3 in the place of chunk 0",
    ),
    (lambda given: ops(given)[2]["dst_buff"].pop(), r"rank 3 ends with no contribution of ranks 0, 1, 2 in the place"),
    (
        lambda given: ops(given)[2]["src_buff"][1].update(index=1),
        r"\(rres\): rank 0 (adds chunk 1 to chunk 0|reads chunk i\[1\] of rank 1 without waiting for gpu 1, )",
    ),
    (lambda given: ops(given)[2]["src_buff"][0].update(index=1), r"\(rres\): rank 0 adds chunk 0 to chunk 1"),
    (lambda given: ops(given)[2]["src_buff"][0].update(type="s"), r"takes chunk s\[0\] of rank 0, which holds nothing"),
    (lambda given: ops(given)[2]["src_buff"][0].update(size=2), r"moves chunks between spans of different sizes"),
    (lambda given: ops(given)[2]["src_buff"][1].update(buffer_id=7), r"names remote buffer 7 over memory"),
    (lambda given: ops(given)[0].update(channel_ids=[9]), r"op 0 \(signal\): names memory channel 9"),
    (
        lambda given: ops(given)[0].update(name="sned"),
        r"gpus\[0\].threadblocks\[0\].ops\[0\].name must be nop, barrier",
    ),
    (lambda given: ops(given)[2]["src_buff"][0].update(index=-1), r"src_buff\[0\].index must be at least 0, not -1"),
    (lambda given: ops(given)[2]["src_buff"][0].pop("type"), r"names no buffer: give type, buffer_id or"),
    (
        lambda given: ops(given).extend([{"name": "nop"}] * 60),
        r"has 65 operations; a thread block of MSCCL\+\+ holds 64",
    ),
    (lambda given: given.update(collective="sendrecv"), r'collective "sendrecv" is not read; there are allreduce'),
    (lambda given: given["gpus"][2].update(id=3), r"gpus\[2\].id must be 2, not 3"),
    (lambda given: given["gpus"][2].update(input_chunks=8), r"gpus\[2\].input_chunks is 8, that of gpus\[0\] 4"),
    (lambda given: given["gpus"].pop(), r"gpus\[0\]: names rank 3, but there are 3"),
    (lambda given: given.pop("gpus"), r"gpus is required"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_wrong_plan_names_operation_chunk_and_rank(
    change: Callable[[dict[str, Any]], Any], message: str, tmp_path: Path
) -> None:
    given = all_pairs(4)
    change(given)
    path = written(tmp_path, json.dumps(given))
    with pytest.raises(SimulatorError, match=message):
        algorithm_file.algorithm(path)


def test_a_file_cut_off_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(SimulatorError, match=r"plan.json:1:\d+: is no JSON"):
        algorithm_file.algorithm(written(tmp_path, json.dumps(all_pairs(2))[:99]))


def test_a_packet_that_nobody_sends_is_named(tmp_path: Path) -> None:
    given = json.loads((PLANS / "allreduce_packet.json").read_text())
    ops(given, 1).pop(0)
    with pytest.raises(SimulatorError, match=r"deadlock: rank 0 waits for chunk s\[0\] in packets, which nobody sends"):
        algorithm_file.algorithm(written(tmp_path, json.dumps(given)))
