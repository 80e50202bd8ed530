"""NCCL's topology XML (``NCCL_TOPO_DUMP_FILE``): the GPUs, NICs and links of a server."""

from __future__ import annotations

from scenarios.importing.facts import Facts
from scenarios.importing.source import Source
from topologies.inventory import nccl_topology


def recognises(source: Source) -> bool:
    """Return whether *source* is XML; `nccl_topology.read` says what is wrong with any other."""
    return source.text.lstrip().startswith("<")


def read(source: Source, facts: Facts) -> None:
    """Read the server. Raises `CalibrationError` with file and line."""
    facts.give("run.inventory", nccl_topology.read(source.text, source.name), source)
