"""The pipeline order as CSV, which torch.distributed.pipelining reads.

torch's ``_PipelineScheduleRuntime._load_csv`` (torch 2.8, torch/distributed/pipelining/schedules.py) reads a row for
each pipeline rank and an action ``<stage><F|B|I|W><micro-batch>`` in each cell.
"""

from __future__ import annotations

from clustersim.scenarios.build.schedule import pipeline_order
from clustersim.scenarios.exchange.export import Export
from clustersim.scenarios.scenario import Scenario

PHASES = "FBIW"
"""Phases that torch's pipelining has."""


def torch_csv(scenario: Scenario) -> Export:
    """Return the order of *scenario*. Raises `ScenarioError` for an order with actions that torch does not have."""
    scenario.check_trains("pipeline order")
    order = pipeline_order(scenario.specification, scenario.derived, scenario.document)
    unknown = next((action for row in order.rows for action in row if action.phase not in PHASES), None)
    if unknown is not None:
        name = scenario.specification.parallelism.schedule
        message = (
            f"{name} has the action {unknown}; torch's orders have forward (F) and backward (B, I, W) actions only"
        )
        raise scenario.document.error(("parallelism", "schedule"), message)
    return Export({f"{scenario.name}.csv": order.csv()})
