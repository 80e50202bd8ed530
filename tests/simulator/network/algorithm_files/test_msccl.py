"""Algorithm files of MSCCL: read, proved on symbolic chunks, and as fast as the same algorithm of our own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.algorithm_files import algorithm_file
from clustersim.simulator.network.collectives import direct
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.library.ideal import ideal
from clustersim.simulator.network.step import Group
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.topologies.uniform_and_tree import uniform


def ring(ranks: int) -> str:
    """An all-reduce around one ring, as MSCCLang writes it: receive, reduce and send in one."""
    lines = [f'<algo name="ring" coll="allreduce" ngpus="{ranks}" nchannels="1" inplace="1" proto="Simple">']
    for rank in range(ranks):
        lines.append(f'<gpu id="{rank}" i_chunks="{ranks}" o_chunks="0" s_chunks="0">')
        lines.append(f'<tb id="0" send="{(rank + 1) % ranks}" recv="{(rank - 1) % ranks}" chan="0">')
        kinds = ["s", *["rrs"] * (ranks - 2), "rrcs", *["rcs"] * (ranks - 2), "r"]
        for step, kind in enumerate(kinds):
            chunk = (rank - step) % ranks
            place = f'srcbuf="i" srcoff="{chunk}" dstbuf="i" dstoff="{chunk}"'
            lines.append(f'<step s="{step}" type="{kind}" {place} cnt="1" depid="-1" deps="-1" hasdep="0"/>')
        lines.append("</tb></gpu>")
    return "\n".join([*lines, "</algo>"])


def all_to_all(ranks: int) -> str:
    """Each rank sends block j to rank j, by a thread block for each peer, and copies its own."""
    lines = [f'<algo name="direct" coll="alltoall" ngpus="{ranks}" nchannels="1" inplace="0">']
    for rank in range(ranks):
        lines.append(f'<gpu id="{rank}" i_chunks="{ranks}" o_chunks="{ranks}" s_chunks="0">')
        for peer in range(ranks):
            own = peer == rank
            lines.append(f'<tb id="{peer}" send="{-1 if own else peer}" recv="{-1 if own else peer}" chan="0">')
            place = f'srcbuf="i" srcoff="{peer}" dstbuf="o" dstoff="{peer}" cnt="1"'
            lines += [f'<step s="{s}" type="{kind}" {place}/>' for s, kind in enumerate(["cpy"] if own else ["s", "r"])]
            lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"])


def written(folder: Path, text: str) -> str:
    path = folder / "algo.xml"
    path.write_text(text)
    algorithm_file.algorithm.cache_clear()
    return str(path)


def seconds(cluster: Cluster, kind: str, name: str, nbytes: float) -> float:
    ranks = len(cluster.gpus)
    network = Communicator(cluster, cluster.gpus, ideal(), "flow", {kind: name})
    plan = network.collective(kind, "all", tuple(range(ranks)), nbytes)
    return sum(
        phase.latency + max((phase.nbytes / flow.alone for flow in phase.flows), default=0.0) for phase in plan.phases
    )


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_from_a_file_takes_as_long_as_our_ring(ranks: int, tmp_path: Path) -> None:
    """2 (p - 1) rounds of d / p."""
    path = written(tmp_path, ring(ranks))
    steps = algorithm_file.algorithm(path)(Group(ranks), 1e9)
    assert sum(step.repeat for step in steps) == 2 * (ranks - 1)
    assert {step.nbytes for step in steps} == {1e9 / ranks}
    cluster = uniform(ranks, 25e9, 1e-6)
    assert seconds(cluster, "all_reduce", path, 1e9) == pytest.approx(seconds(cluster, "all_reduce", "ring", 1e9))
    assert seconds(cluster, "all_reduce", path, 1e9) > 2 * (ranks - 1) / ranks * 1e9 / 25e9


def test_an_all_to_all_sends_what_our_direct_one_sends(tmp_path: Path) -> None:
    steps = algorithm_file.algorithm(written(tmp_path, all_to_all(4)))(Group(4), 1e9)
    ours = direct.all_to_all(Group(4), 1e9)
    sent = [sorted((*t, step.nbytes) for step in some for t in step.transfers) for some in (steps, ours)]
    assert sent[0] == sent[1]


WRONG: list[tuple[Callable[[str], str], str]] = [
    (lambda text: text.replace('type="r" ', 'type="nop" ', 1), r"rank 1 ends with|is lost: rank 3 sends it to rank 0"),
    (
        lambda text: text.replace('depid="-1" deps="-1"', 'depid="0" deps="5"', 1),
        r"algo.xml:4: deadlock: rank 0, thread block 0, step 0 waits with chunk i\[0\] for step 5 of thread block 0",
    ),
    (
        lambda text: text.replace('chan="0"', 'chan="1"', 1),
        r"algo.xml:5: deadlock: rank 0, thread block 0, step 1 waits for chunk i\[3\] from rank 3 on channel 1",
    ),
    (
        lambda text: text.replace('type="rrcs"', 'type="rcs"', 1),
        r"all_reduce is wrong: rank 0 ends with no contribution of rank 0 in the place of chunk 1",
    ),
    (
        lambda text: text.replace('type="rrs" srcbuf="i" srcoff="3"', 'type="rrs" srcbuf="i" srcoff="1"', 1),
        r"algo.xml:5: rank 0 adds chunk 3 to chunk 1",
    ),
    (lambda text: text.replace('cnt="1"', 'cnt="2"', 1), r"rank 1 receives 1 chunks, but rank 0 sends 2 in line 4"),
    (
        lambda text: text.replace('chan="0"', 'chan="64"', 1),
        r"algo.xml:3: chan is 64, but NCCL has 64 channels, from 0",
    ),
    (lambda text: text.replace('type="s"', 'type="send"', 1), r'algo.xml:4: type "send" is no instruction'),
    (lambda text: text.replace('coll="allreduce"', 'coll="sum"'), r'algo.xml:1: coll "sum" is not read'),
    (lambda text: text.replace('ngpus="4"', 'ngpus="5"'), r"ngpus is 5, but there are GPUs 0, 1, 2, 3"),
    (lambda text: text[:300], r"algo.xml:\d+: is no XML"),
    (lambda text: '<!DOCTYPE a [<!ENTITY b "c">]>' + text, r"algo.xml:1: declares an entity"),
    (lambda text: text.replace('srcoff="0"', 'srcoff="x"', 1), r'algo.xml:4: srcoff must be a whole number, not "x"'),
    (lambda text: text.replace('cnt="1"', 'cnt="0"', 1), r"algo.xml:4: cnt must be 1 to 65,536, not 0"),
    (lambda text: text.replace('srcoff="0"', 'srcoff="-4"', 1), r"algo.xml:4: srcoff must be 0 to 65,536, not -4"),
    (lambda text: text.replace('depid="-1"', 'depid="0"', 1), r"algo.xml:4: deps is required beside depid 0"),
    (lambda text: text.replace('send="1"', 'send="0"', 1), r"algo.xml:3: rank 0 sends to itself"),
    (lambda text: text.replace('i_chunks="4"', 'i_chunks="0"', 1), r"algo.xml:2: i_chunks must be 1 to 65,536, not 0"),
    (lambda text: text.replace('srcoff="0"', 'srcoff="9"', 1), r"rank 0 takes chunk i\[9\], of which it has nothing"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_wrong_file_names_line_chunk_and_rank(change: Callable[[str], str], message: str, tmp_path: Path) -> None:
    path = written(tmp_path, change(ring(4)))
    with pytest.raises(SimulatorError, match=message):
        algorithm_file.algorithm(path)


def test_other_numbers_of_ranks_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, ring(4))
    with pytest.raises(SimulatorError, match="is for 4 ranks, and the group has 3 ranks"):
        seconds(uniform(3, 25e9, 1e-6), "all_reduce", path, 1e6)
