"""The heap of levels, by which the compiled engine fills links: what is removed is the lowest, whatever came before."""

from types import SimpleNamespace

from hypothesis import example, given
from hypothesis import strategies as st

from clustersim.simulator.engine.compiled.event_loop import _push_level, _remove_level


# None: the lowest is removed
@given(st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=60))
@example([3, 9, 5, 8, 1, 7, 2, 6, 4, 0, *[None] * 10])
@example([0, 5, 1, 6, 7, 2, 3, 8, 9, None, 4, None, None, None])
def test_the_lowest_level_is_removed_first(turns: list[int | None]) -> None:
    levels = [SimpleNamespace(level=0.0, item=0) for _ in turns]
    held: dict[int, int] = {}
    for item, level in enumerate(turns):
        if level is not None:
            # uncompiled, so that nothing waits for numba
            _push_level.py_func(float(level), item, levels, len(held))
            held[item] = level
        elif held:
            lowest, removed = levels[0].level, levels[0].item
            assert lowest == min(held.values()) == held.pop(removed)
            _remove_level.py_func(levels, len(held) + 1)
    assert sorted(one.item for one in levels[: len(held)]) == sorted(held)
