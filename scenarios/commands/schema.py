"""`clustersim schema` prints the JSON schema of a scenario, for editors."""

from __future__ import annotations

from scenarios.command import app


@app.command()
def schema() -> None:
    """Print the JSON schema of a scenario, for editors."""
    import json

    from scenarios.specification import Specification

    print(json.dumps(Specification.model_json_schema(), indent=2))
