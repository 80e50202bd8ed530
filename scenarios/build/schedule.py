"""The schedule of a scenario: the passes of its parallelisms, applied one after the other, inner axis first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from clustersim.scenarios.build.derived import Derived
from clustersim.scenarios.build.offload import offloaded
from clustersim.scenarios.specification.parallelism import ParallelismSection
from clustersim.scenarios.specification.sections import CollectiveBenchmark
from clustersim.scenarios.specification.specification import Specification
from clustersim.scenarios.specification.training import Training
from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import PlacedError, ScenarioError, ScheduleError
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.composition import merged, on_layouts, weight_axes
from clustersim.workloads.data_parallel.gradients import (
    accumulated,
    accumulated_bytes,
    accumulated_in_products,
    fused_bytes,
    gradient_norm,
    split_tensor_norms,
)
from clustersim.workloads.data_parallel.gradients_of_a_step import gradients_of_a_step
from clustersim.workloads.data_parallel.weight_casts import weight_casts
from clustersim.workloads.default_software_stack import LIKE_DDP
from clustersim.workloads.memory.compute import PIPELINE, compute
from clustersim.workloads.operators.by_coordinate import with_neighbours
from clustersim.workloads.operators.lowering import Overlap
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.stages import stages_of
from clustersim.workloads.parallelism._parallelism import DataMethod, Parallelism, TrainingStep
from clustersim.workloads.parallelism.expert import in_pairs
from clustersim.workloads.pipelines._row_patterns import SteadyState, repeated, steady_state

if TYPE_CHECKING:
    from clustersim.workloads.memory.chain_sequence import ChainSequence


def training_schedule(
    specification: Specification,
    model: Model,
    software: Software,
    derived: Derived,
    document: Document,
    cluster: Cluster,
    *,
    least: bool = False,
) -> Schedule:
    """Return the schedule of a training step of *model* with the software stack *software* on *cluster*.

    *least*: planned activations take little memory, instead of little time; nothing is simulated for them.

    Raises `ScenarioError` at the key that has to change.
    """
    parts = specification.parallelism.parts
    share = model_share(model, parts, document)
    for part in parts.values():
        if own := part.unequal_shares(share):
            made = {
                id(one): schedule_of_share(specification, one, software, derived, document, cluster, least=least)
                for one in own
            }
            return merged([made[id(one)] for one in own], part.axis)
    return schedule_of_share(specification, share, software, derived, document, cluster, least=least)


def schedule_of_share(
    specification: Specification,
    share: Model,
    software: Software,
    derived: Derived,
    document: Document,
    cluster: Cluster,
    *,
    least: bool = False,
) -> Schedule:
    """Return the schedule of a training step; *share* is the model with its layers as one rank holds them.

    Optimal recomputation takes the durations of layers and the memory of GPUs from *cluster*. *least*: as
    `training_schedule` has it.

    Raises `ScenarioError` at the key that has to change.
    """
    training, parallelism = specification.training, specification.parallelism
    assert training is not None
    dtype = gradient_dtype(training, parallelism.data, software)
    sizes = derived.micro_batch_size, derived.micro_batches
    step = TrainingStep(share, *sizes, training.updated_by(software), dtype, software, derived.accelerator)
    order = pipeline_order(specification, derived, document)
    _check_updates(specification, order, document)
    computed = _computation(specification, step, order, derived, document)
    if not training.plans_activations:
        recomputed = _recomputed(computed, specification, step, document)
        return _distributed(recomputed, specification, step, order, derived, document)
    from clustersim.scenarios.build.planned_activations import check_order, optimal_sequences
    from clustersim.workloads.memory.offloaded_activations import offloaded_by
    from clustersim.workloads.memory.recompute import recompute_by

    def finish(sequences: Mapping[int, ChainSequence]) -> Schedule:
        schedule = recompute_by(
            computed, share, sequences, micro_batch_size=step.micro_batch_size, early_stop=software.early_stop
        )
        return offloaded_by(_distributed(schedule, specification, step, order, derived, document), sequences)

    key = "recompute" if training.recompute_method == "optimal" else "offload"
    budget = ("budget",) if training.activation_budget is not None else ()
    with _faults_at(document, "training", key, *budget):
        check_order(order, parallelism.schedule, training)
        return finish(optimal_sequences(computed, specification, step, derived, cluster, finish, least=least))


def _distributed(
    schedule: Schedule,
    specification: Specification,
    step: TrainingStep,
    order: Order,
    derived: Derived,
    document: Document,
) -> Schedule:
    """Return *schedule*, the computation of every pipeline rank, with the passes of all parallelisms."""
    training, parallelism, share = specification.training, specification.parallelism, step.model
    assert training is not None
    parts = parallelism.parts
    period = parallelism.data.period(training.steps)
    steady = period or (_steady_state(specification, derived) if order.asynchronous else None)
    if steady:
        schedule = replace(schedule, batches=steady.batches, filling=steady.filling, draining=steady.draining)
    else:
        schedule = replace(schedule, steps=training.steps, staggered=not parallelism.synchronous_update)
    with _faults_at(document, "parallelism"):
        schedule = on_layouts(schedule, derived.layouts, list(parts.values()))
    for key, part in parts.items():
        with _faults_at(document, "parallelism", key):
            schedule = part.apply(schedule, step)
    if period or not order.asynchronous:
        axes = weight_axes(derived.layouts, list(parts.values()))
        schedule = gradient_norm(schedule, axes, synchronous=parallelism.synchronous_update)
        schedule = split_tensor_norms(schedule, share, [axis for axis in axes if axis != PIPELINE])
    if step.software.launch_blocking:
        from clustersim.workloads.launch_blocking import one_stream

        schedule = one_stream(schedule)
    if share.optimizer_seconds is None:
        from clustersim.workloads.software_stack import HostTime, fixed_costs

        schedule = fixed_costs(schedule, share, HostTime.of(step.software), step.software.host_seconds_per_message)
    with _faults_at(document, "parallelism"):
        schedule = with_neighbours(in_pairs(schedule, order))
    if casts_weights(specification, share, step.software):
        schedule = weight_casts(schedule, share)
    if frees_gradients(specification, share, step.software, step.micro_batches):
        return gradients_of_a_step(schedule, share)
    if training.offload is None:
        return schedule
    from clustersim.scenarios.build.planned_activations import with_activations_offloaded

    with _faults_at(document, "training", "offload"):
        schedule = offloaded(schedule, specification, step)
    with _faults_at(document, "training", "offload", "activations"):
        return with_activations_offloaded(schedule, training, share)


def frees_gradients(specification: Specification, share: Model, software: Software, micro_batches: int) -> bool:
    """Return whether gradients are held only from the backward pass to the step, which lowers the peak.

    With several micro-batches a step has a backward pass that begins with all gradients: they count as held all step,
    as they do where the room of activations is planned.
    """
    training, data = specification.training, specification.parallelism.data
    assert training is not None
    planned = training.plans_activations or training.offload is not None
    of_torch = data.method in ("ddp", "fsdp") and not data.period(training.steps)
    return (
        software.frees_gradients and of_torch and micro_batches == 1 and not planned and share.optimizer_seconds is None
    )


def casts_weights(specification: Specification, share: Model, software: Software) -> bool:
    """Return whether parameters in fp32 have copies in 16 bits during passes only: autocast on whole replicas."""
    training, parallelism = specification.training, specification.parallelism
    assert training is not None
    method, whole = parallelism.data.method, parallelism.pp == 1 and share.optimizer_seconds is None
    planned = training.plans_activations or training.offload is not None
    wide = training.master_weights and software.master_weights and BYTES[share.precision] < BYTES["fp32"]
    return software.autocast and wide and whole and method in LIKE_DDP and not planned


def gradient_dtype(training: Training, data: DataMethod, software: Software) -> str:
    """In which gradients are accumulated and reduced: as given, else as the method has them under *software*."""
    return training.gradient_dtype or data.gradient_dtype(training.base_precision, software)


def model_share(model: Model, parts: Mapping[str, Parallelism], document: Document) -> Model:
    """Return *model* with its layers as one rank holds them.

    Raises `ScenarioError` at a degree that does not divide the model.
    """
    for key, part in parts.items():
        with _faults_at(document, "parallelism", key):
            model = part.share(model)
    return model


def pipeline_order(specification: Specification, derived: Derived, document: Document) -> Order:
    """Return the pipeline order of the micro-batches of a step; an asynchronous order runs several batches."""
    with _faults_at(document, "parallelism", "schedule"):
        order = specification.parallelism.order(
            derived.micro_batches,
            recompute=_recomputes_stages(specification),
            steady=_steady_state(specification, derived),
            replicas=derived.by_stage,
        )
        for part in specification.parallelism.parts.values():
            order = part.ordered(order)
    training = specification.training
    period = specification.parallelism.data.period(training.steps) if training else None
    if period is None:
        return order
    if order.asynchronous:
        method = specification.parallelism.data.method
        message = (
            f"is asynchronous, and {method} needs batches one after the other; take one that flushes, such as 1f1b"
        )
        raise document.error(("parallelism", "schedule"), message)
    return repeated(order, period.batches)


def _check_updates(specification: Specification, order: Order, document: Document) -> None:
    """Raise `ScenarioError` if *order* updates weights within a batch and the replicas meet once a batch."""
    parallelism = specification.parallelism
    if order.asynchronous and parallelism.data.whole_model and not parallelism.data.period(1):
        message = (
            f"{parallelism.schedule} is asynchronous: it updates the weights within a batch, but "
            f"{parallelism.data.method} exchanges gradients once a batch; take a schedule that flushes, such as 1f1b, "
            "or data: {method: ddp}"
        )
        raise document.error(("parallelism", "schedule"), message)


def _steady_state(specification: Specification, derived: Derived) -> SteadyState:
    """The global batches that an asynchronous order runs through; it measures at least as many as there are steps."""
    training = specification.training
    assert training is not None
    return steady_state(specification.parallelism.pp, derived.micro_batches, training.steps, derived.by_stage)


def _recomputes_stages(specification: Specification) -> bool:
    """Return whether the order itself recomputes whole stages, as GPipe's, instead of the pass layer by layer."""
    training = specification.training
    return training is not None and training.recompute_method == "full" and specification.parallelism.recomputes_stages


