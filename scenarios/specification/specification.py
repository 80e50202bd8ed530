"""The whole of a scenario file as it is written: sections, defaults, constraints between them, and the JSON schema.

Constraints that need the cluster itself, such as the number of its GPUs, are checked in `scenarios.build.derived`.
The descriptions of keys in the schema are read from the source, when a schema is asked for.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from copy import deepcopy
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, Discriminator, Field, Tag, field_validator, model_validator

from clustersim.scenarios.specification.network import NetworkSection
from clustersim.scenarios.specification.parallelism import ParallelismSection
from clustersim.scenarios.specification.plan import PlanSection
from clustersim.scenarios.specification.sections import (
    CollectiveBenchmark,
    Expectation,
    InputPipeline,
    Simulation,
    TraceWorkload,
)
from clustersim.scenarios.specification.training import Training, indivisible
from clustersim.simulator.reading.plain_text import name_fault, text_fault
from clustersim.simulator.reading.quantities import Count, Index, Section, Time, Version, keys_of
from clustersim.simulator.reading.validation import Fault, deferred, near
from clustersim.topologies.cluster_section import ClusterSpecification
from clustersim.topologies.fabrics._network import Routing
from clustersim.workloads.architectures.model_keys import ACTIVATIONS, ALIASES
from clustersim.workloads.architectures.specification import ModelSpecification
from clustersim.workloads.default_software_stack import AUTO
from clustersim.workloads.software_stack import SoftwareKeys, known_stack

if TYPE_CHECKING:
    from clustersim.scenarios.specification.campaign import Campaign
    from clustersim.scenarios.specification.cost import Cost
    from clustersim.scenarios.specification.queue import Queue
    from clustersim.scenarios.specification.variants import Table
else:
    HERE = __name__.rpartition(".")[0]
    Campaign = deferred(f"{HERE}.campaign", "Campaign")
    Cost = deferred(f"{HERE}.cost", "Cost")
    Queue = deferred(f"{HERE}.queue", "Queue")
    Table = deferred(f"{HERE}.variants", "Table")

RESULT = (
    "step_time_s",
    "step_time_interval_s",
    "step_time_percentiles_s",
    "ranks_to_blame",
    "breakdown_s",
    "bubble_fraction",
    "initial_broadcast_s",
    "samples_per_s",
    "tokens_per_s",
    "model_tflops_per_gpu",
    "hardware_tflops_per_gpu",
    "mfu",
    "mfu_6nd",
    "hfu",
    "layer_s",
    "memory",
    "traffic_bytes",
    "link_traffic_bytes",
    "link_utilisation",
    "cables",
    "training",
    "input",
    "outside_calibration",
    "idle_gpus",
    "collective",
    "variants",
    "jobs",
    "queue",
    "trace",
)
"""The keys of a result's summary, with which keys of expectations begin."""


class NetworkHolder(Section):
    """The sections of a scenario on which the paths through its cluster depend."""

    network: NetworkSection = Field(default_factory=NetworkSection)
    """How communication is simulated: fidelity, library and algorithms."""
    simulation: Simulation = Field(default_factory=Simulation)
    """How the scenario is simulated: engine, folding, random variation, stragglers."""

    @property
    def routing(self) -> Routing:
        """How the switches of the cluster choose among equal-cost paths, and which GPUs forward."""
        return _routing(self.network, self.simulation)


def _routing(network: NetworkSection, simulation: Simulation) -> Routing:
    seed = simulation.seed if network.seed is None else network.seed
    return Routing(network.routing, seed, network.queue_pairs, network.pxn, network.relay_gpus)


NodeList = Annotated[list[Index], Field(min_length=1)]


