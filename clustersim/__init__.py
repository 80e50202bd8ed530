"""The public face of clustersim: what scripts, notebooks and users' own extensions import.

The names are loaded on first use. In a clone the packages below lie in the top folders, to which links lead from here.

>>> from clustersim import Scenario
>>> Scenario.load("hello").cluster().name
'uniform'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clustersim.scenarios.exchange.facts import Facts
    from clustersim.scenarios.exchange.source_file import SourceFile
    from clustersim.scenarios.results.result import Result
    from clustersim.scenarios.run.sweep import Sweep
    from clustersim.scenarios.scenario import Scenario
    from clustersim.scenarios.search.planning_problem import problem_of
    from clustersim.scenarios.search.published_plans import overrides, propose, rank
    from clustersim.simulator.analysis.critical_path import slack
    from clustersim.simulator.analysis.timeline import Span, Timeline
    from clustersim.simulator.engine.pricing import Variation
    from clustersim.simulator.hardware.accelerator import Accelerator, Software
    from clustersim.simulator.hardware.cluster import Cluster
    from clustersim.simulator.hardware.kernel import BYTES, Kernel, matmul, memory_bound
    from clustersim.simulator.hardware.links import Link
    from clustersim.simulator.network.step import Group, Step
    from clustersim.simulator.network.transport import NET, NVLINK, PCI, Transport
    from clustersim.simulator.reading.errors import ScenarioError, SimulatorError
    from clustersim.simulator.reading.quantities import Bandwidth, Count, Flag, Fraction, Number, Section, Size, Time
    from clustersim.simulator.schedule.mesh import Axis, Mesh
    from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Delay, Op, Recv, Send
    from clustersim.simulator.schedule.pipeline_order import Action, Order
    from clustersim.simulator.schedule.program import Program
    from clustersim.simulator.schedule.schedule import Schedule
    from clustersim.simulator.simulate import simulate
    from clustersim.topologies import cluster
    from clustersim.topologies.fabrics._network import FabricRouter, Network, Port
    from clustersim.topologies.nodes._server import Server, Wiring, pcie_tree
    from clustersim.workloads.architectures.shape import Shape
    from clustersim.workloads.architectures.specification import model
    from clustersim.workloads.blocks._block import Block, HiddenStates
    from clustersim.workloads.data_parallel.buckets import Bucket, Reduction, compressed
    from clustersim.workloads.data_parallel.gradients import map_replicas, reduce_gradients, weights_by_stage
    from clustersim.workloads.memory.chain import Chain
    from clustersim.workloads.memory.optimal_checkpointing import optimal
    from clustersim.workloads.operators.attentions.core_attention import CoreAttention
    from clustersim.workloads.operators.model import Layer, Model
    from clustersim.workloads.operators.operator import SHIFT, Exchange, Operator, ParameterTensor, Segment
    from clustersim.workloads.parallelism._parallelism import DataMethod, Parallelism
    from clustersim.workloads.reductions.all_reduce import all_reduce

__all__ = [
    "BYTES",
    "NET",
    "NVLINK",
    "PCI",
    "SHIFT",
    "Accelerator",
    "Action",
    "Axis",
    "Bandwidth",
    "Block",
    "Bucket",
    "Chain",
    "Cluster",
    "Collective",
    "Compute",
    "Copy",
    "CoreAttention",
    "Count",
    "DataMethod",
    "Delay",
    "Exchange",
    "FabricRouter",
    "Facts",
    "Flag",
    "Fraction",
    "Group",
    "HiddenStates",
    "Kernel",
    "Layer",
    "Link",
    "Mesh",
    "Model",
    "Network",
    "Number",
    "Op",
    "Operator",
    "Order",
    "Parallelism",
    "ParameterTensor",
    "Port",
    "Program",
    "Recv",
    "Reduction",
    "Result",
    "Scenario",
    "ScenarioError",
    "Schedule",
    "Section",
    "Segment",
    "Send",
    "Server",
    "Shape",
    "SimulatorError",
    "Size",
    "Software",
    "SourceFile",
    "Span",
    "Step",
    "Sweep",
    "Time",
    "Timeline",
    "Transport",
    "Variation",
    "Wiring",
    "all_reduce",
    "cluster",
    "compressed",
    "map_replicas",
    "matmul",
    "memory_bound",
    "model",
    "optimal",
    "overrides",
    "pcie_tree",
    "problem_of",
    "propose",
    "rank",
    "reduce_gradients",
    "simulate",
    "slack",
    "weights_by_stage",
]

_HOMES = {
    "scenarios.exchange.facts": "Facts",
    "scenarios.exchange.source_file": "SourceFile",
    "scenarios.results.result": "Result",
    "scenarios.run.sweep": "Sweep",
    "scenarios.scenario": "Scenario",
    "scenarios.search.planning_problem": "problem_of",
    "scenarios.search.published_plans": "overrides propose rank",
    "simulator.analysis.critical_path": "slack",
    "simulator.analysis.timeline": "Span Timeline",
    "simulator.engine.pricing": "Variation",
    "simulator.simulate": "simulate",
    "simulator.hardware.accelerator": "Accelerator Software",
    "simulator.hardware.cluster": "Cluster",
    "simulator.hardware.kernel": "BYTES Kernel matmul memory_bound",
    "simulator.hardware.links": "Link",
    "simulator.network.step": "Group Step",
    "simulator.network.transport": "NET NVLINK PCI Transport",
    "simulator.reading.errors": "ScenarioError SimulatorError",
    "simulator.reading.quantities": "Bandwidth Count Flag Fraction Number Section Size Time",
    "simulator.schedule.mesh": "Axis Mesh",
    "simulator.schedule.ops": "Collective Compute Copy Delay Op Recv Send",
    "simulator.schedule.pipeline_order": "Action Order",
    "simulator.schedule.program": "Program",
    "simulator.schedule.schedule": "Schedule",
    "topologies": "cluster",
    "topologies.fabrics._network": "FabricRouter Network Port",
    "topologies.nodes._server": "Server Wiring pcie_tree",
    "workloads.architectures.shape": "Shape",
    "workloads.architectures.specification": "model",
    "workloads.blocks._block": "Block HiddenStates",
    "workloads.data_parallel.buckets": "Bucket Reduction compressed",
    "workloads.data_parallel.gradients": "map_replicas reduce_gradients weights_by_stage",
    "workloads.memory.chain": "Chain",
    "workloads.memory.optimal_checkpointing": "optimal",
    "workloads.operators.attentions.core_attention": "CoreAttention",
    "workloads.operators.model": "Layer Model",
    "workloads.operators.operator": "Exchange Operator SHIFT Segment ParameterTensor",
    "workloads.parallelism._parallelism": "DataMethod Parallelism",
    "workloads.reductions.all_reduce": "all_reduce",
}
"""The names of each module."""


def __getattr__(name: str) -> Any:
    from clustersim.simulator.reading.lookup import module

    for home, names in _HOMES.items():
        if name in names.split():
            return getattr(module(f"clustersim.{home}"), name)
    raise AttributeError(f"module clustersim has no attribute {name}")
