"""Records, by rows and by columns."""

import numpy as np

from simulator.timeline import Columns, Record, Records, columns

ROWS = [Record(3, 1, 0.5, 1.0, 2.0), Record(4, 1, 2.0, 2.0, 2.5)]
FIELDS = [[3, 4], [1, 1], [0.5, 2.0], [1.0, 2.0], [2.0, 2.5]]


def test_columns_are_the_fields_of_the_records():
    assert [column.tolist() for column in columns(ROWS)] == FIELDS
    assert all(len(column) == 0 for column in columns([]))


def test_records_are_made_when_they_are_read_and_once():
    made = []

    def make():
        made.append(1)
        return Columns(*map(np.array, FIELDS))

    records = Records(2, make)
    assert len(records) == 2
    assert not made
    assert list(records) == ROWS
    assert records[-1] == ROWS[1]
    assert records[:1] == (ROWS[0],)
    assert columns(records) is records.columns
    assert made == [1]
