"""`clustersim calibrate` from end to end: on two real ranks, and from files of measurements."""

import json

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.accuracy.device import BrokenCalibrationError, measured, with_rows_kept
from clustersim.scenarios.commands.command_line import run
from clustersim.simulator.network.library.calibration_file import loaded
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.simulator.replay.measurements import SizeSweep
from tests.extras import require

require("torch", "ranks need torch")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def answer(capsys, *arguments, status=0):
    assert run([*arguments]) == status
    return capsys.readouterr()


def simulated(kind, sizes, ranks=2):
    """Seconds of a collective with the cluster and the transport of the written file."""
    data = {
        "version": 1,
        "cluster": {"preset": "cal.yaml"},
        "collective": {"kind": kind, "size": [f"{size} B" for size in sizes]},
        "network": {"transport": "cal.yaml"},
    }
    rows = Scenario.model_validate(data).run().summary()["collective"]
    return [row["time_s"] for row in rows]


@pytest.mark.exhaustive
def test_two_ranks_measure_and_the_file_agrees_with_the_table(capsys):
    # more rows than the library has parameters: the search for those that fit fewer exactly is long
    sweep = ["-b", "8", "-e", "64K", "-f", "16", "-n", "4", "-w", "1", "--kind", "send", "--kind", "all_reduce"]
    out = answer(capsys, "calibrate", *sweep, "-o", "cal.yaml").out
    table = out.split("all_reduce of 2 ranks")[1].split("\n\n")[0].splitlines()
    rows = [line.split() for line in table if line.split()[-2:] == ["ring", "tcp"]]
    sizes, fitted = [int(row[0]) for row in rows], [float(row[-4]) * 1e-6 for row in rows]
    # on a busy machine rows are left out: those of more bytes that took less time
    assert sizes
    assert set(sizes) <= {8, 128, 2048, 32768}
    # the table has four digits
    assert simulated("all_reduce", sizes) == pytest.approx(fitted, rel=1e-3)
    assert "wrote cal.yaml and cal.rows.json" in out
    found = read("cal.yaml").data
    assert set(found) == {"version", "library", "transport", "cluster", "uncertainty", "provenance"}
    assert f"\n{found['provenance']['rows']} rows: median error" in out
    assert loaded("cal.yaml").name == "gloo"
    again = answer(capsys, "calibrate", "--from", "cal.rows.json", "-o", "again.yaml").out
    assert again.split("parameters")[0] in out
    assert read("again.yaml").data["transport"] == found["transport"]


def test_ranks_that_break_off_leave_what_they_measured(tmp_path):
    sweep = SizeSweep((8, 16), ("send", "nonsense"), iterations=2, warmup=0, batches=1)
    with pytest.raises(BrokenCalibrationError, match=r"rank . failed: KeyError: 'nonsense'") as broken:
        measured(sweep, 2, timeout=60)
    error = with_rows_kept(broken.value, tmp_path / "cal.yaml", "gloo")
    assert str(error).endswith(f"2 measurements kept: clustersim calibrate --from {tmp_path}/cal.rows.json fits them")
    rows = json.loads((tmp_path / "cal.rows.json").read_text())
    assert [(row["kind"], row["nbytes"]) for row in rows["measurements"]] == [("send", 8), ("send", 16)]


def test_cases_are_visited_in_turn_and_the_least_time_holds():
    told = []
    sweep = SizeSweep((8, 4096), ("send", "all_reduce"), iterations=3, warmup=1, batches=2, visits=3, budget=20.0)
    rows = measured(sweep, 2, timeout=100, on_measurement=told.append)
    assert rows is not None
    cases = [("send", 8), ("send", 4096), ("all_reduce", 8), ("all_reduce", 4096)]
    assert [(row.kind, row.nbytes) for row in told] == 3 * cases
    assert [(row.kind, row.nbytes) for row in rows] == cases
    for number, row in enumerate(rows):
        seconds = [one.seconds for one in told[number::4]]
        assert row.seconds == seconds[-1] == min(seconds) > 0
        assert row.spread >= 0


def test_the_budget_ends_the_visits_after_the_first():
    told = []
    sweep = SizeSweep((8, 16), ("send",), iterations=2, warmup=0, batches=1, visits=5, budget=1e-6)
    assert len(measured(sweep, 2, timeout=60, on_measurement=told.append) or ()) == len(told) == 2
    assert sweep.cases == 2 and sweep.share == 1e-7


def test_an_interrupt_keeps_the_measurements():
    def interrupt(_one):
        raise KeyboardInterrupt

    sweep = SizeSweep((8, 16), ("send",), iterations=2, warmup=0, batches=1)
    with pytest.raises(BrokenCalibrationError, match="interrupted") as broken:
        measured(sweep, 2, timeout=60, on_measurement=interrupt)
    assert len(broken.value.measurements) == 1


def test_a_deadline(capsys):
    err = answer(capsys, "calibrate", "--timeout", "0.01", status=2).err
    assert err.startswith("no end after 0.01 s") and err.endswith("nothing had been measured\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--end", "12Q"], "--end 12Q: must be bytes, e.g. 8, 64K or 128M (powers of two, as in nccl-tests)"),
        (["--begin", "1M", "--end", "1K"], "--end 1K: must be at least --begin, 1M"),
        (["--kind", "allreduce"], "--kind allreduce: must be send, all_reduce, all_gather, reduce_scatter, broadcast,"),
        (["--backend", "mpi"], "--backend mpi: must be gloo or nccl"),
        (["hello", "--ranks", "5"], "--ranks 5: the scenario has 4"),
        (["hello", "allreduce_dgx_a100"], "calibrate takes one scenario, not 2; files follow --from"),
        (["--testbed"], "--testbed builds the cluster of a scenario; name one"),
        (["--from", "none.txt"], "none.txt: cannot be read: No such file or directory"),
        (["--timeout", "0"], "--timeout 0: must be above 0"),
        (["--budget", "0"], "--budget 0: must be above 0, and finite"),
        (["--budget", "inf"], "--budget inf: must be above 0, and finite"),
    ],
)
def test_invalid_options(arguments, message, capsys):
    err = answer(capsys, "calibrate", *arguments, status=2).err
    assert err.startswith(message)
    assert err.count("\n") == 1
