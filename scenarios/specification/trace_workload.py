"""The `workload:` section: traces of a real run in place of a model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from clustersim.simulator.reading.quantities import Section

Traces = Annotated[
    list[str],
    Field(min_length=1),
    BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]


class TraceWorkload(Section):
    """A recorded step that is replayed on the cluster."""

    trace: Traces
    """Traces of torch.profiler (.json, .json.gz) or of Chakra (.et), one a rank, or folders of them. Required."""
    collectives: Literal["simulated", "measured"] = "simulated"
    """simulated: on the cluster; measured: each takes what it took in the trace, for a replay on its own cluster."""
    gpu: str = "auto"
    """The GPU on which the trace was recorded, a name of clustersim list gpus; auto: by its name in the trace."""
    dp_group: str = ""
    """The process group that holds the data-parallel replicas, if its name in the trace does not tell."""
