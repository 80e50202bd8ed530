"""Colours, numbers and firsts against what they say of themselves."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.hardware.hashing import (
    IN_CACHE,
    counted,
    distinct,
    first_places,
    firsts,
    hashed,
    mixed,
    of_positions,
    representatives_of,
    sorted_once,
)

NUMBERS = st.lists(st.integers(0, 2**63 - 1))


@given(NUMBERS)
def test_sorted_once_is_numpys_unique(values):
    array = np.array(values, np.int64)
    assert sorted_once(array).tolist() == np.unique(array).tolist()


@given(st.lists(st.integers(0, 5)))
def test_the_first_of_each_class_is_found(labels):
    classes = hashed(labels).astype(np.int64)  # numbered from 0 in order of first use
    assert firsts(classes).tolist() == sorted(
        {label: place for place, label in reversed([*enumerate(labels)])}.values()
    )


SMALL = st.lists(st.integers(-3, 5))
NEAR = st.lists(st.integers(1, 3 * IN_CACHE))


@given(NUMBERS | SMALL | NEAR)
def test_first_places_are_those_of_a_dictionary(values):
    first = {value: place for place, value in reversed([*enumerate(values)])}
    assert first_places(np.array(values, np.int64)).tolist() == sorted(first.values())


@given(SMALL | NUMBERS, st.sampled_from([1, IN_CACHE]))
def test_distinct_is_numpys_unique(values, times):
    array = np.array(values * times, np.int64)
    assert distinct(array).tolist() == sorted(set(values))
    assert distinct(array.reshape(-1, 1)).tolist() == sorted(set(values))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.integers(1, 3000))
def test_values_are_counted_in_order_of_first_occurrence(which, times):
    values, counts = counted("abcd", np.repeat(np.array(which, np.int32), times))
    expected = Counter("abcd"[one] for one in which)
    assert dict(zip(values, counts, strict=True)) == {value: count * times for value, count in expected.items()}
    assert values == list(expected)


@given(st.lists(st.sampled_from([(1, 2, 3), (3, 2, 1), (0, 0, 0)])), st.integers(0, 3))
def test_rows_are_hashed_alike_wherever_they_stand(rows, salt):
    array = np.array(rows, np.int64).reshape(-1, 3)
    alone = [of_positions(array[place : place + 1], salt).tolist() for place in range(len(array))]
    assert of_positions(array, salt).tolist() == [own for (own,) in alone]
    assert len(set(of_positions(array, salt).tolist())) == len(set(rows))


@given(st.lists(st.integers(0, 3), min_size=1))
def test_representatives_are_the_first_of_their_classes(classes):
    first = {kind: place for place, kind in reversed([*enumerate(classes)])}
    representative = np.array([first[kind] for kind in classes])
    assert representatives_of(representative).tolist() == sorted(first.values())


def splitmix(value):
    """The finaliser in Python's whole numbers."""
    z = (value + 0x9E3779B97F4A7C15) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ z >> shift) * factor % 2**64
    return z ^ z >> 31


@pytest.mark.parametrize("shape", [(0,), (5, 0), (3, 4), (IN_CACHE,), (2, IN_CACHE - 1), (2 * IN_CACHE + 1,)])
def test_splitmix_of_any_shape(shape):
    values = np.random.default_rng(0).integers(0, 2**64, shape, np.uint64)
    kept = values.copy()
    expected = np.array([splitmix(value) for value in values.ravel().tolist()], np.uint64).reshape(shape)
    assert np.array_equal(mixed(values), expected)
    assert np.array_equal(mixed(values.T), expected.T)
    assert np.array_equal(values, kept)


def test_splitmix_is_as_published():
    # the first outputs of SplittableRandom's generator with seed 0 (Steele, Lea and Flood, OOPSLA 2014)
    gamma = 0x9E3779B97F4A7C15
    states = np.array([0, gamma, 2 * gamma % 2**64], np.uint64)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert mixed(states).tolist() == expected