class ClusterJob(Section):
    """One of several jobs on a cluster: what it trains or measures, as a scenario has it, and its nodes."""

    nodes: Annotated[
        Annotated[Count, Tag("count")] | Annotated[NodeList, Tag("list")],
        Discriminator(lambda value: "list" if isinstance(value, list) else "count"),
    ]
    """How many nodes it has, or which: a list of their numbers from 0. Required."""
    placement: Literal["packed", "scattered", "by_leaf"] = "packed"
    """Which nodes, if nodes is a count. packed: the first free ones; scattered: one below each leaf in turn; by_leaf:
    as few leaves as possible."""
    start: Time = 0.0
    """When it begins its first step."""
    model: dict[str, Any] | None = None
    """As the model of a scenario. Required unless collective stands."""
    training: dict[str, Any] | None = None
    """As the training of a scenario. Required unless collective stands."""
    parallelism: dict[str, Any] | None = None
    """As the parallelism of a scenario; its placement orders the ranks on the nodes of the job."""
    collective: dict[str, Any] | None = None
    """As the collective of a scenario, in place of model, training and parallelism."""
    software: str | dict[str, Any] | None = None
    """As the software of a scenario."""


OF_ONE_JOB = (
    "model", "training", "parallelism", "collective", "workload", "software", "input", "campaign", "cost", "plan",
)  # fmt: skip
"""Sections of a scenario that do not stand beside jobs."""


