"""Spans as columns: from rows, by representative, and as a data frame."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.analysis.timeline import (
    NO_COMMUNICATION,
    NO_MICRO_BATCH,
    Columns,
    Timeline,
    micro_batches,
    op_names,
)
from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Compute
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule

ROWS = [(4, 1, 2.0, 2.0, 2.5), (3, 1, 0.5, 1.0, 2.0)]
FIELDS = [[3, 4], [1, 1], [0.5, 2.0], [1.0, 2.0], [2.0, 2.5], [NO_COMMUNICATION] * 2]

OPS = (
    Compute(name="0F0", action=Action("F", 0, 0), kernels=(measured(1.0),)),
    Compute(name="0F1", action=Action("F", 0, 1), kernels=(measured(1.0),)),
    Compute(name="O", action=Action("O", 0), stream="late", kernels=(measured(1.0),)),
)


def folded() -> Timeline:
    """Three ranks, of which the first and the last are equal; two micro-batches and an update."""
    rows = [(0, 0, 0.0, 0.0, 1.0), (1, 0, 1.0, 1.0, 2.0), (2, 0, 2.0, 2.5, 3.0)]
    late = [(op, step, ready + 1, begin + 1, end + 1) for op, step, ready, begin, end in rows]
    schedule = Schedule(Mesh.regular({"dp": 3}), (Program("all", OPS),), (0, 0, 0))
    return Timeline(schedule, None, {0: Columns.of(rows), 1: Columns.of(late)}, np.array([0, 1, 0]))


def test_rows_become_columns_in_the_order_of_their_ends():
    assert [column.tolist() for column in Columns.of(ROWS)] == FIELDS
    assert all(len(column) == 0 for column in Columns.of([]))


def test_a_rank_has_the_columns_of_its_representative():
    line = folded()
    assert line.of(2) is line.columns[0]
    assert {rank: ranks.tolist() for rank, ranks in line.classes.items()} == {0: [0, 2], 1: [1]}
    assert [span.op.name for span in line.spans(2)] == ["0F0", "0F1", "O"]


def test_the_table_has_a_row_for_each_span_of_a_representative():
    table = {name: column.tolist() for name, column in folded().table().items()}
    assert table == {
        "rank": [0, 0, 0, 1, 1, 1],
        "ranks": [2, 2, 2, 1, 1, 1],
        "step": [0] * 6,
        "op": ["0F0", "0F1", "O"] * 2,
        "stream": ["compute", "compute", "late"] * 2,
        "ready_s": [0.0, 1.0, 2.0, 1.0, 2.0, 3.0],
        "begin_s": [0.0, 1.0, 2.5, 1.0, 2.0, 3.5],
        "end_s": [1.0, 2.0, 3.0, 2.0, 3.0, 4.0],
        "communication": [NO_COMMUNICATION] * 6,
    }


def test_a_data_frame_is_made_of_the_table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    line = folded()
    assert line.to_frame().keys() == line.table().keys()


def test_a_data_frame_of_pandas():
    pandas = pytest.importorskip("pandas")
    frame = folded().to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.groupby("rank")["end_s"].max().to_dict() == {0: 3.0, 1: 4.0}


def test_without_pandas_it_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SimulatorError, match="needs pandas, which is not installed"):
        folded().to_frame()


@pytest.mark.parametrize("name", ["hello", "lecture_3d_32gpus", "llama3_8b_fsdp_dgx_h100"])
def test_names_and_micro_batches_are_those_of_the_ops(name: str):
    for program in Scenario.load(name).schedule().programs:
        assert op_names(program) == [op.name for op in program.ops]
        numbers = [op.action.micro_batch if op.action else None for op in program.ops]
        assert micro_batches(program).tolist() == [NO_MICRO_BATCH if n is None else n for n in numbers]