def _computation(
    specification: Specification, step: TrainingStep, order: Order, derived: Derived, document: Document
) -> Schedule:
    """Return the computation of every pipeline rank, without recomputation."""
    training, parallelism = specification.training, specification.parallelism
    assert training is not None
    with _faults_at(document, "parallelism", _layout_key(parallelism)):
        stages = stages_of(step.model, order.stages, parallelism.layout, parallelism.split_rank)
    overlap: dict[str, Overlap] = {}
    for part in parallelism.parts.values():
        overlap |= part.overlap(step.software)
    schedule = compute(
        step.model,
        order,
        micro_batch_size=step.micro_batch_size,
        stages=stages,
        optimizer=step.optimizer,
        gradient_dtype=step.gradient_dtype,
        weight_versions=parallelism.weight_versions(derived.by_stage),
        unfused_update=step.software.unfused_update,
        flat_update=step.software.flat_update,
        foreach_update=step.model.optimizer_seconds is None and step.software.foreach_update,
        overlap=overlap,
        replicas=derived.by_stage,
    )
    if parallelism.data.whole_gradients and step.model.optimizer_seconds is None:
        dtype = step.gradient_dtype or step.model.precision
        how = parallelism.data.accumulation(step.software)
        nbytes = accumulated_bytes(how, step.model.precision, dtype, derived.micro_batches)
        schedule = accumulated(schedule, step.model, nbytes)
        schedule = accumulated_in_products(schedule, fused_bytes(how, step.model.precision, dtype))
    return schedule


