"""Validation of a document by a pydantic model; every fault is reported with its position, in plain words."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    Discriminator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from clustersim.simulator.reading.document import Document, Path
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.lookup import module
from clustersim.simulator.reading.plain_text import written

Model = TypeVar("Model", bound=BaseModel)


class Fault(ValueError):  # noqa: N818 - it names the fault
    """Raised by a validator: *message* belongs to the key at *path* below the value being validated.

    *hint*: a suggestion, printed after ``help:``.
    """

    def __init__(self, path: str | int | Path, message: str, hint: str = "") -> None:
        self.path: Path = path if isinstance(path, tuple) else (path,)
        self.message, self.hint = message, hint
        super().__init__(message)


class Choices:
    """Metadata of an annotation of which only the base class is loaded: the value is one of several sections."""

    def types(self) -> tuple[Any, ...]:
        """Return the sections. Their files are imported when this is called, for messages and the JSON schema."""
        raise NotImplementedError


class Deferred(Choices):
    """Annotation of a base class: the value is one of several sections, each imported when a value first needs it.

    *homes*: ``module:class`` of each section by its tag; *tag* returns that of a value.
    """

    def __init__(self, homes: Mapping[str, str], tag: Callable[[Any], str]) -> None:
        self.homes, self.tag = homes, tag

    def section(self, tag: str) -> type[BaseModel]:
        """Return the section of *tag*."""
        home, _, name = self.homes[tag].partition(":")
        found: type[BaseModel] = getattr(module(home), name)
        return found

    def types(self) -> tuple[Any, ...]:
        """Return the sections with their tags; all of them are imported."""
        return tuple(Annotated[self.section(tag), Tag(tag)] for tag in self.homes)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validated)

    def _validated(self, value: Any) -> BaseModel:
        tag = self.tag(value)
        try:
            return self.section(tag).model_validate(value)
        except ValidationError as error:
            raise (_below(tag, error) if tag else error) from None

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        first, *others = self.types()
        if others:
            every: Any = Annotated[Union[first, *others], Discriminator(self.tag)]
            return handler(TypeAdapter(every).core_schema)
        section = self.section(*self.homes)
        section.model_rebuild()
        # a chain, whose link gets a definition of its own
        return handler(core_schema.chain_schema([section.__pydantic_core_schema__]))


def deferred(home: str, name: str) -> Any:
    """Return the annotation of the section *name* of the module *home*, imported when there is a value."""
    return Annotated[BaseModel, Deferred({"": f"{home}:{name}"}, lambda value: "")]


def _below(tag: str, error: ValidationError) -> ValidationError:
    """Return *error* with *tag* before the location of each fault, as pydantic has it for a member of a union."""
    return ValidationError.from_exception_data(
        error.title,
        [
            InitErrorDetails(
                type=PydanticCustomError(fault["type"], fault["msg"], fault.get("ctx")),
                loc=(tag, *fault["loc"]),
                input=fault["input"],
            )
            for fault in error.errors(include_url=False)
        ],
    )


def validated(document: Document, model: type[Model], at: Path = ()) -> Model:
    """Return the value at *at* as an instance of *model*. Raises `ScenarioError` with every fault."""
    data = document.get(at)
    if not isinstance(data, dict):
        raise document.error(at, f"must be a mapping (key: value), not {written(data)}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ScenarioError("\n".join(_faults(document, model, at, data, error))) from None


def _faults(document: Document, model: type[BaseModel], at: Path, data: Any, error: ValidationError) -> list[str]:
    """Return the texts of all faults in order of their positions; several of one value (from a union) become one."""
    found: dict[Path, list[tuple[str, str, bool]]] = {}
    for detail in error.errors(include_url=False):
        path = _resolved(data, detail["loc"], detail["type"])
        context = detail.get("ctx", {})
        if detail["type"].startswith("union_tag"):
            path = (*path, context["discriminator"].strip("'"))
        fault = context.get("error")
        if isinstance(fault, Fault):
            where = path + fault.path
            found.setdefault(where, []).append((fault.message, fault.hint, False))
        elif detail["type"] == "extra_forbidden":
            found.setdefault(path, []).append((*_unknown(model, data, path, detail["loc"]), True))
        else:
            at_key = detail["type"] in ("missing", "union_tag_not_found")
            found.setdefault(path, []).append((*_message(detail), at_key))
    texts = []
    undecided = {path[:-1] for path in found if path[-1:] in (("kind",), ("method",)) and not found[path][0][2]}
    for path, faults in found.items():
        if path[:-1] in undecided and faults[0][2] and path[-1:] not in (("kind",), ("method",)):
            continue  # which other keys are required depends on the choice
        if any(other != path and other[: len(path)] == path for other in found) and faults[0][0].startswith(
            "must be a"
        ):
            continue  # a member of a union that expects another value here; another member got further
        position = document.position(at + path)
        message, hint = _one([fault[:2] for fault in faults])
        text = document.fault(at + path, message, hint, at_key=faults[0][2])
        texts.append((position.file, position.line, text))
    return [text for _, _, text in sorted(texts, key=lambda item: item[:2])]


def _resolved(data: Any, location: tuple[int | str, ...], kind: str) -> Path:
    """Return the path in *data* of pydantic's *location*, which also has the names of union members."""
    return max(_candidates(data, location, kind), key=lambda way: (way[1], len(way[0])))[0]


