"""The input section: how fast samples are read and prepared, and the storage that they come from."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from simulator.document import Bandwidth, Count, Section, Size, Time
from simulator.document.quantities import written


class Storage(Section):
    """The storage that checkpoints are written to and samples are read from."""

    bandwidth: Bandwidth
    """Bytes/s of one storage node in each direction. Required."""
    nodes: Count = 1
    """Storage nodes; all of them serve a read or a write at once."""

    @property
    def aggregate(self) -> float:
        """Bytes/s of all storage nodes together."""
        return self.bandwidth * self.nodes


def _storage(value: Any) -> Any:
    """Return a bandwidth as the storage that has it."""
    if isinstance(value, dict | Storage):
        return value
    if not isinstance(value, str):
        raise ValueError(f'must be a bandwidth, e.g. "200 GB/s", or a mapping with bandwidth, not {written(value)}')
    return {"bandwidth": value}


class _OrBandwidth:
    """The JSON schema of a mapping that may also be written as a bandwidth."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(core), {"type": "string", "description": "a bandwidth, e.g. 200 GB/s"}]}


StorageEntry = Annotated[Storage, BeforeValidator(_storage), _OrBandwidth()]
"""Storage, or its bandwidth alone."""


class InputPipeline(Section):
    """The reading and preparing of samples, beside the step; a step waits for what comes too late."""

    sample: Size
    """Bytes that are read for a sample. Required."""
    workers: Count = 1
    """Processes that prepare samples for each replica, beside the GPUs."""
    prepare: Time = 0.0
    """Time of one process to decode and augment a sample."""
    storage: StorageEntry | None = None
    """Where samples are read from; by default campaign.checkpoint.storage, shared with checkpoints. Without either,
    reading takes no time."""
