"""The schedule of a scenario: the passes of its parallelism, one after the other, inner axis first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature

from scenarios.derived import Derived
from scenarios.parallelism import (
    DistributedDataParallel,
    FullyShardedDataParallel,
    Naive,
    ParameterServer,
    Zero,
)
from scenarios.sections import CollectiveBenchmark
from scenarios.specification import Specification
from simulator.accelerator import Software
from simulator.document import Document
from simulator.errors import ScenarioError, ScheduleError
from simulator.lookup import attribute
from simulator.mesh import Mesh, family
from simulator.order import Order
from simulator.schedule import Collective, Program, Schedule
from workloads.compute import compute
from workloads.data_parallel import data_parallel
from workloads.fixed_cost import fixed_costs
from workloads.fsdp import fsdp
from workloads.gradient_norm import gradient_norm
from workloads.layout import stages_of
from workloads.model import Model
from workloads.naive import naive
from workloads.parameter_server import parameter_server
from workloads.pipeline_parallel import pipeline_parallel, tied_embeddings
from workloads.recompute import recompute
from workloads.tensor_parallel import tensor_parallel
from workloads.zero import zero

BATCHES = 3
"""Global batches that an asynchronous order runs through: the first fills the pipeline, the others are measured."""


def training_schedule(
    specification: Specification, model: Model, software: Software, derived: Derived, document: Document
) -> Schedule:
    """What every rank does in a training step of *model* under *software*.

    Raises `ScenarioError` at the key of what cannot be.
    """
    training, parallelism = specification.training, specification.parallelism
    assert training is not None
    samples = derived.micro_batch_size
    order = pipeline_order(specification, derived, document)
    with _faults_at(document, "parallelism", "layout" if parallelism.layout else "pp"):
        stages = stages_of(model, order.stages, parallelism.layout)
    schedule = compute(
        model,
        order,
        micro_batch_size=samples,
        stages=stages,
        optimizer=training.optimizer,
        gradient_dtype=training.gradient_dtype,
        weight_versions=attribute(parallelism.order, "weight_versions"),
        separate=software.separate_update,
    )
    with _faults_at(document, "training", "recompute"):
        how = "none" if _recomputes(specification) else training.recompute
        schedule = recompute(schedule, model, how, micro_batch_size=samples)
    with _faults_at(document, "parallelism", "tp"):
        share = model.sharded(derived.tp, parallelism.sequence_parallel) if derived.tp > 1 else model
    schedule = pipeline_parallel(schedule, share, micro_batch_size=samples)
    schedule = tied_embeddings(schedule, share, gradient_dtype=training.gradient_dtype)
    schedule = tensor_parallel(
        schedule,
        model,
        derived.tp,
        micro_batch_size=samples,
        sequence_parallel=parallelism.sequence_parallel,
        overlap=parallelism.tp_overlap,
        asynchronous=software.async_tensor,
        gradient_dtype=training.gradient_dtype,
    )
    with _faults_at(document, "parallelism", "data"):
        schedule = _data_parallel(schedule, specification, share, derived, software)
    if not order.asynchronous:
        schedule = gradient_norm(schedule, derived.tp * derived.pp, synchronous=parallelism.optimizer_sync)
    if model.optimizer_seconds is None:
        schedule = fixed_costs(schedule, software.step_seconds, software.exchange_seconds)
    batches = order.micro_batches // derived.micro_batches
    return replace(_arranged(schedule, parallelism.rank_order), steps=training.steps, batches=batches)


def pipeline_order(specification: Specification, derived: Derived, document: Document) -> Order:
    """The order of the pipeline's ranks over the micro-batches of a step."""
    parallelism = specification.parallelism
    virtual = () if parallelism.virtual_stages is None else (parallelism.virtual_stages,)
    recomputation = {"recompute": True} if _recomputes(specification) else {}
    with _faults_at(document, "parallelism", "schedule"):
        order = parallelism.order(derived.pp, derived.micro_batches, *virtual, **recomputation)
        if order.asynchronous and order.micro_batches == derived.micro_batches:
            # numbered through, so that the steady state shows
            order = parallelism.order(derived.pp, BATCHES * derived.micro_batches, *virtual)
    return order


def _recomputes(specification: Specification) -> bool:
    """Whether the order itself runs whole stages again, as GPipe's does, in place of the pass layer by layer."""
    training, order = specification.training, specification.parallelism.order
    return training is not None and training.recompute == "full" and "recompute" in signature(order).parameters


def _data_parallel(
    schedule: Schedule, specification: Specification, model: Model, derived: Derived, software: Software
) -> Schedule:
    """The pass of the method of data parallelism; *model* as one rank holds it."""
    training, data = specification.training, specification.parallelism.data
    assert training is not None
    replicas, dtype = derived.replicas, training.gradient_dtype
    match data:
        case Naive():
            samples = derived.micro_batch_size * derived.micro_batches
            return naive(schedule, model, replicas, samples=samples, gradient_dtype=dtype, update=data.update)
        case ParameterServer():
            return parameter_server(
                schedule, model, replicas, servers=data.servers, optimizer=training.optimizer, gradient_dtype=dtype
            )
        case DistributedDataParallel():
            return data_parallel(
                schedule,
                model,
                replicas,
                gradient_dtype=dtype,
                overlap=data.overlap,
                bucket=data.bucket,
                first_bucket=data.first_bucket,
                no_sync=data.no_sync,
            )
        case Zero():
            return zero(
                schedule,
                model,
                replicas,
                stage=data.stage,
                gradient_dtype=dtype,
                overlap=data.overlap,
                bucket=data.bucket,
                slice_seconds=software.slice_seconds,
                gather_ahead=software.gather_ahead,
            )
        case FullyShardedDataParallel():
            return fsdp(
                schedule,
                model,
                replicas,
                gradient_dtype=dtype,
                reshard=data.reshard,
                prefetch=data.prefetch,
                hybrid=data.hybrid,
                overlap=data.overlap,
            )


def _arranged(schedule: Schedule, rank_order: Sequence[str]) -> Schedule:
    """The ranks numbered along *rank_order*, fastest first; an axis made of several stands for all of them."""
    families = {name: [axis for axis in schedule.mesh.axes if family(axis) == name] for name in rank_order}
    return schedule.arranged(*(axis for name in rank_order for axis in families[name]))


@contextmanager
def _faults_at(document: Document, *path: str) -> Iterator[None]:
    """What a pass refuses is a fault of the scenario at *path*."""
    try:
        yield
    except (ScheduleError, ScenarioError) as error:
        raise document.error(path, str(error)) from None


def collective_schedule(benchmark: CollectiveBenchmark, ranks: int) -> Schedule:
    """The sizes of *benchmark* one after the other, over all of *ranks*, which form the axis ``all``."""
    ops = tuple(
        Collective(name=f"{benchmark.kind} {number}", kind=benchmark.kind, over="all", nbytes=size, root=benchmark.root)
        for number, size in enumerate(benchmark.size)
    )
    return Schedule(Mesh.regular({"all": ranks}), (Program("rank", ops),), (0,) * ranks)
