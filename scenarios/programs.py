"""The schedule of a scenario: the passes of its parallelism, one after the other."""

from __future__ import annotations

from dataclasses import replace

from scenarios.derived import Derived
from scenarios.parallelism import DistributedDataParallel, Naive, ParameterServer
from scenarios.sections import CollectiveBenchmark
from scenarios.specification import Specification
from simulator.mesh import Mesh
from simulator.schedule import Collective, Program, Schedule
from workloads.compute import compute
from workloads.data_parallel import data_parallel
from workloads.model import Model
from workloads.naive import naive
from workloads.parameter_server import parameter_server
from workloads.pipelines.one_f_one_b import one_f_one_b


def training_schedule(specification: Specification, model: Model, derived: Derived) -> Schedule:
    """What every rank does in a training step of *model*."""
    training, data = specification.training, specification.parallelism.data
    assert training is not None
    micro_batch_size, dtype = derived.micro_batch_size, training.gradient_dtype
    order = one_f_one_b(stages=1, micro_batches=derived.micro_batches)
    schedule = compute(
        model, order, micro_batch_size=micro_batch_size, optimizer=training.optimizer, gradient_dtype=dtype
    )
    match data:
        case Naive():
            samples = micro_batch_size * derived.micro_batches
            schedule = naive(
                schedule, model, derived.replicas, samples=samples, gradient_dtype=dtype, update=data.update
            )
        case ParameterServer():
            schedule = parameter_server(
                schedule,
                model,
                derived.replicas,
                servers=data.servers,
                optimizer=training.optimizer,
                gradient_dtype=dtype,
            )
        case DistributedDataParallel():
            schedule = data_parallel(
                schedule,
                model,
                derived.replicas,
                gradient_dtype=dtype,
                overlap=data.overlap,
                bucket=data.bucket,
                first_bucket=data.first_bucket,
                no_sync=data.no_sync,
            )
    return replace(schedule, steps=training.steps)


def collective_schedule(benchmark: CollectiveBenchmark, ranks: int) -> Schedule:
    """The sizes of *benchmark* one after the other, over all of *ranks*, which form the axis ``all``."""
    ops = tuple(
        Collective(name=f"{benchmark.kind} {number}", kind=benchmark.kind, over="all", nbytes=size, root=benchmark.root)
        for number, size in enumerate(benchmark.size)
    )
    return Schedule(Mesh.regular({"all": ranks}), (Program("rank", ops),), (0,) * ranks)
