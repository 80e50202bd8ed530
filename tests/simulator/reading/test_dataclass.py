"""`dataclass` against that of the standard library: on all dataclasses of the package, and on made ones."""

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import clustersim
from clustersim.simulator.reading.dataclass import dataclass

LEFT_OUT = ("compiled", "replay", "calibration", "serve", "__main__")
"""Parts of names of modules that need torch or a browser, or compile."""


def package() -> Iterator[type[Any]]:
    """All dataclasses of the package."""
    for module in pkgutil.walk_packages(clustersim.__path__, "clustersim."):
        if not any(part in module.name for part in LEFT_OUT):
            for one in vars(importlib.import_module(module.name)).values():
                if isinstance(one, type) and dataclasses.is_dataclass(one) and one.__module__ == module.name:
                    yield one


def by_the_library(one: type[Any]) -> type[Any]:
    """The class *one* with the methods that the standard library gives to its fields, without bases."""
    params = one.__dataclass_params__
    fields = [
        (
            field.name,
            field.type,
            dataclasses.field(
                **{
                    key: getattr(field, key)
                    for key in ("default", "default_factory", "init", "repr", "hash", "compare", "kw_only")
                    if getattr(field, key) is not dataclasses.MISSING
                }
            ),
        )
        for field in dataclasses.fields(one)
    ]
    return dataclasses.make_dataclass(one.__name__, fields, frozen=params.frozen, eq=params.eq, repr=params.repr)


@pytest.mark.exhaustive
def test_the_constructors_of_all_dataclasses_are_those_of_the_standard_library() -> None:
    seen = 0
    for one in package():
        own, theirs = inspect.signature(one.__init__), inspect.signature(by_the_library(one).__init__)
        assert str(own) == str(theirs), one
        seen += 1
    assert seen > 300


MADE = [{"frozen": True}, {"frozen": True, "slots": True}, {}, {"slots": True}, {"frozen": True, "eq": False}]


def pair(options: dict[str, bool]) -> tuple[Any, Any]:
    """The same class by both."""

    def written() -> type[Any]:
        class Written:
            """A class."""

            first: int
            second: float = 1.5
            several: list[int] = dataclasses.field(default_factory=list)
            hidden: int = dataclasses.field(default=3, repr=False, compare=False)
            late: int = dataclasses.field(default=7, kw_only=True)
            made: int = dataclasses.field(init=False, default=0)

            def __post_init__(self) -> None:
                object.__setattr__(self, "made", self.first + 1)

        Written.__qualname__ = "Written"
        return Written

    return dataclass(**options)(written()), dataclasses.dataclass(**options)(written())


values = st.tuples(st.integers(0, 2), st.sampled_from([0.0, 1.5]), st.integers(0, 1), st.integers(0, 1))


@pytest.mark.parametrize("options", MADE)
@given(one=values, other=values)
def test_instances_compare_print_and_copy_as_those_of_the_standard_library(
    options: dict[str, bool], one: tuple[Any, ...], other: tuple[Any, ...]
) -> None:
    ours, theirs = pair(options)

    def make(cls: Any, of: tuple[Any, ...]) -> Any:
        return cls(of[0], of[1], hidden=of[2], late=of[3])

    a, b, x, y = make(ours, one), make(ours, other), make(theirs, one), make(theirs, other)
    assert (a == b, a != b, repr(a)) == (x == y, x != y, repr(x))
    assert dataclasses.astuple(a) == dataclasses.astuple(x)
    assert a != x
    assert repr(dataclasses.replace(a, second=9.0)) == repr(dataclasses.replace(x, second=9.0))
    assert repr(copy.copy(a)) == repr(a)
    assert ours.__match_args__ == theirs.__match_args__
    if theirs.__hash__ is None:
        assert ours.__hash__ is None
    if options.get("frozen"):
        for it in (a, x):
            for change in ("first", "other"):
                with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
                    setattr(it, change, 1)
            with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
                del it.late


@dataclass(frozen=True, slots=True)
class Point:
    """Two numbers."""

    across: float
    up: float = 0.0


@dataclass(frozen=True)
class Named(Point):
    """Two numbers with a name."""

    name: str = ""

    def __hash__(self) -> int:
        return 5


def test_frozen_dataclasses_with_slots_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(Point(1.0, 2.0))) == Point(1.0, 2.0)
    assert hash(Point(1.0)) == hash((1.0, 0.0))
    assert {Point(1.0): 1}[Point(1.0)] == 1


def test_a_subclass_inherits_fields_and_keeps_what_it_defines() -> None:
    assert repr(Named(1.0, name="a")) == "Named(across=1.0, up=0.0, name='a')"
    assert hash(Named(1.0)) == 5
    assert Named(1.0) != Point(1.0)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'up'"):
        Named(1.0).up = 3.0  # type: ignore[misc]


def test_users_may_derive_from_a_frozen_dataclass_by_the_standard_library() -> None:
    @dataclasses.dataclass(frozen=True)
    class Own(Point):
        more: int = 3

    assert (Own(1.0).more, Own(1.0, 2.0, 4).up) == (3, 2.0)
    with pytest.raises(TypeError, match="frozen"):

        @dataclass
        class _Thawed(Point):  # type: ignore[misc]
            pass
