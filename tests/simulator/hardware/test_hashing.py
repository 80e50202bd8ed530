"""Colours, numbers and firsts against what they say of themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.hardware.hashing import IN_CACHE, firsts, hashed, mixed, sorted_once

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
