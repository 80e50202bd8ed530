"""Meshes: regular grids, irregular groups, replication and relabelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.mesh import Axis, Layout, Mesh

sizes = st.dictionaries(st.sampled_from(["tp", "dp", "pp", "cp"]), st.integers(1, 4), min_size=1)


@given(sizes)
def test_each_axis_partitions_the_ranks_into_groups_of_its_size(grid):
    mesh = Mesh.regular(grid)
    for name, size in grid.items():
        groups = mesh.axes[name].groups
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.world_size))
        assert {len(group) for group in groups} == {size}
        for number, group in enumerate(groups):
            for coordinate, rank in enumerate(group):
                assert mesh.axes[name].place(rank) == (number, coordinate)


@given(sizes)
def test_the_grid_is_what_replication_builds_axis_by_axis(grid):
    mesh = Mesh(1, {})
    for name, size in grid.items():
        mesh = mesh.replicated(name, size)
    regular = Mesh.regular(grid)
    assert mesh.world_size == regular.world_size
    for name in grid:
        assert set(mesh.axes[name].groups) == set(regular.axes[name].groups)


def test_megatrons_groups_of_sixteen_gpus():
    # Megatron-LM, parallel_state.py, docstring of initialize_model_parallel: 16 GPUs, tp 2, pp 4, so dp 2
    mesh = Mesh.regular({"tp": 2, "dp": 2, "pp": 4})
    assert set(mesh.axes["tp"].groups) == {(i, i + 1) for i in range(0, 16, 2)}
    assert set(mesh.axes["dp"].groups) == {(0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15)}
    assert set(mesh.axes["pp"].groups) == {(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)}


def test_a_rank_stands_on_an_axis_once():
    with pytest.raises(ScheduleError, match="rank 1 is twice on one axis"):
        Axis(((0, 1), (1, 2)))


def test_irregular_axes_reach_only_their_members():
    mesh = Mesh.regular({"dp": 3}).extended(1, {"ps.0": Axis(((3, 0, 1, 2),))})
    assert mesh.world_size == 4
    assert mesh.axes["ps.0"].place(3) == (0, 0)
    assert mesh.axes["dp"].place(3) is None


@given(sizes, st.data())
def test_a_joint_axis_has_the_ranks_that_differ_in_its_coordinates_only(grid, data):
    mesh = Mesh.regular(grid)
    names = data.draw(st.lists(st.sampled_from(list(grid)), min_size=1, unique=True))
    others = [name for name in grid if name not in names]
    expected = {}
    for rank in range(mesh.world_size):
        key = tuple(mesh.axes[name].place(rank)[1] for name in others)
        expected.setdefault(key, []).append(rank)
    ordered = [
        tuple(sorted(ranks, key=lambda rank: [mesh.axes[name].place(rank)[1] for name in reversed(names)]))
        for ranks in expected.values()
    ]
    assert sorted(mesh.joint(*names).groups) == sorted(ordered)


def test_groups_of_unequal_sizes_are_joined():
    mesh = Mesh(6, {"tp": Axis(((0, 1), (2, 3), (4,), (5,))), "dp": Axis(((0, 2), (1, 3), (4, 5)))})
    assert mesh.joint("tp", "dp").groups == ((0, 1, 2, 3), (4, 5))


def test_a_second_layout_over_the_same_ranks():
    """Two ranks of tensor parallelism in attention, four experts: 2 x 4 = 1 x 4 x 2 ranks."""
    mesh = Mesh.of(Layout({"tp": 2, "dp": 4}), Layout({"expert_tp": 1, "ep": 4, "edp": 2}))
    assert mesh.world_size == 8
    assert mesh.axes["tp"].groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert mesh.axes["ep"].groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert mesh.axes["edp"].groups == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_layouts_of_stages():
    mesh = Mesh.of(Layout({"tp": 2, "dp": 2}), Layout({"tp": 2, "dp": 1}, ranks=[4, 5]))
    assert mesh.axes["tp"].groups == ((0, 1), (2, 3), (4, 5))
    assert mesh.axes["dp"].groups == ((0, 2), (1, 3), (4,), (5,))
