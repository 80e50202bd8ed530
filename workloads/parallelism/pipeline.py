"""Pipeline parallelism: stages pass activations forward and gradients backward, point to point.

Each pair of ranks and direction has a stream of its own, so a send never waits behind a receive. Stages may have
unequal numbers of replicas, as in PipeDream's 15-1: then each replica runs its own micro-batches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from inspect import signature
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import field_validator, model_validator

from clustersim.simulator.reading.errors import ScheduleError, SimulatorError
from clustersim.simulator.reading.lookup import attribute, function, names
from clustersim.simulator.reading.names_and_parameters import known
from clustersim.simulator.reading.quantities import BelongsTo, Count, Flag, Index
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.schedule.mesh import NOWHERE, Axis, Mesh, family
from clustersim.simulator.schedule.ops import Compute, Op
from clustersim.simulator.schedule.pipeline_order import Order, is_file, order_of_file, read_order
from clustersim.simulator.schedule.program import Program, TemplatedOps
from clustersim.simulator.schedule.records import changed
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.memory.compute import PIPELINE, WeightVersions
from clustersim.workloads.operators.model import Layer, Model
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.parallelism._parallelism import Choices, Chosen, Job, Parallelism, TrainingStep, divisors
from clustersim.workloads.parallelism._pipeline_messages import (
    ActionColumns,
    MessagePlan,
    Parts,
    PipelineMessage,
    late_recompute,
    message_plans,
)
from clustersim.workloads.parallelism._tied_embeddings import tied_embeddings
from clustersim.workloads.pipelines._row_patterns import SteadyState, steady_state

ORDERS = "clustersim.workloads.pipelines"

ALIASES = {"1f1b": "one_f_one_b"}
"""Names of orders that cannot be the name of a function."""


def _degrees(job: Job, chosen: Chosen) -> Sequence[int]:
    return divisors(job.gpus, job.layers)


def _schedules(job: Job, chosen: Chosen) -> Sequence[str]:
    """All orders in the folder but those with ``SEARCHED = False``; without a pipeline they are one."""
    if chosen["pp"] == 1:
        return ("1f1b",)
    plain = {name: alias for alias, name in ALIASES.items()}
    found = [name for name in names(ORDERS) if attribute(function(ORDERS, name), "SEARCHED") is not False]
    return sorted(plain.get(name, name) for name in found)


def _virtual_stages(job: Job, chosen: Chosen) -> Sequence[int | None]:
    """The divisors of the layers of a rank; None for an order without virtual stages."""
    name = str(chosen["schedule"])
    if "virtual_stages" not in _options(_named(ALIASES.get(name, name))):
        return (None,)
    return divisors(job.layers // chosen["pp"], job.layers)[1:] or (2,)


def _layouts(job: Job, chosen: Chosen) -> Sequence[Any]:
    """As given, and equal stages if the layers divide; else as equal as possible."""
    given = job.given.get("layout")
    return (None,) if chosen["pp"] == 1 else tuple(dict.fromkeys((given, "embedding_as_layer")))


@lru_cache(maxsize=64)
def _named(name: str) -> Callable[..., Order]:
    return function(ORDERS, name)


@lru_cache(maxsize=64)
def _options(order: Callable[..., Order]) -> Mapping[str, object]:
    """The defaults of the parameters of *order*."""
    return {name: parameter.default for name, parameter in signature(order).parameters.items()}


class Pipeline(Parallelism):
    """Pipeline parallelism: ranks hold the stages, and micro-batches pass through them in an order."""

    axis: ClassVar[str] = PIPELINE
    key: ClassVar[str] = "pp"
    searchable: ClassVar[Mapping[str, Choices]] = {
        "pp": _degrees,
        "schedule": _schedules,
        "virtual_stages": _virtual_stages,
        "layout": _layouts,
    }

    pp: Count = 1
    """Pipeline ranks."""
    schedule: str = "1f1b"
    """Order of the micro-batches: 1f1b, another file of workloads/pipelines, a CSV file as torch writes it, or the
    import path of an order of your own."""
    virtual_stages: Count | None = None
    """Stages of each pipeline rank, for orders that have several; by default that of the order."""
    layout: Literal["balanced", "embedding_as_layer"] | list[Index] | None = None
    """Layers of each stage: balanced, embedding_as_layer (embedding and logits count as a layer each), or a list of
    counts."""
    split_rank: Annotated[Count | None, BelongsTo("pp", to="a pipeline, but pp is 1")] = None
    """Pipeline ranks of the encoder of an encoder-decoder, Megatron-LM's pipeline_model_parallel_split_rank; by default
    its share of the layers."""
    optimizer_sync: Flag | None = None
    """The optimizer waits for the norm of all gradients; by default true, but false for ZB-H2 and ZB-V."""
    scatter_gather: Flag | None = None
    """Tensor-parallel ranks send a part of a boundary each, and the receivers gather; by default that of the
    software."""

    @field_validator("schedule")
    @classmethod
    def _schedule(cls, name: str) -> str:
        if is_file(name):
            try:
                read_order(name)  # reports faults of the file before anything runs
            except ScheduleError as error:
                raise ValueError(str(error)) from None
            return name
        return known(name, ORDERS, tuple(ALIASES))

    @model_validator(mode="after")
    def _has_virtual_stages(self) -> Self:
        if self.virtual_stages is not None and "virtual_stages" not in _options(self._function):
            raise Fault("virtual_stages", f"belongs to an order that has them; {self.schedule} has not")
        if self.split_rank is not None and self.stages_per_rank > 1:
            raise Fault("split_rank", f"belongs to an order with one stage for each rank, not to {self.schedule}")
        return self

    def degrees(self, ranks: int) -> Mapping[str, int]:
        """As given."""
        return {PIPELINE: self.pp}

    def check(self, others: Mapping[str, Parallelism]) -> None:
        """Nothing is scattered without a boundary, or where no two ranks hold the same one; images are equal."""
        if self.mirrored and any(getattr(other, "replicas_by_stage", None) for other in others.values()):
            raise Fault("schedule", f"{self.schedule} has weights of two stages on a rank: give dp as one number")
        if self.scatter_gather and self.pp == 1:
            raise Fault("scatter_gather", "belongs to a pipeline, but pp is 1")
        if self.scatter_gather and all(other.boundary_copies == 1 for other in others.values()):
            raise Fault("scatter_gather", "belongs to tensor parallelism without sequence_parallel")

    @property
    def order_name(self) -> str:
        """The name of the order's function."""
        return ALIASES.get(self.schedule, self.schedule)

    @property
    def _function(self) -> Callable[..., Order]:
        return order_of_file(self.schedule) if is_file(self.schedule) else _named(self.order_name)

    @property
    def stages_per_rank(self) -> int:
        """Virtual stages of a pipeline rank: as given, else those of the file, the default of the order, or 1."""
        if is_file(self.schedule):
            return max(1, read_order(self.schedule).stages // self.pp)
        default = _options(self._function).get("virtual_stages")
        return self.virtual_stages or (default if isinstance(default, int) else 1)

    @property
    def updates_early(self) -> bool:
        """True if the order gains from an optimizer that does not wait: its file has ``OPTIMIZER_SYNC = False``."""
        return attribute(self._function, "OPTIMIZER_SYNC") is False

    @property
    def synchronous_update(self) -> bool:
        """True if the optimizer waits for the norm of all gradients: *optimizer_sync*, else as the order needs it."""
        return not self.updates_early if self.optimizer_sync is None else self.optimizer_sync

    @property
    def recomputes_stages(self) -> bool:
        """True if the order can recompute whole stages by itself, as GPipe's does."""
        return "recompute" in _options(self._function)

    def weight_versions(self, replicas: Sequence[int] | None = None) -> WeightVersions | None:
        """How many versions of its weights a stage keeps, for an asynchronous order; *replicas* as in `order`."""
        versions: WeightVersions | None = attribute(self._function, "weight_versions")
        return partial(versions, **self._shared(replicas)) if versions else None

    def order(
        self,
        micro_batches: int,
        *,
        recompute: bool = False,
        steady: SteadyState | None = None,
        replicas: Sequence[int] | None = None,
    ) -> Order:
        """The order of the pipeline ranks over *micro_batches*; *recompute*: it recomputes whole stages by itself.

        An asynchronous order runs through the global batches of *steady* (default: `steady_state`). *replicas*: how
        many ranks share the micro-batches of each pipeline rank, for orders that take notice. Raises `ScheduleError`
        for an order that runs through other micro-batches.
        """
        shared = self._shared(replicas)
        order = self._made(micro_batches, **({"recompute": True} if recompute else {}), **shared)
        if not order.asynchronous:
            return order
        batches = (steady or steady_state(self.pp, micro_batches)).batches
        if "batches" in _options(self._function):
            order = self._made(micro_batches, batches=batches, **shared)
        else:
            order = self._made(batches * micro_batches, **shared)
        if order.micro_batches != batches * micro_batches:
            raise ScheduleError(
                f"{self.schedule} runs {order.micro_batches} micro-batches; asked for {batches} global batches of "
                f"{micro_batches}, an asynchronous order must run {batches * micro_batches}"
            )
        return order

    def _shared(self, replicas: Sequence[int] | None) -> dict[str, Sequence[int]]:
        return {"replicas": replicas} if replicas and "replicas" in _options(self._function) else {}

    def _made(self, micro_batches: int, **options: object) -> Order:
        if self.virtual_stages is not None:
            options["virtual_stages"] = self.virtual_stages
        try:
            order = self._function(self.pp, micro_batches, **options)
        except SimulatorError:
            raise
        except Exception as error:  # whatever the user's function raises
            if "." not in self.schedule:
                raise
            raise ScheduleError(f"{self.schedule} failed: {type(error).__name__}: {error}") from error
        if not isinstance(order, Order):
            raise ScheduleError(f"{self.schedule} must return clustersim.Order, not {type(order).__name__}")
        if "." in self.schedule and not is_file(self.schedule):
            self._check_own(order, micro_batches)
        return order

    def _check_own(self, order: Order, micro_batches: int) -> None:
        """Raise `ScheduleError` if an *order* of the user's own leaves out a stage or a micro-batch."""
        if len(order.rows) != self.pp or order.stages % self.pp:
            raise ScheduleError(
                f"{self.schedule} has {len(order.rows)} rows and {order.stages} stages; pp is {self.pp}: a row for "
                "each pipeline rank, and as many stages for each"
            )
        if order.asynchronous or self.mirrored:
            return
        try:
            order.check_whole()
        except ScheduleError as error:
            raise ScheduleError(f"{self.schedule}: {error}") from None
        if order.micro_batches != micro_batches:
            raise ScheduleError(
                f"{self.schedule} runs {order.micro_batches} micro-batches of the {micro_batches} of a replica"
            )

    @property
    def mirrored(self) -> bool:
        """True if a rank and its mirror image hold the same stages: the file of the order has ``MIRRORED = True``."""
        return attribute(self._function, "MIRRORED") is True

    def further_axes(self, mesh: Mesh) -> Mapping[str, Axis]:
        """Of a mirrored order, axes of replicas also join a pipeline rank with its mirror image: equal weights."""
        if not self.mirrored:
            return {}
        image = {a: b for ranks in mesh.axes[PIPELINE].groups for a, b in zip(ranks, reversed(ranks), strict=True)}
        place = mesh.axes[PIPELINE].place
        first_half = {rank for rank in image if (place(rank) or (0, 0))[1] < self.pp // 2}
        replicas = {name: axis.groups for name, axis in mesh.axes.items() if family(name) == REPLICAS}
        return {
            name: Axis(tuple((*group, *(image[rank] for rank in group)) for group in groups if group[0] in first_half))
            for name, groups in replicas.items()
        }

    def facts(self) -> Mapping[str, Any]:
        """Whether the optimizer waits."""
        return {} if self.pp == 1 else {"optimizer_sync": self.synchronous_update}

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """Send what other pipeline ranks need, and sum the gradients of tied embeddings."""
        scatter = step.software.scatter_gather if self.scatter_gather is None else self.scatter_gather
        size = step.micro_batch_size
        schedule = pipeline_parallel(schedule, step.model, micro_batch_size=size, scatter_gather=scatter)
        if attribute(self._function, "RECOMPUTES_LATE") and len(schedule.programs) == self.pp:
            schedule = late_recompute(schedule)
        return tied_embeddings(schedule, step.model, gradient_dtype=step.gradient_dtype)


def pipeline_parallel(
    schedule: Schedule, model: Model, *, micro_batch_size: int, scatter_gather: bool = False
) -> Schedule:
    """*schedule* with a Send and a Recv wherever an action needs what another rank of ``pp`` computes.

    Program i is that of coordinate i on ``pp``. *model* has its layers as one rank holds them: with sequence
    parallelism a rank sends its shard of a boundary. Between stages on one rank nothing is sent. *scatter_gather*: the
    ranks that hold the same boundary send one part each, and the receivers gather them before they compute (Narayanan
    et al. 2021, arXiv:2104.04473, section 4.1). Raises `ScheduleError` if a program runs on several coordinates.
    """
    coordinates = schedule.mesh.axes[PIPELINE].places(schedule.mesh.world_size)[1]
    if (schedule.program_numbers != coordinates).any():
        raise ScheduleError(f"pipeline_parallel wants one program for each coordinate of {PIPELINE}")
    if len(schedule.programs) == 1:
        return schedule
    layers = {layer.name: layer for layer in model.layers}
    rows = [ActionColumns.of(program) for program in schedule.programs]
    boundaries = _boundaries(schedule, layers, micro_batch_size)
    parts = _parts(schedule, model) if scatter_gather else None
    plans = message_plans(PIPELINE, rows, boundaries, parts)
    programs = (_with_messages(*one) for one in zip(schedule.programs, rows, plans, strict=True))
    return replace(schedule, programs=tuple(programs))


def _parts(schedule: Schedule, model: Model) -> Parts | None:
    """In how many parts the ranks with the same boundary send it."""
    count = max(schedule.degrees(model.boundary_axis)) if model.boundary_axis else 1
    return Parts(model.boundary_axis, count) if count > 1 else None


def _boundaries(schedule: Schedule, layers: Mapping[str, Layer], micro_batch_size: int) -> dict[int, float]:
    """By stage, the bytes that its last layer passes on."""
    boundary: dict[int, float] = {}
    for program in schedule.programs:
        for op in program.distinct():
            if isinstance(op, Compute) and op.action and op.layer and op.action.phase == "F":
                boundary[op.action.stage] = layers[op.layer].output_bytes(micro_batch_size)
    return boundary


def _with_messages(program: Program, row: ActionColumns, plan: MessagePlan) -> Program:
    """*program*, whose actions are *row*, with the messages of *plan*."""
    ops, messages = program.templated, plan.messages
    numbers = np.arange(len(ops.which))
    ends = row.block.searchsorted([*numbers, len(numbers)]).tolist()
    received, sent = plan.received.tolist(), plan.sent.tolist()
    # a block by its template and the messages of its actions; one that is a receive alone has no template
    keys: list[tuple[int | None, tuple[int, ...], tuple[int, ...]]] = [
        (template, tuple(received[first:last]), tuple(sent[first:last]))
        for template, (first, last) in zip(ops.which.tolist(), pairwise(ends), strict=True)
    ]
    keys += [(None, (message,), ()) for message in plan.received[plan.posted].tolist()]
    templates = list(dict.fromkeys(keys))
    made = list[tuple[Op, ...]]()
    for template, *several in templates:
        incoming, outgoing = ([messages[one] for one in those if one != NOWHERE] for those in several)
        if template is None:
            made.append((incoming[0].recv(),))
        else:
            made.append(tuple(_joined(ops.templates[template], incoming, outgoing)))
    place = {key: number for number, key in enumerate(templates)}
    which = np.array([place[key] for key in keys], np.int64)
    micro_batches = np.concatenate((ops.micro_batches, row.micro_batch[plan.posted]))
    # a receive stands before the block of the action before which it is posted
    order = np.concatenate((2 * numbers + 1, 2 * row.block[plan.before])).argsort(kind="stable")
    return program.with_templated_ops(TemplatedOps.from_columns(made, which[order], micro_batches[order]))


def _joined(
    ops: Sequence[Op], incoming: Sequence[PipelineMessage], outgoing: Sequence[PipelineMessage]
) -> Iterator[Op]:
    """*ops*: the first Compute of an action waits for its *incoming* message, its *outgoing* one follows the last."""
    awaited = {message.wanted: message for message in incoming}
    sent = {message.made: message for message in outgoing}
    last = {op.action: op.name for op in ops if isinstance(op, Compute)}
    for op in ops:
        if isinstance(op, Compute) and op.action in awaited:
            message = awaited.pop(op.action)
            yield from message.gathers()
            yield changed(op, after=(*op.after, message.recv().name))
        else:
            yield op
        if op.action in sent and op.name == last[op.action]:
            yield sent[op.action].send(op.name)
