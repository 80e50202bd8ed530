"""Output of nccl-tests: measured collectives, to which the parameters of the network are fitted."""

from __future__ import annotations

from scenarios.importing.facts import Facts
from scenarios.importing.source import Source
from simulator.replay.calibration import nccl_tests


def recognises(source: Source) -> bool:
    """Return whether *source* is output of nccl-tests, as text or as JSON (``-J``)."""
    return (not source.data and nccl_tests.is_text(source.text)) or isinstance(source.data.get("results"), list)


def read(source: Source, facts: Facts) -> None:
    """Note the file; it is fitted when the cluster is known."""
    source.taken |= {(key,) for key in source.data}
    facts.sweeps.append(source)
