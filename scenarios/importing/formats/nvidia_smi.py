"""``nvidia-smi topo -m``: the GPUs, NICs and links of a server."""

from __future__ import annotations

from scenarios.importing.facts import Facts
from scenarios.importing.source import Source
from topologies.inventory import nvidia_smi


def recognises(source: Source) -> bool:
    """Return whether *source* is a topology of nvidia-smi."""
    return not source.data and nvidia_smi.is_topology(source.text)


def read(source: Source, facts: Facts) -> None:
    """Read the server. Raises `CalibrationError` with file and line."""
    facts.give("run.inventory", nvidia_smi.read(source.text, source.name), source)
