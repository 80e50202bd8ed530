"""The table of spans in a file holds what the timeline holds, to the last digit."""

import csv
import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clustersim.simulator.analysis.timeline import TABLE, Columns, Timeline
from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Compute
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.traces import span_table


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines(keepends=True)))


def test_csv_holds_every_span_as_it_is(gpipe: Callable[[int, int], Timeline], tmp_path: Path) -> None:
    line = gpipe(3, 4)
    span_table.write(line, tmp_path / "s.csv")
    rows = rows_of((tmp_path / "s.csv").read_text())
    assert len(rows) == span_table.count(line) == line.ops
    table = {name: column.tolist() for name, column in line.table().items()}
    types = {"op": str, "stream": str, "ready_s": float, "begin_s": float, "end_s": float}
    for name in TABLE:
        assert [types.get(name, int)(row[name]) for row in rows] == table[name]


def test_equal_ranks_are_written_once_with_their_number(ddp: Callable[[int], Timeline], tmp_path: Path) -> None:
    line = ddp(4)
    folded = Timeline(line.schedule, None, {0: line.columns[0], 3: line.columns[3]}, np.array([0, 0, 0, 3]))
    span_table.write(folded, tmp_path / "s.csv")
    rows = rows_of((tmp_path / "s.csv").read_text())
    assert {(row["rank"], row["ranks"]) for row in rows} == {("0", "3"), ("3", "1")}
    assert sum(int(row["ranks"]) for row in rows) == line.ops


def test_names_with_commas_and_quotes_are_read_back(tmp_path: Path) -> None:
    name = 'a, "b"\nc'
    program = Program("all", (Compute(name=name, kernels=(measured(1.0),)),))
    line = Timeline.unfolded(Schedule(Mesh(1, {}), (program,), (0,)), [Columns.of([(0, 0, 0.0, 0.0, 1.0)])])
    span_table.write(line, tmp_path / "s.csv")
    assert [row["op"] for row in rows_of((tmp_path / "s.csv").read_text())] == [name]


def test_compressed_is_the_same_and_gives_the_same_bytes(ddp: Callable[[int], Timeline], tmp_path: Path) -> None:
    for name in ("a.csv", "a.csv.gz", "b.csv.gz"):
        span_table.write(ddp(2), tmp_path / name)
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()) == (tmp_path / "a.csv").read_bytes()
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


def test_pieces_make_a_whole(ddp: Callable[[int], Timeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    span_table.write(ddp(2), tmp_path / "whole.csv")
    monkeypatch.setattr(span_table, "AT_ONCE", 7)
    span_table.write(ddp(2), tmp_path / "pieces.csv")
    assert (tmp_path / "whole.csv").read_bytes() == (tmp_path / "pieces.csv").read_bytes()


def test_parquet_is_the_table(ddp: Callable[[int], Timeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_table(table: dict[str, Any], path: str) -> None:
        # written beside its place, and moved into it
        assert Path(path).parent == tmp_path
        Path(path).write_text(",".join(table))

    pyarrow = ModuleType("pyarrow")
    vars(pyarrow).update(table=dict, parquet=SimpleNamespace(write_table=write_table))
    monkeypatch.setitem(sys.modules, "pyarrow", pyarrow)
    span_table.write(ddp(2), tmp_path / "s.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["s.parquet"]
    assert tuple((tmp_path / "s.parquet").read_text().split(",")) == TABLE


def test_parquet_of_pyarrow(ddp: Callable[[int], Timeline], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    span_table.write(ddp(2), tmp_path / "s.parquet")
    table = parquet.read_table(tmp_path / "s.parquet").to_pydict()
    assert table == {name: column.tolist() for name, column in ddp(2).table().items()}


def test_what_cannot_be_written_is_told(
    ddp: Callable[[int], Timeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SimulatorError, match=r"must end with one of \.csv, \.csv\.gz, \.parquet"):
        span_table.write(ddp(2), tmp_path / "s.txt")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SimulatorError, match=r"s\.parquet: a \.parquet file needs pyarrow, which is not installed"):
        span_table.write(ddp(2), tmp_path / "s.parquet")
    (tmp_path / "file").write_text("")
    with pytest.raises(SimulatorError, match=r"cannot write .*s\.csv"):
        span_table.write(ddp(2), tmp_path / "file" / "s.csv")
