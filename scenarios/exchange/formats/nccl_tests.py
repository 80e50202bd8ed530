"""Output of nccl-tests: measured collectives, to which the parameters of the network are fitted."""

from __future__ import annotations

from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.source_file import SourceFile
from clustersim.simulator.replay import nccl_tests


def recognises(source: SourceFile) -> bool:
    """Return whether *source* is output of nccl-tests, as text or as JSON (``-J``)."""
    return (not source.data and nccl_tests.is_text(source.text)) or isinstance(source.data.get("results"), list)


def read(source: SourceFile, facts: Facts) -> None:
    """Note the file; it is fitted when the cluster is known."""
    source.taken |= {(key,) for key in source.data}
    facts.sweeps.append(source)
