"""A pipeline order as torch.distributed.pipelining writes it: a row for each pipeline rank, ``0F0,0F1,0B0`` ..."""

from __future__ import annotations

from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.source_file import SourceFile
from clustersim.simulator.reading.errors import ScenarioError, ScheduleError
from clustersim.simulator.schedule.pipeline_order import Order


def recognises(source: SourceFile) -> bool:
    """Return whether *source* is a CSV file."""
    return source.name.lower().endswith(".csv")


def read(source: SourceFile, facts: Facts) -> None:
    """Read the number of pipeline ranks, and of micro-batches of a replica."""
    try:
        order = Order.parse(source.text)
    except ScheduleError as error:
        raise ScenarioError(f"{source.name}: {error}") from None
    facts.give("parallelism.schedule", source.name, source, over=True)
    facts.give("parallelism.pp", len(order.rows), source, how="its rows")
    facts.give("run.micro_batches", order.micro_batches, source, how="its micro-batches")
