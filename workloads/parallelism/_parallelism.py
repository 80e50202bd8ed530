"""Base classes of a parallelism and of a method of data parallelism, and what a planner may vary of them.

`Parallelism` is the base class of an axis, `DataMethod` that of a method of data parallelism (``data: {method: ...}``).
The order in which they apply is the list in `workloads.composition`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import model_validator

from clustersim.simulator.hardware.accelerator import Accelerator, Software
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import Section
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.schedule.mesh import Axis, Mesh
from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.buckets import NO_COPIES, BucketCopies, Reduction
from clustersim.workloads.memory.optimizer import Optimizer
from clustersim.workloads.operators.lowering import Overlap
from clustersim.workloads.operators.model import Layer, Model
from clustersim.workloads.pipelines._row_patterns import SteadyState
from clustersim.workloads.reductions._compression import CompressionKeys

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from clustersim.workloads.architectures.transformer import Transformer
    from clustersim.workloads.data_parallel.parameter_gathers import Gathering

Chosen = Mapping[str, Any]
"""The values chosen so far, by key."""

Given = Mapping[str, Any]
"""The section ``parallelism`` of the scenario, as it is written."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained where: *layers* of a model between its ends, a *batch* of samples, on *gpus*, *node* in a node.

    *given*: the section ``parallelism`` as it is written. *saves*: selective recomputation saves memory. *tokens* of a
    sample and *experts* of a layer, 0 if there are none. *overlaps*: the software can overlap tensor-parallel exchanges
    with products. *precisions*: values of that key that GPU and software have.
    """

    layers: int
    batch: int
    gpus: int
    node: int
    given: Given
    saves: bool = True
    tokens: int = 0
    experts: int = 0
    overlaps: bool = False
    precisions: Sequence[Any] = ("fp32",)


Choices = Callable[[Job, Chosen], Sequence[Any]]
"""The values of a key to try for a job, after those of earlier keys. If it is one value, there is nothing to choose."""


def divisors(number: int, most: int) -> list[int]:
    """Return the divisors of *number* up to *most*, ascending.

    >>> divisors(12, 6)
    [1, 2, 3, 4, 6]
    """
    return [one for one in range(1, min(number, most) + 1) if number % one == 0]


@dataclass(frozen=True)
class TrainingStep:
    """The facts of a training step that a pass needs in addition to its schedule.

    *model* has its layers as one rank holds them. Each replica runs *micro_batches* of *micro_batch_size* samples.
    *gradient_dtype*: None for the precision of the model. *accelerator*: that of the first rank, for passes that need
    to know when an op ends.
    """

    model: Model
    micro_batch_size: int
    micro_batches: int
    optimizer: str | Optimizer = "adam"
    gradient_dtype: str | None = None
    software: Software = field(default_factory=Software)
    accelerator: Accelerator | None = None


class Parallelism(Section):
    """An axis of ranks. The fields of a subclass are its keys in the section ``parallelism`` of a scenario."""

    axis: ClassVar[str]
    """Its name, by which results report its communication: ``tp``. It may have several: ``tp.x``, ``tp.y``."""

    key: ClassVar[str] = ""
    """The key of the section that an error of this parallelism points to."""

    same_weights: ClassVar[bool] = False
    """Its ranks hold the same weights, so its axis belongs to that of the replicas (`further_axes`)."""

    searchable: ClassVar[Mapping[str, Choices]] = {}
    """The keys that `plan` may vary, with the values that ``auto`` stands for (`workloads.parallelism._parallelism`).
    """

    def degrees(self, ranks: int) -> Mapping[str, int]:
        """The degree of each of its axes. *ranks*: what the parallelisms applied before it leave of all GPUs."""
        raise NotImplementedError

    @property
    def boundary_copies(self) -> int:
        """How many of its ranks hold the same boundary between two stages of a pipeline."""
        return 1

    @property
    def reduces_apart(self) -> bool:
        """True if some gradients are reduced over other groups than those of all replicas."""
        return False

    @property
    def described(self) -> str:
        """What headings say of it beside its degrees; nothing by default."""
        return ""

    @property
    def sample_shares(self) -> int:
        """Into how many parts its ranks divide the samples of a micro-batch."""
        return 1

    def check(self, others: Mapping[str, "Parallelism"]) -> None:
        """Raise `Fault`, with the key to change, if the keys contradict those of the *others*, which are by key."""

    def share(self, model: Model) -> Model:
        """*model* with its layers as one rank holds them. Raises `ScenarioError` for a degree that does not divide."""
        return model

    def unequal_shares(self, share: Model) -> Sequence[Model]:
        """The model of the rank at each coordinate of its axis, if their work differs; else nothing.

        *share* is the model that `share` returns: that of the rank with most work.
        """
        return ()

    def overlap(self, software: Software) -> Mapping[str, Overlap]:
        """By axis, how exchanges run beside their products."""
        return {}

    def check_stage(self, ranks: int, tensor: int) -> None:
        """Raise `ScheduleError` unless it fits the *ranks* of a pipeline stage; *tensor*: how many share a layer."""

    def holders(self, ranks: int, tensor: int) -> Mapping[str, int]:
        """By axis of `further_axes` that joins ranks with the same weights, how many it joins; arguments as above."""
        return {}

    def further_axes(self, mesh: Mesh) -> Mapping[str, Axis]:
        """Axes of another layout over the ranks of *mesh*, such as that of the experts; they may replace axes.

        Ranks with the same weights belong together on ``dp``: context parallelism replaces it by a joint axis.
        """
        return {}

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """*schedule*, whose mesh has the axis, with the communication of this parallelism."""
        return schedule

    def ordered(self, order: Order) -> Order:
        """*order* of the pipeline as this parallelism needs it."""
        return order

    def facts(self) -> Mapping[str, Any]:
        """What `show derived` prints beside the degrees."""
        return {}


class DataMethod(Section):
    """A method of data parallelism; *method* is the name of its file, or an import path of the user's own."""

    whole_model: ClassVar[bool] = False
    """Every GPU has the whole model, so all other degrees must be 1."""
    exchanges_weights: ClassVar[bool] = False
    """Replicas exchange weights as their optimizers hold them, in fp32."""

    method: str
    """The method, a file of workloads/parallelism, or an import path of your own."""

    @property
    def overlaps(self) -> bool:
        """True if its exchanges run beside the computation."""
        return True

    @property
    def broadcasts(self) -> bool:
        """True if rank 0 broadcasts the model to the other replicas before the first step."""
        return False

    @property
    def sharded(self) -> Collection[str]:
        """The states (parameters, gradients, optimizer) of which each replica holds a part only."""
        return ()

    @property
    def hosts(self) -> int:
        """How many ranks it needs on hosts."""
        return 0

    def with_host_work(
        self, program: Program, layers: Sequence[Layer], software: Software, *, again: bool = False
    ) -> Program:
        """*program* with what its host does beside the kernels of a pass of one of *layers*.

        *again*: the layers are computed again before their backward passes, though the program does not show it.
        """
        return program

    @property
    def first_steps(self) -> int:
        """How many steps at the begin of training are not like those of a period; one of them is simulated, first."""
        return 0

    @property
    def least_exchanges(self) -> Mapping[str, int]:
        """How often a micro-batch at least exchanges each layer, whole, over all replicas; empty also if not known.

        By kind: ``all_gather`` of parameters and ``reduce_scatter`` of gradients, on a stream for each. A planner
        leaves methods out by it that would take longer than others for these exchanges alone.
        """
        return {}

    def copies(self, model: Model, software: Software, dtype: str) -> BucketCopies:
        """The kernels around the reduction of gradients in *dtype*, if *model* has more replicas than one.

        A planner's lower bounds have them; none also if they are not known.
        """
        return NO_COPIES

    def exchanges_after(self, software: Software) -> Sequence[str]:
        """Kinds of exchange of whole gradients, or parameters, over all replicas that end a step, beside nothing else.

        A planner's lower bounds have them; none also if they are not known.
        """
        return ()

    def most_buffers(self, largest: float, precision: str, software: Software, dtype: str) -> float:
        """The most bytes of gathered parameters, and of gradients in *dtype* in buckets beside them, at one time.

        *largest*: the most parameters, in *precision*, of a layer as one rank holds it. Buffers that are held all the
        time do not count. A planner's lower bounds have it; infinite if it is not known.
        """
        return inf

    @property
    def whole_gradients(self) -> bool:
        """True if a rank accumulates the gradients of all its parameters, false if only those of a shard."""
        return True

    def accumulation(self, software: Software) -> str:
        """How gradients of micro-batches are added up, if a rank accumulates those of all its parameters."""
        return software.accumulation

    @property
    def label(self) -> str:
        """What reports call it."""
        return self.method

    def gradient_dtype(self, precision: str, software: Software) -> str:
        """In which gradients are accumulated and reduced when a model trains in *precision*."""
        return software.gradient_dtype(precision)

    def check(self, others: Mapping[str, Parallelism]) -> None:
        """Raise `Fault`, with the key to change, if the method does not go with the *others*, which are by key."""

    def period(self, steps: int) -> SteadyState | None:
        """The global batches that a run goes through to show whole periods of communication, at least *steps* of them.

        None: the method communicates alike in every step.
        """
        return None

    def trained_share(self, replicas: int, batches: int) -> float:
        """The share of the samples of so many global *batches* that the *replicas* train on; some may be idle."""
        return 1.0

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """*schedule*, whose mesh has the axis ``dp``, with the communication of the replicas."""
        raise NotImplementedError

    def facts(self) -> Mapping[str, Any]:
        """What `show derived` prints of it."""
        return {}


