"""The network of a lowered schedule: plans, phases, flows and changes from outside as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.engine.arrays import (
    BACKGROUND_BEGIN,
    BACKGROUND_END,
    CAPACITY,
    CHANGE,
    ENTRY,
    FLOW,
    PHASE,
    PLAN,
    Array,
)
from simulator.engine.setup import Setup
from simulator.network.plan import Flow, TransferPlan


def records(dtype: np.dtype[Any], rows: Sequence[tuple[Any, ...]], last: bool = True) -> Array:
    """*rows* as records of *dtype*; with *last*, one record more, which marks the end (`simulator.engine.arrays`)."""
    made = np.zeros(len(rows) + last, dtype)
    made[: len(rows)] = rows
    return made


def plan_arrays(plans: Sequence[TransferPlan], setup: Setup) -> tuple[dict[str, Array], list[Flow]]:
    """The arrays of *plans*, their phases, flows and entries, by name; and the flows by number, background last."""
    numbers: dict[int, int] = {}
    flows: list[Flow] = []

    def number(flow: Flow) -> int:
        found = numbers.setdefault(id(flow), len(flows))
        if found == len(flows):
            flows.append(flow)
        return found

    plan_table = np.zeros(len(plans) + 1, PLAN)
    plan_table["sms"][:-1] = [plan.sms for plan in plans]
    plan_table["delivery"][:-1] = [plan.delivery for plan in plans]
    plan_table["first_phase"][1:] = np.cumsum([len(plan.phases) for plan in plans])
    every_phase = [phase for plan in plans for phase in plan.phases]
    phases = np.zeros(len(every_phase) + 1, PHASE)
    phases["contended"][:-1] = [phase.contended for phase in every_phase]
    phases["latency"][:-1] = [phase.latency for phase in every_phase]
    phases["nbytes"][:-1] = [phase.nbytes for phase in every_phase]
    phases["first_flow"][1:] = np.cumsum([len(phase.flows) for phase in every_phase])
    phase_flows = np.array([number(flow) for phase in every_phase for flow in phase.flows], np.int64)
    for traffic in setup.background:
        number(traffic.flow)
    flow_table = np.zeros(len(flows) + 1, FLOW)
    flow_table["bound"][:-1] = [flow.bound for flow in flows]
    sizes = np.array([len(flow.rows) for flow in flows], np.int64)
    flow_table["first_entry"][1:] = np.cumsum(sizes)
    entries = np.zeros(int(sizes.sum()), ENTRY)
    entries["flow"] = np.repeat(np.arange(len(flows)), sizes)
    entries["row"] = [row for flow in flows for row in flow.rows]
    entries["weight"] = [weight for flow in flows for weight in flow.weights]
    return {
        "plans": plan_table,
        "phases": phases,
        "phase_flows": phase_flows,
        "flows": flow_table,
        "entries": entries,
    }, flows


def change_array(setup: Setup, flows: Sequence[Flow]) -> Array:
    """The changes of the network from outside, ascending in time; *flows* are by number."""
    number = {id(flow): index for index, flow in enumerate(flows)}
    changes = [(CAPACITY, change.row, change.time, change.capacity) for change in setup.capacity_changes]
    for traffic in setup.background:
        changes.append((BACKGROUND_BEGIN, number[id(traffic.flow)], traffic.begin, 0.0))
        changes.append((BACKGROUND_END, number[id(traffic.flow)], traffic.end, 0.0))
    return records(CHANGE, sorted(changes, key=lambda change: change[2]), last=False)
