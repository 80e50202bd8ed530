"""Sweeps: rows are those of single runs, in the order of the points, and a failing run is a row with its message."""

import csv
import gzip
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.scenarios.results.expectations import flat
from clustersim.scenarios.run.sweep import Sweep
from clustersim.scenarios.run.sweep_report import dimension, less_is_better
from clustersim.scenarios.run.sweep_table import SweepAxis, SweepRow, of_mapping, of_options, points, scalars
from clustersim.simulator.reading.errors import ScenarioError, SimulatorError

BATCH, GPUS, PP = "training.global_batch_size", "cluster.gpus", "parallelism.pp"


def timeless(numbers: Any) -> dict[str, Any]:
    return {name: value for name, value in numbers.items() if name != "simulation.wall_s"}


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_rows_equal_single_runs_exactly(processes: int) -> None:
    small = {"model.num_layers": 8}
    found = Scenario.load("lecture_3d_32gpus", small).sweep({"parallelism.tp": [1, 2], PP: [2, 4]}, processes=processes)
    assert [dict(row.values) for row in found.rows] == [
        {"parallelism.tp": tp, PP: pp} for tp, pp in product((1, 2), (2, 4))
    ]
    for row in found.rows:
        alone = Scenario.load("lecture_3d_32gpus", {**small, **row.values}).run().summary()
        assert timeless(row.numbers) == timeless(scalars(alone))
        # two implementations: numbers that expectations know by the same names
        assert timeless(flat(alone)).items() <= row.numbers.items()


def test_zipped_values_are_taken_together() -> None:
    found = Scenario.load("hello").sweep({GPUS: [2, 8], BATCH: [64, 128]}, zipped=True)
    assert [dict(row.values) for row in found.rows] == [{GPUS: 2, BATCH: 64}, {GPUS: 8, BATCH: 128}]
    assert [row.numbers["simulation.ranks"] for row in found.rows] == [2, 8]
    with pytest.raises(ScenarioError, match="equally many values of each key: a has 2, b has 1"):
        list(points(of_mapping({"a": [1, 2], "b": [1]}), zipped=True))


@given(st.lists(st.lists(st.integers(), unique=True, min_size=1, max_size=4), min_size=1, max_size=3))
def test_a_product_has_each_combination_once_with_the_last_axis_fastest(several: list[list[int]]) -> None:
    axes = [SweepAxis(f"a.{number}", tuple(values)) for number, values in enumerate(several)]
    assert [tuple(point.values()) for point in points(axes)] == list(product(*several))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_failure_is_a_row_with_its_message(processes: int) -> None:
    found = Scenario.load("hello").sweep({BATCH: [64, 100], GPUS: [4, 8]}, processes=processes)
    assert [row.error for row in found.rows[:3]] == [None] * 3
    assert found.rows[3].error == f"{BATCH}=100: 100 is not a multiple of dp 8; the nearest are 96 and 104"
    assert not found.rows[3].numbers
    assert not found.failed
    assert found.table()[3]["step_time_s"] is None


def test_variants_are_swept_each() -> None:
    found = Scenario.load("gpipe_vs_varuna").sweep({BATCH: [8, 16]})
    names = ["gpipe", "varuna", "1f1b"]
    assert [(row.values[BATCH], row.variant) for row in found.rows] == [(b, name) for b in (8, 16) for name in names]
    alone = Scenario.load("gpipe_vs_varuna", {BATCH: 16}).run().summary()["variants"]
    assert [timeless(row.numbers) for row in found.rows[3:]] == [timeless(scalars(alone[name])) for name in names]


def test_a_key_that_the_result_has_too_keeps_both_values() -> None:
    found = Scenario.load("hello").sweep({"simulation.engine": ["simpy", "auto"]})
    engines = [(row["simulation.engine"], row["result.simulation.engine"]) for row in found.table()]
    assert engines == [("simpy", "simpy"), ("auto", "simpy")]


