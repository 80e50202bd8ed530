"""The public face of clustersim: what scripts, notebooks and users' own extensions import.

The names are loaded on first use. In a clone the packages below lie in the top folders, to which links lead from here.

>>> from clustersim import Scenario
>>> Scenario.load("hello").cluster().name
'uniform'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clustersim.scenarios.results.result import Result
    from clustersim.scenarios.run.sweep import Sweep
    from clustersim.scenarios.scenario import Scenario
    from clustersim.scenarios.search.chains.problem import problem_of
    from clustersim.scenarios.search.chains.published_plans import overrides, propose
    from clustersim.scenarios.search.ranking import rank
    from clustersim.simulator.analysis.slack import slack
    from clustersim.simulator.analysis.timeline import Span, Timeline
    from clustersim.simulator.engine.interface.variation import Variation
    from clustersim.simulator.engine.simulate import simulate
    from clustersim.simulator.hardware.accelerator import Accelerator, Software
    from clustersim.simulator.hardware.cluster import Cluster
    from clustersim.simulator.hardware.kernel import BYTES, Kernel, matmul, memory_bound
    from clustersim.simulator.hardware.links import Link
    from clustersim.simulator.network.step import Group, Step
    from clustersim.simulator.reading.errors import SimulatorError
    from clustersim.simulator.reading.quantities import Bandwidth, Count, Flag, Fraction, Number, Section, Size, Time
    from clustersim.simulator.schedule.mesh import Axis, Mesh
    from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Delay, Op, Recv, Send
    from clustersim.simulator.schedule.pipeline_order import Action, Order
    from clustersim.simulator.schedule.program import Program
    from clustersim.simulator.schedule.schedule import Schedule
    from clustersim.topologies import cluster
    from clustersim.topologies.wiring.server import Server, Wiring, pcie_tree
    from clustersim.workloads.architectures.shape import Shape
    from clustersim.workloads.architectures.specification import model
    from clustersim.workloads.blocks._block import Block, HiddenStates
    from clustersim.workloads.data_parallel.buckets import Bucket, Reduction
    from clustersim.workloads.data_parallel.compressed_reduction import compressed
    from clustersim.workloads.memory.chains.chain import Chain
    from clustersim.workloads.memory.chains.optimal_checkpointing import optimal
    from clustersim.workloads.operators.attentions.core_attention import CoreAttention
    from clustersim.workloads.operators.model import Layer, Model
    from clustersim.workloads.operators.operator import SHIFT, Exchange, Operator, Segment
    from clustersim.workloads.operators.parameter import ParameterTensor
    from clustersim.workloads.parallelism._parallelism import DataMethod, Parallelism

__all__ = [
    "BYTES",
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
    "Flag",
    "Fraction",
    "Group",
    "HiddenStates",
    "Kernel",
    "Layer",
    "Link",
    "Mesh",
    "Model",
    "Number",
    "Op",
    "Operator",
    "Order",
    "Parallelism",
    "ParameterTensor",
    "Program",
    "Recv",
    "Reduction",
    "Result",
    "Scenario",
    "Schedule",
    "Section",
    "Segment",
    "Send",
    "Server",
    "Shape",
    "SimulatorError",
    "Size",
    "Software",
    "Span",
    "Step",
    "Sweep",
    "Time",
    "Timeline",
    "Variation",
    "Wiring",
    "cluster",
    "compressed",
    "matmul",
    "memory_bound",
    "model",
    "optimal",
    "overrides",
    "pcie_tree",
    "problem_of",
    "propose",
    "rank",
    "simulate",
    "slack",
]

_HOMES = {
    "scenarios.scenario": ("Scenario",),
    "scenarios.results.result": ("Result",),
    "scenarios.run.sweep": ("Sweep",),
    "scenarios.search.ranking": ("rank",),
    "scenarios.search.chains.problem": ("problem_of",),
    "scenarios.search.chains.published_plans": (
        "overrides",
        "propose",
    ),
    "simulator.analysis.slack": ("slack",),
    "simulator.analysis.timeline": (
        "Span",
        "Timeline",
    ),
    "simulator.engine.simulate": ("simulate",),
    "simulator.engine.interface.variation": ("Variation",),
    "simulator.hardware.accelerator": (
        "Accelerator",
        "Software",
    ),
    "simulator.hardware.cluster": ("Cluster",),
    "simulator.hardware.links": ("Link",),
    "simulator.hardware.kernel": (
        "BYTES",
        "Kernel",
        "matmul",
        "memory_bound",
    ),
    "simulator.network.step": (
        "Group",
        "Step",
    ),
    "simulator.reading.errors": ("SimulatorError",),
    "simulator.reading.quantities": (
        "Bandwidth",
        "Count",
        "Flag",
        "Fraction",
        "Number",
        "Section",
        "Size",
        "Time",
    ),
    "simulator.schedule.mesh": (
        "Axis",
        "Mesh",
    ),
    "simulator.schedule.ops": (
        "Collective",
        "Compute",
        "Copy",
        "Delay",
        "Op",
        "Recv",
        "Send",
    ),
    "simulator.schedule.pipeline_order": (
        "Action",
        "Order",
    ),
    "simulator.schedule.program": ("Program",),
    "simulator.schedule.schedule": ("Schedule",),
    "topologies": ("cluster",),
    "topologies.wiring.server": (
        "Server",
        "Wiring",
        "pcie_tree",
    ),
    "workloads.architectures.shape": ("Shape",),
    "workloads.architectures.specification": ("model",),
    "workloads.blocks._block": (
        "Block",
        "HiddenStates",
    ),
    "workloads.data_parallel.buckets": (
        "Bucket",
        "Reduction",
    ),
    "workloads.data_parallel.compressed_reduction": ("compressed",),
    "workloads.memory.chains.chain": ("Chain",),
    "workloads.memory.chains.optimal_checkpointing": ("optimal",),
    "workloads.operators.attentions.core_attention": ("CoreAttention",),
    "workloads.operators.model": (
        "Layer",
        "Model",
    ),
    "workloads.operators.operator": (
        "SHIFT",
        "Exchange",
        "Operator",
        "Segment",
    ),
    "workloads.operators.parameter": ("ParameterTensor",),
    "workloads.parallelism._parallelism": (
        "DataMethod",
        "Parallelism",
    ),
}
"""The names of each module."""


def __getattr__(name: str) -> Any:
    from clustersim.simulator.reading.lookup import module

    for home, names in _HOMES.items():
        if name in names:
            return getattr(module(f"clustersim.{home}"), name)
    raise AttributeError(f"module clustersim has no attribute {name}")
