"""Max-min fairness against its definition, by brute force over all choices of bottlenecks."""

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.engine.reference.network import max_min


@st.composite
def systems(draw):
    links = draw(st.integers(1, 3))
    capacity = draw(st.lists(st.floats(0.5, 100), min_size=links, max_size=links))
    weights = st.dictionaries(st.integers(0, links - 1), st.floats(0.1, 10), max_size=links)
    demands = draw(st.lists(weights, min_size=1, max_size=4))
    bounds = [draw(st.floats(0.1, 50) if not demand else st.sampled_from([inf, 0.5, 5.0])) for demand in demands]
    return demands, bounds, capacity


def brute_force(demands, bounds, capacity):
    """The unique vector in which each flow has a bottleneck: its bound, or a full link on which no flow is faster."""
    flows = len(demands)
    links = [{**demand, **({-1 - n: 1.0} if bounds[n] < inf else {})} for n, demand in enumerate(demands)]
    limit = {**dict(enumerate(capacity)), **{-1 - n: bound for n, bound in enumerate(bounds)}}
    for held_by in product(*links):
        rows, right = [], []
        for flow, link in enumerate(held_by):
            first = held_by.index(link)
            row = np.zeros(flows)
            if flow == first:
                row[:] = [own.get(link, 0.0) for own in links]
            else:
                row[[first, flow]] = 1.0, -1.0
            rows.append(row)
            right.append(limit[link] if flow == first else 0.0)
        matrix = np.array(rows)
        if np.linalg.matrix_rank(matrix) < flows:
            continue
        rates = np.linalg.solve(matrix, right)
        used = {link: sum(own.get(link, 0.0) * rate for own, rate in zip(links, rates, strict=True)) for link in limit}
        feasible = (rates >= 0).all() and all(used[link] <= limit[link] * (1 + 1e-9) for link in limit)
        if feasible and all(
            rates[flow] >= max(rates[n] for n in range(flows) if link in links[n]) * (1 - 1e-9)
            for flow, link in enumerate(held_by)
        ):
            return rates
    raise AssertionError("there is always one")


@given(systems())
def test_rates_are_the_unique_vector_with_a_bottleneck_for_each_flow(system):
    assert max_min(*system) == pytest.approx(brute_force(*system), rel=1e-6)


@given(systems(), st.floats(0.1, 10))
def test_rates_scale_with_capacity_and_bounds(system, factor):
    demands, bounds, capacity = system
    scaled = max_min(demands, [bound * factor for bound in bounds], [c * factor for c in capacity])
    assert scaled == pytest.approx([rate * factor for rate in max_min(demands, bounds, capacity)])


def test_two_links_three_flows():
    # the line network of the textbook: one flow over both links, and one flow on each link
    assert max_min([{0: 1.0, 1: 1.0}, {0: 1.0}, {1: 1.0}], [inf] * 3, [1.0, 2.0]) == [0.5, 0.5, 1.5]


def test_weights_bounds_and_no_flows():
    assert max_min([{0: 2.0}, {0: 1.0}], [inf, inf], [9.0]) == [3.0, 3.0]
    assert max_min([{0: 1.0}, {0: 1.0}], [2.0, inf], [10.0]) == [2.0, 8.0]
    assert max_min([{}, {}], [inf, 3.0], []) == [inf, 3.0]
    assert max_min([{0: 1.0}, {1: 1.0}], [inf, inf], [0.0, 4.0]) == [0.0, 4.0]


def test_the_residue_of_a_full_link_limits_no_other_flow():
    # three flows fill a link of 0.3 at 0.1 each, which leaves 5.6e-17; a fourth is on another link alone
    rates = max_min([{0: 1.0}, {0: 1.0}, {0: 1.0, 1: 1.0}, {1: 1.0}], [inf] * 4, [0.3, 10.0])
    assert rates == pytest.approx([0.1, 0.1, 0.1, 9.9])
