"""Data written as YAML."""

from __future__ import annotations

import io
from typing import Any


def yaml_text(data: dict[str, Any]) -> str:
    """Return *data* as YAML, with keys in their order."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.width = 120
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    text = io.StringIO()
    yaml.dump(data, text)
    return text.getvalue()
