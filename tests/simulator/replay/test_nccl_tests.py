"""nccl-tests' output is read as printed: by several versions, by launchers, as text and as JSON."""

import json

import pytest

from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.replay.nccl_tests import is_text, of_json, of_text

RANKS = [
    "#  Rank  0 Group  0 Pid  41120 on     node-a device  0 [0000:07:00] NVIDIA A100-SXM4-80GB",
    "#  Rank  1 Group  0 Pid  41121 on     node-a device  1 [0000:0f:00] NVIDIA A100-SXM4-80GB",
    "#  Rank  2 Group  0 Pid  28001 on     node-b device  0 [0000:07:00] NVIDIA A100-SXM4-80GB",
    "#  Rank  3 Group  0 Pid  28002 on     node-b device  1 [0000:0f:00] NVIDIA A100-SXM4-80GB",
]
HEADER = [
    f"#{'out-of-place':>75}{'in-place':>35}          ",
    f"#{'size':>11}{'count':>14}{'type':>10}{'redop':>8}{'root':>8}{'     time   algbw   busbw #wrong' * 2}",
    f"#{'(B)':>11}{'(elements)':>14}{'(us)  (GB/s)  (GB/s)':>51}{'(us)  (GB/s)  (GB/s)':>31}       ",
]


def row(nbytes, redop, root, *figures):
    """A row as printf formats it."""
    start = f"{nbytes:12}  {nbytes // 4:12}  {'float':>8}  {redop:>6}  {root:>6}"
    return start + "".join(f"  {time:>7}  {algbw:>6}  {busbw:>6}      0" for time, algbw, busbw in figures)


ROWS = [
    row(1048576, "sum", "-1", ("105.9", "9.90", "14.85"), ("105.7", "9.92", "14.88")),
    row(2097152, "sum", "-1", ("N/A", "N/A", "N/A"), ("140.4", "14.94", "22.41")),
]
FOOTER = ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 18.6 ", "#"]
NEW = [
    "# nccl-tests version 2.18.2 nccl-headers=23007 nccl-library=23007",
    "# Collective test starting: all_reduce_perf",
]
THREADS = "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1"


def text(*parts):
    return "\n".join(line for part in parts for line in ([part] if isinstance(part, str) else part)) + "\n"


def test_a_run_on_two_hosts():
    sweeps = of_text(text(NEW, THREADS, "# Using devices", RANKS, "#", HEADER, ROWS, FOOTER), "out.txt")
    assert [(m.kind, m.nbytes, m.seconds, m.ranks) for m in sweeps.measurements] == [
        ("all_reduce", 1048576, pytest.approx(105.9e-6), (0, 1, 2, 3)),
        ("all_reduce", 2097152, pytest.approx(140.4e-6), (0, 1, 2, 3)),
    ]
    assert sweeps.measurements[0].busbw == pytest.approx(14.85e9, rel=1e-3)
    assert (sweeps.ranks, sweeps.servers, sweeps.gpu, sweeps.version) == (4, 2, "NVIDIA A100-SXM4-80GB", "2.30")


def test_an_old_run_by_mpirun_of_one_process():
    columns = (
        "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error"
    )
    line = "     1048576        262144   float     sum    60.00   17.48   30.58  2e-07    60.10   17.45   30.53  2e-07"
    threads = "# nThread 1 nGpus 8 minBytes 1048576 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20"
    lines = ["$ ./build/all_reduce_perf -g 8", threads, "NCCL version 2.8.4+cuda11.1", columns, line]
    sweeps = of_text(text([f"[1,0]<stdout>:{one}" for one in lines]), "old.txt")
    (one,) = sweeps.measurements
    assert (one.kind, len(one.ranks), one.seconds, sweeps.version) == ("all_reduce", 8, pytest.approx(60e-6), "2.8")


@pytest.mark.parametrize(
    ("redop", "root", "busbw", "kind"),
    [
        ("sum", "-1", "15.00", "all_reduce"),
        ("sum", "-1", "7.50", "reduce_scatter"),
        ("none", "-1", "7.50", "all_gather"),
        ("none", "0", "10.00", "broadcast"),
        ("sum", "0", "10.00", "reduce"),
    ],
)
def test_the_collective_without_the_programs_name(redop, root, busbw, kind):
    line = row(1048576, redop, root, ("104.86", "10.00", busbw), ("N/A", "N/A", "N/A"))
    (one,) = of_text(text(RANKS, HEADER, line), "x.txt").measurements
    assert one.kind == kind


def test_several_runs_in_one_file():
    gathered = row(1048576, "none", "-1", ("90.00", "11.65", "8.74"), ("N/A", "N/A", "N/A"))
    runs = text(NEW, THREADS, RANKS, HEADER, ROWS, "# Collective test starting: all_gather_perf", HEADER, gathered)
    assert [one.kind for one in of_text(runs, "x").measurements] == ["all_reduce", "all_reduce", "all_gather"]
    assert is_text(runs)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([RANKS, HEADER], r"out\.txt: has no row of nccl-tests with a time"),
        ([NEW, HEADER, ROWS], r"out\.txt:6: the lines above do not list two or more ranks"),
        (
            [NEW, RANKS, HEADER, "     1048576        262144     float"],
            r"out\.txt:10: has 3 columns; the header has 13",
        ),
        (["# sendrecv_perf", RANKS, HEADER, ROWS], r"out\.txt:9: sendrecv_perf is unknown; there are all_reduce,"),
    ],
)
def test_invalid_text(lines, message):
    with pytest.raises(CalibrationError, match=message):
        of_text(text(*lines), "out.txt")


def report(**changes):
    """As ``-J`` writes it: numbers as numbers; roots, booleans and nan as text."""
    timed = {"time": 105.9, "alg_bw": 9.9, "bus_bw": 14.85, "nwrong": 0.0}
    devices = [
        {"rank": r, "hostname": f"node-{'ab'[r // 2]}", "device": r % 2, "device_info": "NVIDIA H100"} for r in range(4)
    ]
    one = {"size": 1048576, "count": 262144, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": timed}
    whole = {
        "version": 2,
        "args": ["./build/all_reduce_perf", "-b", "1M"],
        "nccl_version": 22005,
        "config": {"nthreads": 1, "ngpus": 1, "devices": devices},
        "results": [one, {**one, "size": 2097152, "out_of_place": None, "in_place": {**timed, "time": 140.4}}],
    }
    return json.loads(json.dumps({**whole, **changes}))


def test_json():
    sweeps = of_json(report(), "x.json")
    assert [(m.kind, m.nbytes, m.seconds) for m in sweeps.measurements] == [
        ("all_reduce", 1048576, pytest.approx(105.9e-6)),
        ("all_reduce", 2097152, pytest.approx(140.4e-6)),
    ]
    assert (sweeps.ranks, sweeps.servers, sweeps.gpu, sweeps.version) == (4, 2, "NVIDIA H100", "2.20")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": None}, r"x\.json: has no config"),
        ({"results": [3]}, r"x\.json: results\[0\]: must be an object, not 3"),
        ({"results": []}, r"x\.json: has no result with a time"),
        ({"args": ["alltoallv_perf"]}, r"x\.json: results\[0\]: alltoallv_perf is unknown"),
        ({"config": {"ngpus": 1}}, r"x\.json: results\[0\]: 1 rank by config"),
    ],
)
def test_invalid_json(changes, message):
    with pytest.raises(CalibrationError, match=message):
        of_json(report(**changes), "x.json")
