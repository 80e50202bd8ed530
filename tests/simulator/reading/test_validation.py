"""Validation tells every fault in plain words, whatever the model is made of."""

import math
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import (
    Amount,
    Bandwidth,
    BelongsTo,
    Count,
    Flag,
    Fraction,
    Power,
    Rate,
    Section,
    Size,
    Time,
)
from clustersim.simulator.reading.validation import Fault, validated


class Ring(Section):
    kind: Literal["ring"]
    width: Count = 1


class Tree(Section):
    kind: Literal["tree"]
    arity: list[Count] = Field(default_factory=list)


class Whole(Section):
    size: Size = 1.0
    shape: Annotated[Ring | Tree, Field(discriminator="kind")] = Ring(kind="ring")
    degree: Count | Literal["auto"] = "auto"
    share: Fraction = 1.0
    fast: Flag = True
    named: dict[str, Ring] = Field(default_factory=dict)
    pair: tuple[Count, Count] = (1, 2)

    @model_validator(mode="after")
    def _sound(self) -> "Whole":
        if self.degree == 13:
            raise Fault("degree", "13 brings bad luck", "try 12")
        if self.pair[0] > self.pair[1]:
            raise Fault(("pair", 0), f"{self.pair[0]} is above {self.pair[1]}")
        return self


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"size": 3}, 'size: needs a unit, e.g. "40 MB" or "25 MiB"'),
        ({"size": None}, 'size: must be a quantity, e.g. "40 MB" or "25 MiB", not nothing'),
        ({"szie": "3 B"}, 'szie: unknown key\n     help: did you mean "size"?'),
        ({"shape": {"kind": "rng"}}, 'shape.kind: must be ring or tree, not "rng"\n     help: did you mean "ring"?'),
        ({"shape": {"width": 3}}, "shape.kind: is required"),
        ({"shape": {"kind": "ring", "arity": [1]}}, "shape.arity: belongs to kind tree, but kind is ring"),
        ({"shape": {"kind": "tree", "arity": [1, 0]}}, "shape.arity.1: must be at least 1, not 0"),
        ({"shape": {"kind": "tree", "arity": 2}}, "shape.arity: must be a list, not 2"),
        ({"shape": "ring"}, 'shape: must be a mapping (key: value), not "ring"'),
        ({"degree": 0}, "degree: must be at least 1 or auto, not 0"),
        ({"degree": "aut"}, 'degree: must be a whole number or auto, not "aut"\n     help: did you mean "auto"?'),
        ({"degree": 13}, "degree: 13 brings bad luck\n     help: try 12"),
        ({"pair": [2, 1]}, "pair.0: 2 is above 1"),
        ({"pair": [2]}, "pair.1: is required"),
        ({"share": 1.5}, "share: must be at most 1, not 1.5"),
        ({"share": "half"}, 'share: must be a number, not "half"'),
        ({"share": math.nan}, "share: must be finite, not nan"),
        ({"fast": "yes"}, 'fast: must be true or false, not "yes"'),
        (
            {"named": {"a": {"kind": "ring", "widht": 1}}},
            'named.a.widht: unknown key\n     help: did you mean "width"?',
        ),
        ({"named": {"a": 3}}, "named.a: must be a mapping (key: value), not 3"),
    ],
)
def test_a_fault_in_plain_words(data: dict[str, Any], expected: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        validated(Document(data), Whole)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("kind", "text", "si"),
    [
        (Bandwidth, "200 Gb/s", 25e9),
        (Bandwidth, "25 GB/s", 25e9),
        (Size, "25 MiB", 25 * 2**20),
        (Amount, "0 B", 0.0),
        (Time, "0 s", 0.0),
        (Time, "3 us", 3e-6),
        (Rate, "312 TFLOP/s", 312e12),
        (Power, "400 W", 400.0),
    ],
)
def test_quantities_are_si(kind: Any, text: str, si: float) -> None:
    adapter = TypeAdapter(kind)
    assert math.isclose(adapter.validate_python(text), si)
    # and are written with their unit, so that what is written can be read
    again = adapter.dump_python(adapter.validate_python(text), mode="json")
    assert math.isclose(adapter.validate_python(again), si)


@pytest.mark.parametrize("value", [True, 8.0, "8", None, [8], 0, -1, 10**9, 10**400])
def test_a_count_is_a_whole_number_of_sense(value: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Count).validate_python(value)


class Road(Section):
    surface: str = "gravel"
    lanes: Count = 1
    stripes: Annotated[Count | None, BelongsTo("surface", "tar", "concrete", among=("gravel", "tar", "concrete"))] = (
        None
    )
    median: Annotated[list[str], BelongsTo("wide", True, to="a wide road, not {value}")] = Field(default_factory=list)
    shoulder: Annotated[Flag, BelongsTo("lanes", to="several lanes, but lanes is {value}")] = False

    @property
    def wide(self) -> bool:
        return self.lanes > 3


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({"stripes": 2}, "stripes: belongs to surface tar or concrete, but surface is gravel"),
        ({"stripes": 2, "surface": "tar"}, ""),
        ({"stripes": None}, ""),
        ({"stripes": 2, "surface": "my.own"}, ""),
        ({"median": ["tree"], "lanes": 3}, "median: belongs to a wide road, not False"),
        ({"median": [], "lanes": 3}, ""),
        ({"median": ["tree"], "lanes": 4}, ""),
        ({"shoulder": True}, "shoulder: belongs to several lanes, but lanes is 1"),
        ({"shoulder": True, "lanes": 2}, ""),
    ],
)
def test_a_key_belongs_to_values_of_another(data: dict[str, Any], fault: str) -> None:
    try:
        validated(Document(data), Road)
    except ScenarioError as error:
        assert fault
        assert fault in str(error)
    else:
        assert not fault
