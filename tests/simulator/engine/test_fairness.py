"""Max-min fairness against its definition, not against another implementation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.fairness import max_min


@st.composite
def systems(draw):
    links = draw(st.integers(1, 6))
    capacity = draw(st.lists(st.floats(0.5, 100), min_size=links, max_size=links))
    weights = st.dictionaries(st.integers(0, links - 1), st.floats(0.1, 10), min_size=1, max_size=links)
    demands = draw(st.lists(weights, min_size=1, max_size=8))
    return dict(enumerate(demands)), capacity


@given(systems())
def test_every_flow_has_a_full_link_on_which_none_is_faster(system):
    demands, capacity = system
    rates = max_min(demands, capacity)
    used = [sum(links.get(n, 0) * rates[f] for f, links in demands.items()) for n in range(len(capacity))]
    for n, c in enumerate(capacity):
        assert used[n] <= c * (1 + 1e-9)
    for links in demands.items():
        flow, on = links
        assert any(
            used[n] >= capacity[n] * (1 - 1e-9)
            and all(rates[other] <= rates[flow] * (1 + 1e-9) for other, theirs in demands.items() if n in theirs)
            for n in on
        )


@given(systems(), st.floats(0.1, 10))
def test_rates_scale_with_capacity(system, factor):
    demands, capacity = system
    scaled = max_min(demands, [c * factor for c in capacity])
    for flow, rate in max_min(demands, capacity).items():
        assert scaled[flow] == pytest.approx(rate * factor)


def test_two_links_three_flows():
    # the textbook's line: one long flow over both links, a short one on each
    rates = max_min({"long": {0: 1, 1: 1}, "first": {0: 1}, "second": {1: 1}}, [1.0, 2.0])
    assert rates == {"long": 0.5, "first": 0.5, "second": 1.5}


def test_a_flow_of_weight_two_takes_twice_the_capacity_at_the_same_rate():
    assert max_min({"a": {0: 2.0}, "b": {0: 1.0}}, [9.0]) == {"a": 3.0, "b": 3.0}


def test_a_flow_on_no_link_is_not_bound():
    assert max_min({"a": {}}, []) == {"a": float("inf")}


def test_a_bound_leaves_the_rest_to_others():
    assert max_min({"a": {0: 1.0}, "b": {0: 1.0}}, [10.0], {"a": 2.0}) == {"a": 2.0, "b": 8.0}
    assert max_min({"a": {}}, [], {"a": 3.0}) == {"a": 3.0}
