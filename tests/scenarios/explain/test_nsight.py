"""Reports of Nsight Systems: tables of the documented schema become steps, phases, collectives and copies."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.real_traces import nsight
from clustersim.scenarios.real_traces.rank_trace import rank_trace
from clustersim.simulator.reading.errors import TraceError

# Nsight Systems, User Guide, "SQLite Schema Reference"; columns that are not read are left out
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId
    INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, streamId
    INTEGER, correlationId INTEGER, bytes INTEGER, copyKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, globalTid INTEGER,
    textId INTEGER, domainId INTEGER);
"""

PROCESS, MAIN, AUTOGRAD = 77, 1, 2
MS = 1_000_000
STRINGS = {
    1: "void gemm<float>(int)",
    2: "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    3: "cudaLaunchKernel",
    4: "step 7",
}

# name, begin on the GPU, end on the GPU (ms), launched by, launched at (ms)
STEP = (
    (1, 1, 3, MAIN, 0.5),
    (1, 3, 7, AUTOGRAD, 3.5),
    (2, 7, 9, AUTOGRAD, 4.0),
    (1, 9, 10, MAIN, 8.0),
)
PHASES = (("forward", 0.4, 3.0), ("backward", 3.2, 5.0), ("optimizer.step", 7.5, 8.5))


def thread(number, process=PROCESS):
    return process << 24 | number


def report(path, steps=3, processes=(PROCESS,)):
    """A report with a step every 11 ms: forward 2 ms, backward 4, all-reduce 2, optimizer 1, a copy of 0.5 ms."""
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(SCHEMA)
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", STRINGS.items())
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100 80GB HBM3')")
        for process in processes:
            for step in range(steps):
                _step(database, step, process)
    return path


def _step(database, step, process):
    base = step * 11
    at = lambda ms: round((base + ms) * MS)  # noqa: E731
    named = (4,) if step == 7 else (None,)
    text = None if step == 7 else f"iteration {step}"
    nvtx = "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, ?, 0)"
    database.execute(nvtx, (at(0.1), at(11), text, thread(MAIN, process), *named))
    for name, begin, end in PHASES:
        database.execute(nvtx, (at(begin), at(end), name, thread(MAIN, process), None))
    # a mark has no end
    database.execute("INSERT INTO NVTX_EVENTS VALUES (?, NULL, 34, 'mark', ?, NULL, 0)", (at(1), thread(MAIN, process)))
    for place, (name, begin, end, by, launched) in enumerate(STEP):
        correlation, stream = 1000 * step + place, 20 if name == 2 else 7
        row = (at(begin), at(end), 0, 1, stream, correlation, process << 24, name, name)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        call = (at(launched), at(launched) + 5000, thread(by, process), correlation, 3, 0)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?)", call)
    copy = (at(10), at(10.5), 0, 7, 1000 * step + 99, 4096, 1)
    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, ?, ?, ?, ?)", copy)
    call = (at(8.2), at(8.3), thread(MAIN, process), 1000 * step + 99, 3, 0)
    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?)", call)


def test_a_report_has_steps_phases_collectives_and_copies(tmp_path):
    trace = rank_trace(report(tmp_path / "report.sqlite"))
    assert trace.device == "NVIDIA H100 80GB HBM3"
    # the first step is left out: when it began on the GPU is not known
    assert [step.number for step in trace.steps] == [1, 2]
    assert trace.step_time == pytest.approx(11e-3)
    seconds = {}
    for piece in trace.measured():
        seconds[piece.part] = seconds.get(piece.part, 0.0) + piece.seconds / 2
    expected = {"forward": 2e-3, "backward": 4e-3, "all_reduce": 2e-3, "optimizer": 1e-3, "copy": 0.5e-3}
    assert seconds == pytest.approx(expected)


def test_explain_reads_a_folder_of_reports(tmp_path, capsys):
    for rank in (0, 1):
        report(tmp_path / f"rank{rank}.sqlite")
    assert run(["explain", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "2 ranks" in out
    assert "step 11 ms" in out or "11 ms" in out
    assert "all_reduce" in out


def test_a_text_may_be_a_number_of_the_strings(tmp_path):
    trace = rank_trace(report(tmp_path / "report.sqlite", steps=8))
    assert [step.number for step in trace.steps] == list(range(1, 8))


@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=3), min_size=1, max_size=3), st.integers(0, 10**6))
def test_operators_of_emit_nvtx_have_their_shapes(sizes, number):
    name, args = nsight._named(f"aten::addmm, seq = {number}, op_id = {number}, sizes = {sizes}")
    assert (name, args) == ("aten::addmm", {"Input Dims": sizes})


def damaged(path):
    report(path)
    content = bytearray(path.read_bytes())
    content[4096:8192] = b"\xff" * 4096
    path.write_bytes(content)


def without_names(path):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE other (id INTEGER)")


def of_other_columns(path):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER)")


def backwards(path):
    report(path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 3 WHERE start > 5")


def empty(path):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (damaged, "is no sound SQLite file"),
        (without_names, "has no table StringIds"),
        (of_other_columns, "table CUPTI_ACTIVITY_KIND_KERNEL has no column end"),
        (backwards, "both must be nanoseconds"),
        (empty, "record with nsys profile -t cuda,nvtx"),
        (lambda path: report(path, processes=(5, 6)), "has kernels of 2 processes"),
    ],
)
def test_bad_reports_are_told(made, told, tmp_path):
    path = tmp_path / "bad.sqlite"
    made(path)
    with pytest.raises(TraceError, match=told):
        rank_trace(path)


def test_a_report_that_is_not_exported_is_told(tmp_path, capsys):
    path = tmp_path / "report.nsys-rep"
    path.write_bytes(b"xx")
    assert run(["explain", str(path)]) == 2
    assert "nsys export --type sqlite report.nsys-rep" in capsys.readouterr().err