class Specification(Section):
    """A scenario: a cluster, and either a model with its training or one collective to measure on it."""

    version: Version
    """Version of this format: 1. Required."""
    name: str = ""
    """Name of the scenario in reports, and of its folder below runs/; by default the name of the file."""
    description: str = ""
    """What the scenario is, in a sentence."""
    cluster: ClusterSpecification
    """Where it runs: a preset with changes, nodes and a fabric, ports of a crossbar, a tree of switches, or a graph."""
    model: ModelSpecification | None = None
    """What is trained: a transformer, a convolutional model, measured layers, or given durations. Required unless
    collective stands."""
    training: Training | None = None
    """Batch, precision, optimizer and recomputation. Required unless collective stands."""
    parallelism: ParallelismSection = Field(default_factory=ParallelismSection)
    """How the model is distributed over the ranks."""
    collective: CollectiveBenchmark | None = None
    """One collective to measure, in place of model, training and parallelism."""
    workload: TraceWorkload | None = None
    """Traces of a real run that are replayed, in place of model and training."""
    jobs: dict[str, ClusterJob] = Field(default_factory=dict)
    """Several jobs that share the cluster, by name, in place of model, training and parallelism. With a queue, the
    kinds of jobs that arrive."""
    queue: Queue | None = None
    """Jobs that arrive, wait for nodes and run, in place of model, training and parallelism."""
    network: NetworkSection = Field(default_factory=NetworkSection)
    """How communication is simulated: fidelity, library and algorithms."""
    software: Annotated[
        Annotated[str, Tag("name")] | Annotated[SoftwareKeys, Tag("keys")],
        Discriminator(lambda value: "keys" if isinstance(value, dict | BaseModel) else "name"),
    ] = AUTO
    """The software stack, a name of clustersim list software or an import path: fused kernels, launch cost, host time,
    what overlaps; auto: by parallelism, model and GPU (workloads.default_software_stack); torch, torch_compile, jax:
    that of the
    framework. Or a preset with keys that override it: {preset: megatron_core, graphs: layers}."""
    simulation: Simulation = Field(default_factory=Simulation)
    """How the scenario is simulated: engine, folding, random variation, stragglers."""
    cost: Cost | None = None
    """Prices, power and carbon, for the cost of a training run."""
    plan: PlanSection = Field(default_factory=PlanSection)
    """What `clustersim plan` searches: keys that may vary, method, objective."""
    input: InputPipeline | None = None
    """How samples are read and prepared; by default they are there at once."""
    campaign: Campaign | None = None
    """The whole training run with checkpoints, failures and spare nodes, for clustersim campaign."""
    expect: dict[str, Expectation] = Field(default_factory=dict)
    """Expected values by dotted key of the result, which run --check compares."""
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Several runs in one file: changes by dotted key, by the name of the variant."""
    table: Table | None = None
    """Variants from the rows of a CSV file."""

    @property
    def routing(self) -> Routing:
        """How the switches of the cluster choose among equal-cost paths, and which GPUs forward."""
        return _routing(self.network, self.simulation)

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if name and (fault := name_fault(name)):
            raise ValueError(fault)
        return name

    @field_validator("description")
    @classmethod
    def _description(cls, text: str) -> str:
        if fault := text_fault(text):
            raise ValueError(fault)
        return text

    @field_validator("software")
    @classmethod
    def _software(cls, given: str | SoftwareKeys) -> str | SoftwareKeys:
        return known_stack(given) if isinstance(given, str) else given

    @field_validator("expect")
    @classmethod
    def _expect(cls, expectations: dict[str, Expectation]) -> dict[str, Expectation]:
        for key in expectations:
            if key.partition(".")[0] not in RESULT:
                raise Fault(key, f"is no key of a result; there are {', '.join(RESULT)}", near(key, RESULT))
        return expectations

    @model_validator(mode="after")
    def _one_purpose(self) -> Self:
        if "jobs" in self.model_fields_set or self.queue is not None:
            self._check_jobs()
            return self
        if self.workload is not None:
            self._check_workload()
            return self
        if self.collective is not None:
            for key in ("model", "training", "parallelism"):
                if key in self.model_fields_set:
                    raise Fault(key, "stands beside collective, which takes the place of model, training, parallelism")
            for key in ("campaign", "input"):
                if getattr(self, key) is not None:
                    raise Fault(key, "stands beside collective, which trains nothing")
            if self.simulation.repeats > 1:
                raise Fault(
                    ("simulation", "repeats"), "must be 1 beside collective, which computes nothing that varies"
                )
            return self
        for key in ("model", "training"):
            if getattr(self, key) is None:
                raise Fault(key, "is required (or collective in place of model and training)")
        return self

    def _check_jobs(self) -> None:
        """Raise `Fault` at a key that does not stand beside jobs or a queue."""
        beside = "jobs" if self.queue is None else "queue"
        for key in OF_ONE_JOB:
            if key in self.model_fields_set:
                raise Fault(key, f"stands beside {beside}; give it to a job of jobs, or leave it out")
        for key in ("jitter", "spread", "stragglers", "variation"):
            if getattr(self.simulation, key):
                raise Fault(("simulation", key), f"does not stand beside {beside}, whose steps do not vary")
        if self.network.fidelity == "alpha_beta":
            raise Fault(("network", "fidelity"), "jobs share links, which alpha_beta does not; take flow or chunk")
        if not self.jobs and self.queue is None:
            raise Fault("jobs", "has no job; give at least one")
        for name in self.jobs:
            if fault := name_fault(name) or ("has a dot, which parts keys" if "." in name else ""):
                raise Fault(("jobs", name), fault)
        if self.queue is not None:
            self._check_queue(self.queue)

    def _check_queue(self, queue: Queue) -> None:
        """Raise `Fault` at a key of a job that the queue decides, and at a job that there is not."""
        from clustersim.scenarios.specification.queue import PoissonArrivals

        for name, job in self.jobs.items():
            for key in ("start", "placement"):
                if key in job.model_fields_set:
                    raise Fault(("jobs", name, key), "stands beside queue, which decides when and where jobs start")
            if isinstance(job.nodes, list):
                raise Fault(("jobs", name, "nodes"), "must be a count beside queue, which decides which nodes it gets")
        if isinstance(queue.arrivals, PoissonArrivals):
            for place, kind in enumerate(queue.arrivals.mix):
                if kind.job and kind.job not in self.jobs:
                    path = ("queue", "arrivals", "mix", place, "job")
                    known = f"there are {', '.join(self.jobs)}" if self.jobs else "jobs has none"
                    raise Fault(path, f'there is no job "{kind.job}"; {known}', near(kind.job, self.jobs))

    def _check_workload(self) -> None:
        """Raise `Fault` at a key that does not stand beside workload."""
        for key in ("model", "training", "collective", "software", "input", "campaign", "cost", "plan"):
            if key in self.model_fields_set:
                raise Fault(key, "stands beside workload, whose traces take the place of model and training")
        for key in self.parallelism.model_fields_set - {"dp", "placement"}:
            raise Fault(("parallelism", key), "is that of the trace; beside workload only dp and placement are given")
        if self.simulation.repeats > 1:
            raise Fault(("simulation", "repeats"), "must be 1 beside workload, whose durations are measured")
        if isinstance(self.parallelism.dp, list):
            raise Fault(("parallelism", "dp"), "must be one number of replicas beside workload")

    @model_validator(mode="after")
    def _batch(self) -> Self:
        training, degree = self.training, self.parallelism.dp
        if training is not None and isinstance(degree, int):
            micro = training.micro_batch_size or 1
            if training.global_batch_size % (micro * degree):
                name = f"micro_batch_size {micro} x dp {degree} = {micro * degree}" if micro > 1 else f"dp {degree}"
                message = indivisible(training.global_batch_size, micro * degree, name)
                raise Fault(("training", "global_batch_size"), message)
        if training is not None and not training.master_weights and self.parallelism.data.exchanges_weights:
            why = f"must be true: {self.parallelism.data.method} exchanges fp32 weights"
            raise Fault(("training", "master_weights"), why)
        return self


JsonSchema = dict[str, Any]


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of `Specification`; keys that presets may give are required as they are there."""
    return deepcopy(_json_schema())


