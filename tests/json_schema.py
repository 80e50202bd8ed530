"""A validator of JSON Schema, whose schema is checked once and not for every file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def validator(schema: Mapping[str, Any]) -> Any:
    """Return a validator for *schema*, which is checked; skip the test if jsonschema is not installed."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)
