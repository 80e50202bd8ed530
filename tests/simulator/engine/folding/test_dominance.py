"""Undominated rows, against the definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.engine.folding import non_binding
from clustersim.simulator.engine.folding.non_binding import Shares, undominated

ROWS = st.dictionaries(st.integers(0, 6), st.sampled_from([0.25, 0.5, 1.0]), max_size=4)


def by_definition(rows):
    """The numbers of the rows that no other row dominates; of equal rows the first."""

    def above(row, number, other, place):
        same = other == row
        return all(other.get(flow, 0.0) >= share for flow, share in row.items()) and (not same or place < number)

    return {
        number
        for number, row in enumerate(rows)
        if row and not any(above(row, number, other, place) for place, other in enumerate(rows) if place != number)
    }


def found(rows):
    triples = [(flow, number, share) for number, row in enumerate(rows) for flow, share in row.items()]
    flows, numbers, shares = ([triple[column] for triple in triples] for column in range(3))
    entries = Shares(np.array(flows, np.int64), np.array(numbers, np.int64), np.array(shares, np.float64))
    return set(np.flatnonzero(undominated(entries, len(rows))).tolist())


@given(st.lists(ROWS, max_size=12))
def test_undominated_rows_are_kept(rows):
    assert found(rows) == by_definition(rows)


def test_comparison_in_parts_gives_the_same_rows(monkeypatch):
    draw = np.random.default_rng(1)
    rows = [{int(flow): float(draw.choice([0.5, 1.0])) for flow in draw.integers(0, 9, 3)} for _ in range(60)]
    whole = found(rows)
    monkeypatch.setattr(non_binding, "AT_ONCE", 7)
    assert found(rows) == whole == by_definition(rows)