def _recomputed(schedule: Schedule, specification: Specification, step: TrainingStep, document: Document) -> Schedule:
    """Return *schedule* with recomputation that follows from the layers of each stage."""
    training = specification.training
    assert training is not None
    options = training.recompute_options
    method = "none" if _recomputes_stages(specification) else options.method
    if method == "none":
        return schedule
    from clustersim.workloads.memory.recompute import recompute

    key = ("num_layers",) if options.num_layers is not None else ()
    with _faults_at(document, "training", "recompute", *key):
        made = recompute(
            schedule,
            step.model,
            method,
            micro_batch_size=step.micro_batch_size,
            num_layers=options.num_layers or 1,
            early_stop=step.software.early_stop,
        )
    if method == "full" and holds_inputs(specification, step):
        from clustersim.workloads.memory.reentrant_checkpoints import inputs_held

        return inputs_held(made, step.model, step.micro_batch_size)
    return made


def holds_inputs(specification: Specification, step: TrainingStep) -> bool:
    """Return whether FSDP holds the inputs of recomputed layers: of frozen weights under reentrant checkpoints."""
    frozen = any(not tensor.trainable for layer in step.model.layers for tensor in layer.tensors)
    return step.software.reentrant and frozen and specification.parallelism.data.method == "fsdp"


def _layout_key(parallelism: ParallelismSection) -> str:
    """Return the key that decides which layers a stage has."""
    return "split_rank" if parallelism.split_rank is not None else "layout" if parallelism.layout else "pp"


@contextmanager
def _faults_at(document: Document, *path: str) -> Iterator[None]:
    """Raise errors of a pass as errors of the scenario at *path*."""
    try:
        yield
    except PlacedError:
        raise
    except (ScheduleError, ScenarioError) as error:
        raise document.error(path, str(error)) from None


def collective_schedule(benchmark: CollectiveBenchmark, ranks: int) -> Schedule:
    """Return a schedule of the collectives of *benchmark* one after the other, over the axis ``all`` of *ranks*."""
    ops = tuple(
        Collective(name=f"{benchmark.kind} {number}", kind=benchmark.kind, over="all", nbytes=size, root=benchmark.root)
        for number, size in enumerate(benchmark.size)
    )
    return Schedule(Mesh.regular({"all": ranks}), (Program("rank", ops),), (0,) * ranks)