def test_values_are_read_as_those_of_set() -> None:
    (axis,) = of_options(["cluster.bandwidth=1 GB/s, '2 GB/s',1e-6,true,[1, 2],{a: b}"])
    assert axis.values == ("1 GB/s", "2 GB/s", 1e-6, True, [1, 2], {"a": "b"})


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({}, "a sweep needs at least one key with its values, as in --over parallelism.tp=1,2,4"),
        ({GPUS: []}, "cluster.gpus: has no values; give some as in --over parallelism.tp=1,2,4"),
        ({GPUS: 4}, 'cluster.gpus: must have a list of values, as in {"parallelism.tp": [1, 2, 4]}'),
        ({GPUS: "24"}, 'cluster.gpus: must have a list of values, as in {"parallelism.tp": [1, 2, 4]}'),
        ({GPUS: [2, 4, 2]}, "cluster.gpus: the value 2 is given twice"),
        ({"table.name": ["x"]}, "table.name: cannot be set for one run: it says which runs there are"),
        ({"a..b": [1]}, '"a..b" is not a key; write it as in cluster.nodes'),
        ({"cluster.gpuss": [2]}, 'cluster.gpuss=2: unknown key\n     help: did you mean "gpus"?'),
    ],
)
def test_bad_values_are_refused_before_anything_runs(over: Any, message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        Scenario.load("hello").sweep(over)
    assert str(refused.value) == message


def test_a_key_that_only_some_values_allow_is_no_bad_input() -> None:
    over: Any = {"parallelism.data.method": ["ddp", "zero"], "parallelism.data.stage": [1]}
    ddp, zero = Scenario.load("hello").sweep(over).rows
    assert ddp.error == "parallelism.data.stage=1: belongs to method zero, but method is ddp"
    assert zero.error is None


def made(rows: list[SweepRow]) -> Sweep:
    return Sweep("x", (SweepAxis("a", (1, 2)),), tuple(rows))


def test_a_table_has_every_column_in_every_row(tmp_path: Path) -> None:
    rows = [
        SweepRow({"a": [1]}, "", {"mfu": 0.1, "fits": True}),
        SweepRow({"a": 2}, "", {"hfu": None, "mfu": 1}),
        SweepRow({"a": 3}),
    ]
    sweep = made([*rows, SweepRow({"a": 4}, error='a, "b"\nc')])
    assert sweep.columns == ["a", "error", "mfu", "fits", "hfu"]
    sweep.write(tmp_path / "x.csv")
    sweep.write(tmp_path / "x.csv.gz")
    text = (tmp_path / "x.csv").read_text()
    assert text == 'a,error,mfu,fits,hfu\n[1],,0.1,True,\n2,,1,,\n3,,,,\n4,"a, ""b""\nc",,,\n'
    assert gzip.decompress((tmp_path / "x.csv.gz").read_bytes()).decode() == text
    assert json.loads(json.dumps(sweep.summary()))["rows"][1] == {"set": {"a": 2}, "error": None, "hfu": None, "mfu": 1}


def test_numbers_survive_a_file(tmp_path: Path) -> None:
    found = Scenario.load("hello").sweep({GPUS: [2, 4, 8]})
    found.write(tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [float(row["step_time_s"]) for row in read] == [row.numbers["step_time_s"] for row in found.rows]


def test_without_pandas_and_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SimulatorError, match=r"needs pandas, which is not installed: pip install pandas, or take the"):
        made([]).to_frame()
    with pytest.raises(SimulatorError, match=r"needs pyarrow, which is not installed: pip install pyarrow"):
        made([]).write(tmp_path / "x.parquet")
    assert not list(tmp_path.iterdir())


def test_a_frame_has_the_columns_and_rows() -> None:
    pandas = pytest.importorskip("pandas")
    found = Scenario.load("hello").sweep({GPUS: [2, 4, 3], BATCH: [64]})
    frame = found.to_frame()
    assert list(frame.columns) == found.columns
    assert frame["step_time_s"].dtype == float
    assert frame["memory.fits"].dropna().all()
    assert pandas.isna(frame.loc[2, "step_time_s"])


def test_a_parquet_file_has_the_table(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    made([SweepRow({"a": 1}, "", {"mfu": 1, "fits": True}), SweepRow({"a": "b"}, "", {"mfu": 0.5})]).write(
        tmp_path / "x.parquet"
    )
    assert parquet.read_table(tmp_path / "x.parquet").to_pydict() == {
        "a": ["1", "b"],
        "error": [None, None],
        "mfu": [1.0, 0.5],
        "fits": [True, None],
    }


def test_what_is_best() -> None:
    less = ["step_time_s", "memory.peak_bytes", "breakdown_s.bubble", "training.cost", "bubble_fraction"]
    more = ["mfu", "samples_per_s", "collective.3.busbw", "model_tflops_per_gpu"]
    neither = ["simulation.ops", "memory.peak_rank", "link_utilisation.nvlink3.max"]
    assert [less_is_better(column) for column in less + more + neither] == [True] * 5 + [False] * 4 + [None] * 3
    assert [dimension(column) for column in less] == ["time", "size", "time", "", "share"]
