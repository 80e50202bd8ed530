"""NCCL's topology XML (``NCCL_TOPO_DUMP_FILE``): the GPUs, NICs and links of a server."""

from __future__ import annotations

from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.source_file import SourceFile
from clustersim.topologies import inventory_files


def recognises(source: SourceFile) -> bool:
    """Return whether *source* is XML; `nccl_topology.read` says what is wrong with any other."""
    return source.text.lstrip().startswith("<")


def read(source: SourceFile, facts: Facts) -> None:
    """Read the server. Raises `CalibrationError` with file and line."""
    facts.give("run.inventory", inventory_files.read_nccl_topology(source.text, source.name), source)
