"""Parameters of a fabric that are one factor or several."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter, WrapValidator

from simulator.document import Ratio


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