def _candidates(data: Any, location: tuple[int | str, ...], kind: str) -> list[tuple[Path, bool]]:
    """Return the possible paths of *location*, each with whether it ends with its last part."""
    if not location:
        return [((), True)]
    head, rest = location[0], location[1:]
    ways: list[tuple[Path, bool]] = []
    if isinstance(data, dict) and (head in data or str(head) in data):
        key = head if head in data else str(head)
        ways += [((key, *path), last) for path, last in _candidates(data[key], rest, kind)]
    if isinstance(data, list) and isinstance(head, int) and head < len(data):
        ways += [((head, *path), last) for path, last in _candidates(data[head], rest, kind)]
    if kind == "missing" and not rest and not ways and isinstance(data, list if isinstance(head, int) else dict):
        ways.append(((head,), True))
    skipped = _candidates(data, rest, kind) if rest else [((), False)]
    return ways + skipped


_WORDS = {
    "missing": "is required",
    "union_tag_not_found": "is required",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping (key: value)",
    "model_type": "must be a mapping (key: value)",
    "model_attributes_type": "must be a mapping (key: value)",
    "finite_number": "must be finite",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "string_too_short": "must not be empty",
    "none_required": "must be nothing",
}
"""Messages by pydantic's type of error."""


def _message(detail: Any) -> tuple[str, str]:
    """Return the message and the hint for one of pydantic's errors."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind in ("literal_error", "enum"):
        return _choice(context["expected"], value)
    if kind == "union_tag_invalid":
        chosen = value.get(context["discriminator"].strip("'")) if isinstance(value, dict) else value
        return _choice(context["expected_tags"], chosen)
    return _sentence(kind, value, context, str(detail["msg"])), ""


def reason(detail: Any) -> str:
    """Return the message for one of pydantic's errors.

    >>> reason({"type": "literal_error", "input": "a", "ctx": {"expected": "'none' or 'full'"}})
    'must be none or full, not "a"'
    """
    fault = detail.get("ctx", {}).get("error")
    return fault.message if isinstance(fault, Fault) else _message(detail)[0]


def _sentence(kind: str, value: Any, context: dict[str, Any], message: str) -> str:
    if kind == "value_error":
        return str(context["error"])
    if kind == "missing" and "needs" in context:
        return f"{_WORDS[kind]}: {context['needs']}"
    if kind == "too_short" and context["min_length"] == 1:
        return "must not be empty"
    if kind in ("too_short", "too_long"):
        value = context.get("actual_length")
        return f"{_WORDS[kind].format(**context)}, not {value}"
    if kind in _WORDS:
        return _WORDS[kind].format(**context) + ("" if _WORDS[kind] == "is required" else f", not {written(value)}")
    return message[:1].lower() + message[1:]


def _choice(expected: str, value: Any) -> tuple[str, str]:
    choices = [text or number for text, number in re.findall(r"'([^']*)'|(\d+)", expected)]
    return f"must be {listed(choices)}, not {written(value)}", near(str(value), choices)


def listed(names: Iterable[str]) -> str:
    """Return *names* as they are listed in a sentence.

    >>> listed(["ring", "tree", "direct"])
    'ring, tree or direct'
    """
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def near(name: str, names: Iterable[str]) -> str:
    """Return the question "did you mean" with the most similar of *names*; empty if none is similar.

    Names that end with ``_`` and *name* are all as similar: a ``batch_size`` is the global or the micro one.

    >>> near("batch_size", ["global_batch_size", "micro_batch_size", "tokens"])
    'did you mean "global_batch_size" or "micro_batch_size"?'
    """
    names = list(names)
    longer = [other for other in names if len(name) > 2 and other.startswith(name.lower())][:1]
    ending = [other for other in names if len(name) > 2 and other.endswith(f"_{name.lower()}")]
    close = longer or ending or difflib.get_close_matches(name.lower(), names, n=1)
    quoted = [f'"{one}"' for one in close]
    return f"did you mean {listed(quoted)}?" if close else ""


def close_matches(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three of *names* that are similar to *name*, nearest first, in quotation marks.

    >>> close_matches("helo", ["hello", "zero_bubble"])
    ['"hello"']
    """
    return [f'"{one}"' for one in difflib.get_close_matches(name.lower(), names, n=3)]