@cache
def _json_schema() -> dict[str, Any]:
    return with_descriptions(Specification.model_json_schema(), Specification)


def with_aliases(schema: dict[str, Any]) -> dict[str, Any]:
    """Return *schema* with the keys and activations of Hugging Face in the section of transformers."""
    section = schema["$defs"]["TransformerSpecification"]
    activation = section["properties"]["activation"]
    named = {**activation, "enum": [*activation["enum"], *ACTIVATIONS]}
    properties = {**section["properties"], "activation": named}
    added = {
        alias: {**properties[key], "description": f"Hugging Face's name of {key}."} for alias, key in ALIASES.items()
    }
    changed = {**section, "properties": {**properties, **added}}
    return {**schema, "$defs": {**schema["$defs"], "TransformerSpecification": changed}}


def with_descriptions(schema: JsonSchema, model: type[Section]) -> JsonSchema:
    """Return *schema*, the JSON schema of *model*, with a description of every property that its class documents."""
    classes = {cls.__name__: cls for cls in _subclasses(Section)}
    sections = {name: _described(one, classes.get(name)) for name, one in schema.get("$defs", {}).items()}
    return _described({**schema, **({"$defs": sections} if sections else {})}, model)


def _subclasses(cls: type[Section]) -> Iterator[type[Section]]:
    for one in cls.__subclasses__():
        yield one
        yield from _subclasses(one)


def _described(section: JsonSchema, cls: type[Section] | None) -> JsonSchema:
    """Return *section* with the descriptions of its properties; a default and the form of a quantity are added."""
    if cls is None or "properties" not in section:
        return section
    own = field_docstrings(cls)
    # some keys are words of Python, for example from
    texts = own | {info.alias: own[name] for name, info in cls.model_fields.items() if info.alias and name in own}
    properties = {key: _property(value, texts.get(key, "")) for key, value in section["properties"].items()}
    return {**section, "properties": properties}


def _property(value: JsonSchema, text: str) -> JsonSchema:
    if not text:
        return value
    default = value.get("default")
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    parts = [text.rstrip("."), value.get("description", "")]
    if isinstance(default, str | int | float) and default != "":
        parts.append(f"default: {shown}")
    return {**value, "description": "; ".join(part for part in parts if part)}


@lru_cache(maxsize=256)
def field_docstrings(cls: type[Section]) -> dict[str, str]:
    """Return the docstrings below the fields of *cls* and of its bases, each in one line, by name of the field."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, Section) and base is not Section:
            found |= _of_dataclass(base.__dict__.get("dataclass")) | _own(base)
    return found


def _of_dataclass(cls: type | None) -> dict[str, str]:
    """Return the docstrings below the fields of the dataclass *cls*, by key."""
    texts = _own(cls) if cls is not None else {}
    return {key: texts[name] for key, name in keys_of(cls).items() if name in texts} if cls is not None else {}


def _own(cls: type) -> dict[str, str]:
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):  # a class that was made by code
        return {}
    (made,) = ast.parse(textwrap.dedent(source)).body
    body = made.body if isinstance(made, ast.ClassDef) else []
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
