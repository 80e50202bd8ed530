"""Sections whose keys are the fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest

from clustersim.simulator.hardware.accelerator import Accelerator, Software
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import Count, Flag, Key, Section, Time, keys_of, made
from clustersim.simulator.reading.validation import validated
from clustersim.topologies.catalogue import Device
from clustersim.workloads.software_stack import SoftwareKeys, SoftwareSpecification


@dataclass(frozen=True, slots=True)
class Pump:
    """What a part of a program takes."""

    name: str
    delay_seconds: Annotated[Time, Key("delay")]
    strokes: Count = 2
    kind: Literal["piston", "gear"] = "piston"
    spares: tuple[int, ...] = field(default_factory=tuple)
    cache: dict[str, int] = field(init=False, default_factory=dict)


class PumpKeys(Section, of=Pump, without=("name",)):
    """Its section."""

    strokes: Count = 3
    reversed: Flag = False


def test_keys_are_the_fields_under_their_names_in_files():
    assert keys_of(Pump) == {
        "name": "name", "delay": "delay_seconds", "strokes": "strokes", "kind": "kind", "spares": "spares",
    }  # fmt: skip
    assert set(PumpKeys.model_fields) == {"delay", "strokes", "kind", "spares", "reversed"}


def test_the_dataclass_has_the_values_of_the_section():
    section = validated(Document({"delay": "3 us", "kind": "gear", "spares": [4]}), PumpKeys)
    assert made(section, Pump, name="a") == Pump("a", pytest.approx(3e-6), 3, "gear", (4,))
    assert section.model_fields_set == {"delay", "kind", "spares"}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"delay": 3}, "delay: needs a unit"),
        ({}, "delay: is required"),
        ({"delay": "1 s", "delay_seconds": "1 s"}, "delay_seconds: unknown key"),
        ({"delay": "1 s", "name": "a"}, "name: unknown key"),
        ({"delay": "1 s", "kind": "gaer"}, "must be piston or gear"),
        ({"delay": "1 s", "spares": 4}, "must be a list"),
    ],
)
def test_bad_values_are_told_by_key(data, told):
    with pytest.raises(ScenarioError, match=told):
        validated(Document(data), PumpKeys)


@pytest.mark.parametrize(
    ("section", "made_of", "apart"),
    [
        # training.master_weights decides, and how adapters are held
        (SoftwareSpecification, Software, {"master_weights"}),
        (SoftwareKeys, Software, {"name", "master_weights"}),
        (Device, Accelerator, set()),
    ],
)
def test_every_field_is_a_key(section: type[Section], made_of: type, apart: set[str]):
    assert keys_of(made_of).keys() - section.model_fields.keys() == apart