def _one(faults: list[tuple[str, str]]) -> tuple[str, str]:
    """Return several faults of one value, one for each member of a union, as one: must be A or B, not C."""
    ranged = [fault for fault in faults if not fault[0].startswith(("must be a list", "must be a mapping"))]
    if any(not fault[0].startswith("must be a ") for fault in ranged):
        faults = ranged
    faults = list(dict.fromkeys(faults))
    messages = [message for message, _ in faults]
    hint = next((hint for _, hint in faults if hint), "")
    parts = [re.fullmatch(r"must be (.*), (not .*)", message, re.DOTALL) for message in messages]
    if len(messages) > 1 and all(parts):
        needs = [part[1] for part in parts if part]
        return f"must be {' or '.join(needs)}, {parts[0][2] if parts[0] else ''}", hint
    return "; ".join(messages), hint


def _unknown(model: type[BaseModel], data: Any, path: Path, location: tuple[int | str, ...]) -> tuple[str, str]:
    """Return message and hint for a key that the model does not have; another choice may have it."""
    found: list[Any] = [model]
    models = found
    for key in path[:-1]:
        data = data[key]
        members = [member for owner in models for annotation in _inner(owner, key) for member in _members(annotation)]
        found, models = [member for member, _ in members], _taken(members, data, location)
    here = dict.fromkeys(name for owner in models for name in _keys(owner))
    owners = [_literals(owner) for owner in found if path[-1] in _keys(owner) and path[-1] not in here]
    for name in dict.fromkeys(name for owner in owners for name in owner):
        values = [value for owner in owners for value in owner.get(name, ())]
        taken = [str(v) for member in models for v in _literals(member).get(name, ()) if v not in values]
        if taken:
            return f"belongs to {name} {listed(map(str, values))}, but {name} is {listed(taken)}", ""
    hint = near(str(path[-1]), here)
    return "unknown key", hint or (f"keys here are {', '.join(here)}" if 0 < len(here) <= 14 else "")


def _taken(members: list[tuple[Any, str]], data: Any, location: tuple[int | str, ...]) -> list[Any]:
    """Return the members that *data* selects: by their literals, or by the tag in pydantic's *location*."""
    values = data if isinstance(data, dict) else {}
    tagged = [member for member, tag in members if tag in location]
    fitting = [m for m, _ in members if all(values.get(name, v[0]) in v for name, v in _literals(m).items())]
    named = [m for m in fitting if any(set(allowed) & set(location) for allowed in _literals(m).values())]
    return tagged or named or fitting or [member for member, _ in members]


def _keys(owner: Any) -> list[str]:
    if not isinstance(owner, type) or not issubclass(owner, BaseModel):
        return []
    return [info.alias or name for name, info in owner.model_fields.items()]


def _inner(owner: Any, key: str | int) -> list[Any]:
    """Return the annotations of the value at *key* of a value of type *owner*."""
    if isinstance(owner, type) and issubclass(owner, BaseModel):
        fields = [info for name, info in owner.model_fields.items() if key in (name, info.alias)]
        return [Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation for info in fields]
    arguments = [argument for argument in get_args(owner) if argument is not Ellipsis]
    if isinstance(key, int):
        return arguments if get_origin(owner) in (list, tuple) else []
    return arguments[-1:] if get_origin(owner) is dict else []


def _members(annotation: Any, tag: str = "") -> list[tuple[Any, str]]:
    """Return the types that *annotation* allows, members of unions one by one, with their discriminating tags."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        choices = next((one for one in metadata if isinstance(one, Choices)), None)
        if choices is not None:
            return [member for kind in choices.types() for member in _members(kind, tag)]
        return _members(inner, next((str(one.tag) for one in metadata if isinstance(one, Tag)), tag))
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for part in get_args(annotation) for member in _members(part, tag)]
    return [(annotation, tag)]


def _literals(member: Any) -> dict[str, tuple[Any, ...]]:
    """Return the keys of *member* that allow only certain values, with these values."""
    if not isinstance(member, type) or not issubclass(member, BaseModel):
        return {}
    fields = member.model_fields.items()
    return {name: get_args(info.annotation) for name, info in fields if get_origin(info.annotation) is Literal}
