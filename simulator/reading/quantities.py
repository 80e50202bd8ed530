"""Quantities in files: texts with a unit, which become SI floats; counts are plain whole numbers. Sections of files,
whose keys may be the fields of a dataclass.

Limits are far beyond any machine: they catch wrong exponents, not ambitious designs.

Keys of a file's section that are the fields of a dataclass, so that each is written once: where its value is used.

The type of such a field is the form that files have it in, such as `Time`; a text below it describes it to editors.
`Key` gives it another name in files. ``class StackKeys(Section, of=Software)`` declares the keys, `made` returns the
dataclass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields
from decimal import Decimal
from functools import cache
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    TypeAdapter,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic import Field as KeyInfo

from clustersim.simulator.reading.plain_text import short, written
from clustersim.simulator.reading.units import EXAMPLES, UNITS, parse, show
from clustersim.simulator.reading.validation import Fault, listed

LARGEST = {"bandwidth": 1e15, "size": 1e18, "time": 1e9, "rate": 1e21, "power": 1e9}
"""SI. A link of 1 PB/s, 1 EB, 30 years, 1 ZFLOP/s of one device, 1 GW of one device."""

SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
"""Of numbers of tokens, samples and parameters, as papers write them."""

COUNTED = re.compile(r"\s*\+?([0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]{1,2})?)\s*([KkMmBbGgTt]?)\s*")
SMALLEST = {"bandwidth": 1e-3, "size": 1e-3, "time": 1e-18, "rate": 1e-3, "power": 1e-3}
"""SI, of what is not 0. Quotients of these limits are finite: results never hold infinity."""

MOST = 2**24
"""Largest count of anything: 16,777,216. The longest sequence known is Llama 4 Scout's, 10,485,760 positions."""


class BelongsTo:
    """Annotation of a key that is given only beside certain values of another *key* of its section.

    *key* may also be a property of the section. *values*: those beside which it is given; none: all but the default.
    *among*: values not in it, the user's own, allow it too. *to*: what it belongs to, for the message; ``{value}``
    stands for the value of *key*. By default the message is ``belongs to KEY VALUES, but KEY is VALUE``.
    """

    def __init__(self, key: str, *values: str | bool, among: Collection[str] = (), to: str = "") -> None:
        self.key, self.values, self.among = key, values, among
        self.to = to or f"{key} {listed(map(str, values))}, but {key} is {{value}}"

    def check(self, section: Section, name: str) -> None:
        """Raise `Fault` if *section* has *name*, other than by default, beside a value that does not allow it."""
        value = getattr(section, self.key)
        allowed = value in self.values if self.values else not _is_default(section, self.key)
        if not (allowed or (self.among and value not in self.among) or _is_default(section, name)):
            raise Fault(type(section).model_fields[name].alias or name, f"belongs to {self.to.format(value=value)}")


def _is_default(section: Section, name: str) -> bool:
    """True if the value of *name* is the default: it was not given, or written as `show derived` writes it."""
    default = type(section).model_fields[name].get_default(call_default_factory=True, validated_data={})
    return bool(getattr(section, name) == default)