MOST_BUCKETS = 4
"""Buckets of gradients that a rank holds at most: two, the excess of a layer, and one whose reduction ends
(`clustersim.workloads.data_parallel.sharded_states.double_buffered`)."""


class ReducingMethod(DataMethod):
    """A method that reduces gradients in buckets; *compression* changes the reduction of each bucket."""

    compression: CompressionKeys | None = None
    """How gradients are compressed; by default not at all."""

    @property
    def gathers_parameters(self) -> bool:
        """True if parameters are in shards, and gathered before their use."""
        return "parameters" in self.sharded

    @model_validator(mode="after")
    def _has_what_is_compressed(self) -> Self:
        if self.compression and self.compression.gathering and not self.gathers_parameters:
            raise Fault(
                ("compression", "method"),
                f"{self.compression.method} compresses gathered parameters; take method: zero with stage: 3, or fsdp",
            )
        return self

    def gathering(self, replicas: int) -> "Gathering":
        """How the *replicas* gather parameters. Raises `ScenarioError` unless the partition divides them."""
        from clustersim.workloads.architectures.shape import nearest_divisors
        from clustersim.workloads.data_parallel.parameter_gathers import PLAIN
        from clustersim.workloads.data_parallel.sharded_states import SHARD

        asked = self.compression.gathering if self.compression else None
        if asked is None:
            return PLAIN
        if replicas % asked.partition:
            good = " or ".join(map(str, nearest_divisors(replicas, min(asked.partition, replicas))))
            raise ScenarioError(
                f"compression: hpz_partition_size = {asked.partition} does not divide dp = {replicas}; try {good}"
            )
        return replace(asked, axis=SHARD, ranks=replicas)

    def compressed(self, reduction: Reduction) -> Reduction:
        """*reduction*, within the compression if there is one."""
        return self.compression.wrap(reduction) if self.compression else reduction


def is_transformer(model: Model) -> "TypeIs[Transformer]":
    """Return whether *model* is a `Transformer`, without loading that class for a model of another kind."""
    return model.of_shape
