"""Colour refinement: the partition is equitable, and as coarse as symmetry allows."""

from collections import Counter

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from clustersim.simulator.engine.folding.partition import Edges, refine
from clustersim.simulator.hardware.hashing import hashed


def edges(pairs, labels=None, one=0, other=0):
    ones, others = (np.array([p[i] for p in pairs], np.int64) for i in (0, 1))
    return Edges(one, other, ones, others, hashed(labels or [0] * len(pairs)), np.arange(len(pairs)))


def test_a_ring_is_one_class_and_a_path_has_mirror_classes():
    colour = hashed([0] * 6)
    ring = [(i, (i + 1) % 6) for i in range(6)]
    assert refine([colour], [edges(ring)])[0].tolist() == [0] * 6
    path = [(i, i + 1) for i in range(5)]
    assert refine([colour], [edges(path + [(b, a) for a, b in path])])[0].tolist() == [0, 1, 2, 2, 1, 0]


def test_one_odd_colour_splits_a_ring_by_distance():
    ring = [(i, (i + 1) % 6) for i in range(6)] + [((i + 1) % 6, i) for i in range(6)]
    assert refine([hashed([1, 0, 0, 0, 0, 0])], [edges(ring)])[0].tolist() == [0, 1, 2, 3, 2, 1]


def test_edges_with_different_labels_differ():
    # two stars with one hub; they differ in one label only
    classes = refine([hashed([0, 0]), hashed([0] * 4)], [edges([(0, 0), (0, 1), (1, 2), (1, 3)], [1, 1, 1, 2], 0, 1)])
    assert [c.tolist() for c in classes] == [[0, 1], [0, 0, 1, 2]]


@st.composite
def graphs(draw):
    n = draw(st.integers(1, 12))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=30, unique=True))
    labels = [draw(st.integers(0, 2)) for _ in pairs]
    return [draw(st.integers(0, 1)) for _ in range(n)], pairs, labels


# the second label and the first colour beside the first label and the second colour
@example(([0, 0, 1], [(0, 0), (0, 2), (1, 1), (2, 1), (1, 0)], [0, 0, 0, 0, 1]))
@given(graphs())
def test_the_partition_is_equitable(graph):
    colours, pairs, labels = graph
    if not pairs:
        return
    classes = refine([hashed(colours)], [edges(pairs, labels)])[0].tolist()
    seen = {}
    for vertex, own in enumerate(classes):
        out = Counter((label, classes[b]) for (a, b), label in zip(pairs, labels, strict=True) if a == vertex)
        into = Counter((label, classes[a]) for (a, b), label in zip(pairs, labels, strict=True) if b == vertex)
        around = colours[vertex], frozenset(out.items()), frozenset(into.items())
        assert seen.setdefault(own, around) == around