class Section(BaseModel):
    """A mapping of a scenario or catalogue file: unknown keys are faults, and values stay as they were read.

    A subclass *of* a dataclass has a key for each of its fields, but those *without* (`keys_of`).
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, protected_namespaces=(), defer_build=True
    )
    dataclass: ClassVar[type | None] = None
    """Whose fields are keys."""

    def __init_subclass__(cls, of: type | None = None, without: Collection[str] = (), **config: Any) -> None:
        super().__init_subclass__(**config)
        if of is not None:
            cls.dataclass = of
            declare(cls, of, without)

    @model_validator(mode="after")
    def _keys_belong(self) -> Self:
        for name, rule in _rules(type(self)):
            rule.check(self, name)
        return self


@cache
def _rules(section: type[Section]) -> tuple[tuple[str, BelongsTo], ...]:
    fields = section.model_fields.items()
    return tuple((name, rule) for name, info in fields for rule in info.metadata if isinstance(rule, BelongsTo))


def _quantity(dimension: str, *, zero: bool = False) -> Callable[[Any], float]:
    def validate(value: Any) -> float:
        if isinstance(value, dict | list) or value is None or isinstance(value, bool):
            raise ValueError(f"must be a quantity, e.g. {EXAMPLES[dimension]}, not {written(value)}")
        si = parse(value, dimension)
        if si < 0 or (si == 0 and not zero):
            raise ValueError(f"must be {'at least' if zero else 'above'} 0, not {value}")
        check_size(si, dimension, value)
        return si

    return validate


def check_size(si: float, dimension: str, value: Any) -> None:
    """Raise `ValueError` if *si*, a positive quantity or 0, is beyond the limits; *value*: as the user wrote it."""
    if si > LARGEST[dimension]:
        raise ValueError(f"{value} is absurd; the most that is taken is {show(LARGEST[dimension], dimension)}")
    if 0 < si < SMALLEST[dimension]:
        raise ValueError(f"{value} is absurd; the least that is taken is {show(SMALLEST[dimension], dimension)}")


def _shown(dimension: str) -> PlainSerializer:
    """Return the serialiser that writes a quantity with its unit to JSON and YAML."""
    return PlainSerializer(lambda value: show(value, dimension, 9), return_type=str, when_used="json-unless-none")


def _schema(dimension: str) -> WithJsonSchema:
    units = "|".join(sorted(UNITS[dimension], key=lambda unit: (-len(unit), unit)))
    return WithJsonSchema(
        {
            "type": "string",
            "description": f"a {dimension} with its unit, e.g. {EXAMPLES[dimension]}",
            "pattern": rf"^\s*\+?[0-9._]+([eE][-+]?[0-9]+)?\s*({units})\s*$",
        }
    )


def _whole(least: int, most: int = MOST) -> Callable[[Any], int]:
    def validate(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, not {written(value)}")
        if value < least:
            raise ValueError(f"must be at least {least}, not {short(value)}")
        if value > most:
            raise ValueError(f"{short(value)} is absurd; the most that is taken is {most}")
        return value

    return validate


LEAST_RATIO = 1e-9
"""Smallest factor or share that is not 0."""


def number(least: float, most: float, *, open_end: bool = False) -> Callable[[Any], float]:
    """Return a validator of finite numbers from *least* (with *open_end*: above it) to *most*."""

    def validate(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"must be a number, not {written(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"must be finite, not {value}")
        if value < least or (open_end and value == least):
            raise ValueError(f"must be {'above' if open_end else 'at least'} {least:g}, not {short(value)}")
        if value > most:
            raise ValueError(f"must be at most {most:g}, not {short(value)}")
        if open_end and value < LEAST_RATIO:
            raise ValueError(f"{short(value)} is absurd; the least that is taken is {LEAST_RATIO:g}")
        return float(value)

    return validate


def _counted(value: Any) -> float:
    """Return a number of tokens, samples or parameters; K, M, B or G, and T are thousands, millions, and so on.

    >>> _counted("1.5T"), _counted("300 B"), _counted(300e9)
    (1500000000000.0, 300000000000.0, 300000000000.0)
    """
    found = COUNTED.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, str) and not found:
        raise ValueError(f'must be a number, e.g. 300e9 or "300B" (K, M, B or G, T), not {written(value)}')
    # decimal, so that 1.1T is the same number as 1.1e12
    plain = float(Decimal(found[1].replace("_", "")) * SUFFIXES[found[2].upper()]) if found else value
    return number(0.0, 1e30)(plain)


def whole_number(value: Any) -> Any:
    """Refuse true and false, which Python takes as 1 and 0."""
    if isinstance(value, bool | float):
        raise ValueError(f"must be a whole number, not {written(value)}")
    return value


def _true_or_false(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {written(value)}")
    return value


Version = Annotated[Literal[1], BeforeValidator(whole_number)]
"""The version of a file's form."""

Bandwidth = Annotated[float, BeforeValidator(_quantity("bandwidth")), _schema("bandwidth"), _shown("bandwidth")]
"""bytes/s, above 0."""
Size = Annotated[float, BeforeValidator(_quantity("size")), _schema("size"), _shown("size")]
"""bytes, above 0."""
Amount = Annotated[float, BeforeValidator(_quantity("size", zero=True)), _schema("size"), _shown("size")]
"""bytes, 0 allowed: a measured or unit model may have none."""
Time = Annotated[float, BeforeValidator(_quantity("time", zero=True)), _schema("time"), _shown("time")]
"""s, 0 allowed."""
Duration = Annotated[float, BeforeValidator(_quantity("time")), _schema("time"), _shown("time")]
"""s, above 0: an interval, a mean time between failures."""
Rate = Annotated[float, BeforeValidator(_quantity("rate")), _schema("rate"), _shown("rate")]
"""FLOP/s, above 0."""
Power = Annotated[float, BeforeValidator(_quantity("power")), _schema("power"), _shown("power")]
"""W, above 0."""

