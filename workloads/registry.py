"""The folder is the registry: a name finds the class that its file declares, a dotted name one of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args

from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny, WrapValidator

from simulator import lookup
from simulator.document import Fault
from simulator.document.names import known
from workloads.parallelism import DataMethod

PACKAGE = "workloads.parallelism"

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


def _built_in() -> Iterator[type[DataMethod]]:
    for name in sorted(name for package in PACKAGES for name in lookup.names(package)):
        found = declared(name, DataMethod)
        if found is not None:
            yield found


def default_method() -> DataMethod:
    """Distributed data parallelism as torch has it."""
    found = declared(DEFAULT, DataMethod)
    assert found is not None
    return found(method=DEFAULT)


def _with_method(value: Any) -> Any:
    return {"method": DEFAULT, **value} if isinstance(value, dict) and "method" not in value else value


def _validated(value: Any, built_in: Callable[[Any], DataMethod]) -> DataMethod:
    name = value.get("method") if isinstance(value, dict) else None
    if not isinstance(name, str) or "." not in name:
        return built_in(value)
    try:
        return users_own(name, DataMethod).model_validate(value)
    except Fault as fault:
        raise Fault(("method", *fault.path), fault.message, fault.hint) from None


_CLASSES = tuple(_built_in())

METHODS = tuple(get_args(cls.model_fields["method"].annotation)[0] for cls in _CLASSES)
"""The names of the built-in methods of data parallelism."""

if TYPE_CHECKING:
    _BuiltIn = DataMethod
else:
    _BuiltIn = Annotated[Union[_CLASSES], Field(discriminator="method")]  # noqa: UP007

Method = Annotated[SerializeAsAny[_BuiltIn], WrapValidator(_validated), BeforeValidator(_with_method)]
"""What stands under ``data:``: a built-in method, or one of the user's own, which has a dotted name."""
