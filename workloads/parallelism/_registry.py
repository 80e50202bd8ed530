"""The folder is the registry: a name finds the class that its file declares, a dotted name one of the user's own.

A file is imported when a scenario names it. Which files declare a method of data parallelism is seen in their text.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    SerializeAsAny,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import CoreSchema, PydanticKnownError

from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.names_and_parameters import known
from clustersim.simulator.reading.validation import Choices, Fault
from clustersim.workloads.parallelism._parallelism import DataMethod

PACKAGE = "clustersim.workloads.parallelism"

PACKAGES = (PACKAGE, f"{PACKAGE}.methods")
"""The folders with built-in methods of data parallelism."""

DEFAULT = "ddp"
"""The method of data parallelism if a scenario names none."""

_Class = TypeVar("_Class", bound=BaseModel)


def declared(name: str, base: type[_Class]) -> type[_Class] | None:
    """The subclass of *base* that the file *name* declares; None if it declares none. Raises `UnknownName`."""
    home = next((package for package in PACKAGES if name in lookup.names(package)), PACKAGE)
    module = lookup.find(home, name)
    own = (value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__)
    return next((value for value in own if issubclass(value, base)), None)


def users_own(name: str, base: type[_Class]) -> type[_Class]:
    """The subclass of *base* that the user's module *name* declares. Raises `Fault`."""
    known(name, PACKAGE, only=METHODS if base is DataMethod else ())
    found = declared(name, base)
    if found is None:
        raise Fault((), f"{name} declares no subclass of {base.__name__}")
    return found


def _built_in() -> tuple[str, ...]:
    """The names of the files with a key ``method: Literal["name of the file"]``."""
    files = sorted(path for package in PACKAGES for path in lookup.files(package))
    return tuple(sorted(path.stem for path in files if _declares_method(path)))


def _declares_method(path: Path) -> bool:
    return f'\n    method: Literal["{path.stem}"]' in path.read_text(encoding="utf-8")


METHODS = _built_in()
"""The names of the built-in methods of data parallelism."""


@cache
def method_class(name: str) -> type[DataMethod]:
    """The class of the built-in method *name*, one of `METHODS`."""
    found = declared(name, DataMethod)
    assert found is not None, name
    return found


def default_method() -> DataMethod:
    """Distributed data parallelism as torch has it."""
    return method_class(DEFAULT)(method=DEFAULT)


def _with_method(value: Any) -> Any:
    return {"method": DEFAULT, **value} if isinstance(value, dict) and "method" not in value else value


def _validated(value: Any, handler: ValidatorFunctionWrapHandler) -> DataMethod:
    """Return *value* as an instance of the method that it names; its faults are those of that class."""
    if not isinstance(value, dict):
        made: DataMethod = handler(value)
        return made
    name = value["method"]
    if name in METHODS:
        return method_class(name).model_validate(value)
    if not isinstance(name, str) or "." not in name:
        told = {"discriminator": "'method'", "tag": str(name), "expected_tags": ", ".join(f"'{m}'" for m in METHODS)}
        raise PydanticKnownError("union_tag_invalid", told)
    try:
        return users_own(name, DataMethod).model_validate(value)
    except Fault as fault:
        raise Fault(("method", *fault.path), fault.message, fault.hint) from None


class _BuiltIn(Choices):
    """All built-in methods, for the JSON schema and for messages about unknown keys."""

    def types(self) -> tuple[Any, ...]:
        return tuple(map(method_class, METHODS))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        every: Any = Annotated[Union[self.types()], Field(discriminator="method")]  # noqa: UP007
        return handler(TypeAdapter(every).core_schema)


Method = Annotated[SerializeAsAny[DataMethod], WrapValidator(_validated), _BuiltIn(), BeforeValidator(_with_method)]
"""What stands under ``data:``: a built-in method, or one of the user's own, which has a dotted name."""