Count = Annotated[int, BeforeValidator(_whole(1)), WithJsonSchema({"type": "integer", "minimum": 1})]
"""A count of GPUs, nodes, layers ...: at least 1."""
Index = Annotated[int, BeforeValidator(_whole(0)), WithJsonSchema({"type": "integer", "minimum": 0})]
"""A rank, a GPU's number, a seed: at least 0."""
Number = Annotated[float, BeforeValidator(number(0.0, 1e30)), WithJsonSchema({"type": "number", "minimum": 0})]
"""Without unit, 0 or more: tokens, money."""
Quantity = Annotated[
    float,
    BeforeValidator(_counted),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^{COUNTED.pattern}$"}]}
    ),
]
"""A large number of things, 0 or more: tokens, samples, parameters; 1.5T is 1.5e12."""
Ratio = Annotated[
    float, BeforeValidator(number(0.0, 1e6, open_end=True)), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
"""A factor above 0."""
Fraction = Annotated[
    float,
    BeforeValidator(number(0.0, 1.0, open_end=True)),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
]
"""A share, above 0 and at most 1."""
Flag = Annotated[bool, BeforeValidator(_true_or_false), WithJsonSchema({"type": "boolean"})]
"""true or false."""


def one_or_list(one: Any) -> WrapValidator:
    """Return the validator of ``One | list[One]`` that reports the faults of the given form only."""
    adapter = cache(TypeAdapter)  # made when the first value of that form is validated

    def validate(value: Any, _: Any) -> Any:
        if isinstance(value, list) and not value:
            raise ValueError("must have at least one entry")
        return adapter(list[one] if isinstance(value, list) else one).validate_python(value)

    return WrapValidator(validate)


Ratios = Annotated[Ratio | list[Ratio], one_or_list(Ratio)]
"""A factor above 0, or a list of them."""

Made = TypeVar("Made")


class Key:
    """Annotation of a dataclass's field: the *name* of its key in files, where that is another."""

    def __init__(self, name: str) -> None:
        self.name = name


@cache
def keys_of(made: type) -> Mapping[str, str]:
    """Return the fields of the dataclass *made* by their keys in files."""
    hints = _hints(made)
    return {_key(field.name, hints[field.name]): field.name for field in fields(made) if field.init}


def declare(section: type[BaseModel], made: type, without: Collection[str]) -> None:
    """Declare a key of *section* for each field of the dataclass *made* but those *without*.

    A key that the class body declares stays as it is there.
    """
    own = get_annotations(section)
    there = {field.name: field for field in fields(made)}
    keys = {key: name for key, name in keys_of(made).items() if key not in own and key not in without}
    section.__annotations__ = {**{key: _hints(made)[name] for key, name in keys.items()}, **own}
    for key, name in keys.items():
        default = _default(there[name])
        if default is not MISSING:
            setattr(section, key, default)


def made(section: BaseModel, kind: type[Made], **others: Any) -> Made:
    """Return the dataclass *kind* with the values of *section*; *others*: fields that have another form there."""
    source: type = kind
    shared = _shared(type(section), source)
    return kind(**{name: getattr(section, key) for key, name in shared if name not in others}, **others)


@cache
def _shared(section: type[BaseModel], kind: type) -> tuple[tuple[str, str], ...]:
    """Return (key, field) of what *section* and the dataclass *kind* both have."""
    return tuple((key, name) for key, name in keys_of(kind).items() if key in section.model_fields)


@cache
def _hints(made: type) -> dict[str, Any]:
    return get_type_hints(made, include_extras=True)


def _key(name: str, hint: Any) -> str:
    told = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((one.name for one in told if isinstance(one, Key)), name)


def _default(field: Field[Any]) -> Any:
    """Return the default of *field* as a section has it; `MISSING` if it has none."""
    if field.default_factory is not MISSING:
        return KeyInfo(default_factory=field.default_factory)
    return field.default
