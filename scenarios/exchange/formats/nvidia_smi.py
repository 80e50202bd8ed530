"""``nvidia-smi topo -m``: the GPUs, NICs and links of a server."""

from __future__ import annotations

from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.source_file import SourceFile
from clustersim.topologies import inventory_files


def recognises(source: SourceFile) -> bool:
    """Return whether *source* is a topology of nvidia-smi."""
    return not source.data and inventory_files.is_nvidia_smi(source.text)


def read(source: SourceFile, facts: Facts) -> None:
    """Read the server. Raises `CalibrationError` with file and line."""
    facts.give("run.inventory", inventory_files.read_nvidia_smi(source.text, source.name), source)
