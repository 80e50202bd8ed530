"""A built scenario: the cluster and the schedule of a validated scenario file. Results refer to it."""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from clustersim.scenarios.build.derived import Derived, derive
from clustersim.scenarios.build.network import check_network, conditions
from clustersim.scenarios.build.offload import check_offload
from clustersim.scenarios.build.schedule import collective_schedule, model_share, training_schedule
from clustersim.scenarios.build.trained_model import check_precisions, check_products, trained_model
from clustersim.scenarios.specification import loading, variants
from clustersim.scenarios.specification.specification import ClusterJob, NetworkHolder, Specification
from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.document import Document, replaced
from clustersim.simulator.reading.errors import ClusterError, ScenarioError
from clustersim.simulator.reading.plain_text import name_fault
from clustersim.simulator.reading.validation import Fault, validated
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.topologies.cluster_section import ClusterHolder, ClusterSection
from clustersim.topologies.fabrics._network import Routing
from clustersim.workloads.architectures.model_keys import is_config, with_plain_keys
from clustersim.workloads.default_software_stack import (
    AUTO,
    FRAMEWORKS,
    LIKE_DDP,
    StackChoice,
    default_stack,
    instead_of,
    own_stack,
    version_of,
)
from clustersim.workloads.operators.model import Model
from clustersim.workloads.software_stack import specification as stack_specification
from clustersim.workloads.software_stack import with_adapters_as_held, without_master_weights

if TYPE_CHECKING:
    from clustersim.scenarios.build.grid_choice import GridChoice
    from clustersim.scenarios.build.node_placement import Node
    from clustersim.scenarios.build.submissions import JobKind, Submission
    from clustersim.scenarios.real_traces.replay_schedule import TraceReplay

log = logging.getLogger(__name__)

ON_TORI = "ici"
"""The communication library of a scenario on TPUs or Trainium that names none: there is no NCCL for them, and their
chips make a torus. Neuron's own choices are not published; XLA's on TPUs stand for them."""

MANY_VARIANTS, EACH = 2_000, 4e-3
"""Variants from which on a file says how long it takes to check them; seconds of each, measured with `hello`."""


LONGEST_DESCRIPTION = 120
"""Characters of the description in a scenario's ``repr``."""


@dataclass(frozen=True, repr=False)
class BuiltScenario:
    """The validated *specification*, its *document* with presets, and its *source* document without presets.

    Cluster, schedule and model are built on first use. *jobs*: the scenario of each of several jobs, alone on its nodes
    of the cluster; of a queue, that of each kind of job on nodes of the empty cluster. *grid_choice*: how ``tp: auto``
    was replaced in them.
    """

    specification: Specification
    document: Document
    name: str
    source: Document
    variants: Mapping[str, Self] = field(default_factory=dict)
    jobs: Mapping[str, Self] = field(default_factory=dict)
    grid_choice: GridChoice | None = None

    def __repr__(self) -> str:
        described = " ".join(self.specification.description.split())
        return f"<{type(self).__name__} {self.name}{': ' if described else ''}{described[:LONGEST_DESCRIPTION]}>"

    @classmethod
    def load(
        cls,
        scenario: str | os.PathLike[str],
        overrides: Mapping[str, Any] | None = None,
        options: list[str] | None = None,
        refused: dict[str, str] | None = None,
    ) -> Self:
        """Return the scenario at a path, or the shipped scenario of that name.

        *overrides* sets values by dotted key; *options* does the same as texts ``key.path=value``. Raises
        `ScenarioError` with the place of every fault; with *refused*, faulty variants are left out and their faults
        added to it by name, as long as one is sound.
        """
        path = loading.located(scenario)
        return cls._made(_read(path, overrides, options), path.parent, path.stem, refused)

    @classmethod
    def model_validate(cls, data: Mapping[str, Any], options: list[str] | None = None) -> Self:
        """Return the scenario of *data*, the content of a YAML file; paths are relative to the working directory.

        *options* sets values as texts ``key.path=value``.
        """
        document = loading.overridden(Document(dict(data)), loading.options(options or []))
        return cls._made(document, pathlib.Path(), "scenario")

    @classmethod
    def of_document(cls, document: Document, folder: pathlib.Path, name: str, options: list[str] | None = None) -> Self:
        """Return the scenario that *document* holds, with the positions of its values; files lie below *folder*.

        *options* sets values as texts ``key.path=value``. Raises `ScenarioError` with the place of every fault.
        """
        return cls._made(loading.overridden(document, loading.options(options or [])), folder, name)

    @classmethod
    def _made(cls, document: Document, folder: pathlib.Path, name: str, refused: dict[str, str] | None = None) -> Self:
        source = loading.found_from(with_plain_keys(document, ("model",)), folder)
        whole = loading.expanded(variants.with_first_row(source))
        specification = validated(whole, Specification)
        name = specification.name or name
        if fault := name_fault(name):
            raise whole.error(("name",), f"{fault}; a file's own name is that of a scenario without one")
        checked = {}
        runs = variants.documents(source)
        if len(runs) > MANY_VARIANTS:
            log.warning("%s variants are checked one by one, about %.0f s", f"{len(runs):,}", len(runs) * EACH)
        for variant, changed in runs.items():
            try:
                checked[variant] = cls._with_choices(loading.expanded(changed), variant, changed)
            except ScenarioError as error:
                if refused is None:
                    raise
                refused[variant] = str(error)
        scenario = (
            cls(specification, whole, name, source, checked)
            if runs
            else cls._with_choices(whole, name, source, specification=specification)
        )
        for variant, one in list(checked.items()) if runs else [(name, scenario)]:
            try:
                one.check()
            except ScenarioError as error:
                if refused is None or len(checked) <= 1:
                    raise
                refused[variant] = str(error)
                del checked[variant]
        return scenario

    @classmethod
    def _with_choices(
        cls,
        document: Document,
        name: str,
        source: Document,
        part: Cluster | None = None,
        specification: Specification | None = None,
    ) -> Self:
        """The scenario of *document*, with what its cluster decides: the library of tori, the grid of ``tp: auto``.

        *part*: the nodes of the cluster that it has, if it is one of several jobs. *specification*: that of the
        document, if it is known.
        """
        specification = specification or validated(document, Specification)
        cluster = part or _built(specification.cluster, document, specification.routing)
        choice = None
        if "transport" not in specification.network.model_fields_set and _on_tori(cluster):
            document = replaced(document, ("network", "transport"), ON_TORI, document.position(("network",)))
            specification = validated(document, Specification)
        if specification.training is not None and specification.parallelism.chosen_by_model:
            from clustersim.scenarios.build.grid_choice import chosen_grid

            choice = chosen_grid(specification, cluster, document)
            path, grid = ("parallelism", "tp"), {axis: getattr(choice.grid, axis) for axis in ("x", "y", "z")}
            document = replaced(document, path, grid, document.position(path))
            specification = validated(document, Specification)
        made = cls(specification, document, name, source, grid_choice=choice)
        made.__dict__["_cluster"] = cluster
        return made._with_jobs(made._jobs_on_nodes()) if specification.jobs else made

    def _with_jobs(self, jobs: Mapping[str, Self], specification: Specification | None = None) -> Self:
        """The scenario with *jobs*, and with *specification* if given, on the same cluster."""
        other = replace(self, jobs=jobs, specification=specification or self.specification)
        other.__dict__["_cluster"] = self._cluster
        return other

    def _jobs_on_nodes(self) -> dict[str, Self]:
        """The scenario of each job on its nodes; with a queue, of each kind of job on nodes of the empty cluster."""
        from clustersim.scenarios.build.node_placement import nodes_alone, nodes_of_jobs

        jobs, cluster = self.specification.jobs, self._cluster
        if self.specification.queue is None:
            return {job: self._job(job, job, own) for job, own in nodes_of_jobs(jobs, cluster, self.document).items()}
        kinds = {name: (name, job.nodes) for name, job in jobs.items() if isinstance(job.nodes, int)}
        kinds |= {label: (kind.job, kind.nodes) for label, kind in self.submissions[1].items()}
        return {label: self._job(job, label, nodes_alone(count, cluster)) for label, (job, count) in kinds.items()}

    def _job(self, job: str, name: str, nodes: Collection[Node]) -> Self:
        alone = loading.expanded(loading.of_job(self.document, job))
        return self._with_choices(alone, name, alone, self._cluster.on_nodes(frozenset(nodes)))

    def beside(self, jobs: Mapping[str, tuple[str, Collection[Node]]]) -> Self:
        """Return the scenario of *jobs* side by side, by name: a kind of job of the queue, and its nodes."""
        on = {name: self._cluster.on_nodes(frozenset(nodes)) for name, (_, nodes) in jobs.items()}
        kinds = {name: self.jobs[kind] for name, (kind, _) in jobs.items()}
        made = {name: self._with_choices(one.document, name, one.source, on[name]) for name, one in kinds.items()}
        sections = {name: ClusterJob(nodes=len(nodes)) for name, (_, nodes) in jobs.items()}
        return self._with_jobs(made, self.specification.model_copy(update={"jobs": sections, "queue": None}))

    @cached_property
    def submissions(self) -> tuple[Sequence[Submission], Mapping[str, JobKind]]:
        """The jobs that arrive in the queue, by time, and the kinds of jobs among them by their labels.

        Raises `ScenarioError` with the place of the fault.
        """
        from clustersim.scenarios.build.submissions import submissions

        assert self.specification.queue is not None
        return submissions(self.specification.queue, self.specification.jobs, self._cluster, self.document)

    def without_variants(self) -> Self:
        """Return the scenario that the variants change. Raises `ScenarioError` if it cannot run without their keys."""
        return replace(self._made(variants.plain(self.source), pathlib.Path(), self.name), name=self.name)

    def changed(self, values: Mapping[str, Any], shown: str) -> Self:
        """Return the scenario with *values* by dotted key; error messages about them name *shown*."""
        return self.overridden({key: (value, shown) for key, value in values.items()})

    def overridden(self, changes: Mapping[str, tuple[Any, str]], folder: pathlib.Path = pathlib.Path()) -> Self:
        """Return the scenario with *changes*, (value, text for messages) by dotted key; files lie below *folder*."""
        document = loading.overridden(self.source, changes)
        return replace(self._made(document, folder, self.name), name=self.name)

    def check_keys(self, changes: Mapping[str, tuple[Any, str]]) -> None:
        """Check that the sections of the scenario can be read with *changes*; nothing is built from them."""
        document = with_plain_keys(loading.overridden(self.source, changes), ("model",))
        validated(loading.expanded(loading.found_from(document, pathlib.Path())), Specification)

    def varied(self, specification: Specification) -> Self:
        """Return the scenario with the sections of *specification*, of which nothing is checked, on this cluster."""
        other = replace(self, specification=specification, grid_choice=None)
        other.__dict__["_cluster"] = self._cluster
        return other

    def with_software(self, software: Software) -> Self:
        """Return the scenario with *software* in place of the stack that it names."""
        other = replace(self)
        other.__dict__["software"] = software
        return other

    def check(self) -> None:
        """Check what depends on the cluster and the model. Raises `ScenarioError` with the place of the fault."""
        if self.specification.queue is not None:
            _ = self.submissions
        if self.several:
            for job in self.jobs.values():
                job.check()
            return
        _ = self.derived  # checks degrees, batches and placement
        check_offload(self.specification, self._cluster, self.derived, self.document)
        conditions(self.specification, self._cluster, self.document)
        check_network(self.specification, self._cluster, self.document)
        if self.model is not None:
            accelerators = self._cluster.count(self.derived.devices[: self.derived.ranks])
            check_precisions(self.model, accelerators, self.document)

    @property
    def runs(self) -> tuple[Self, ...]:
        """What is simulated: the variants, or the scenario itself if it has none."""
        return tuple(self.variants.values()) or (self,)

    def check_trains(self, what: str) -> None:
        """Raise `ScenarioError` if the scenario measures a collective or replays a trace, and has no *what*."""
        if self.model is None:
            raise ScenarioError(f"{self.name} {self.aim}; it has no {what}")

    @property
    def aim(self) -> str:
        """What a scenario without a model does, as a part of a sentence."""
        return "measures a collective" if self.specification.workload is None else "replays a trace"

    def cluster(self) -> Cluster:
        """Return the cluster on which it runs."""
        return self._cluster

    def schedule(self) -> Schedule:
        """Return the ops of every rank."""
        return self._schedule

    def checked_schedule(self) -> Schedule:
        """Return the ops of every rank for checks, without a simulation: planned activations take little memory."""
        training = self.specification.training
        planned = training is not None and training.plans_activations
        return self._least_schedule if planned else self._schedule

    @cached_property
    def _cluster(self) -> Cluster:
        return _built(self.specification.cluster, self.document, self.specification.routing)

    @property
    def several(self) -> bool:
        """True if it has several jobs, at the same time or in a queue."""
        return bool(self.jobs) or self.specification.queue is not None

    def check_one_job(self) -> None:
        """Raise `ScenarioError` if it has several jobs."""
        if self.several:
            if self.specification.queue is not None:
                told = "clustersim run, check, plot, compare and sweep take a queue; here give one job"
                raise self.document.error(("queue",), told, at_key=True)
            told = "clustersim run, check and plot take several jobs; here give one"
            raise self.document.error(("jobs",), told, at_key=True)

    @cached_property
    def derived(self) -> Derived:
        """Degrees, batches and devices that follow from scenario and cluster."""
        self.check_one_job()
        ranks = self.replay.replicas.world_size if self.replay is not None else 0
        return derive(self.specification, self._cluster, self.document, ranks)

    @cached_property
    def replay(self) -> TraceReplay | None:
        """The replayed trace; None if the scenario has none. Raises `ScenarioError` at the key to change."""
        if self.specification.workload is None:
            return None
        from clustersim.scenarios.real_traces.replay_schedule import replay_of

        return replay_of(self.specification, self._cluster, self.document)

    @cached_property
    def software(self) -> Software:
        """The software stack that issues the kernels; a trace has its launches itself."""
        if self.specification.workload is not None:
            return Software()
        try:
            stack = stack_specification(self.stack).changed(self.stack_keys).build()
        except Fault as fault:
            raise self.document.error(("software", *fault.path), fault.message, fault.hint) from None
        training = self.specification.training
        if training is not None and not training.master_weights:
            return without_master_weights(stack)
        return with_adapters_as_held(stack) if self._updates_adapters_as_held(stack) else stack

    def _updates_adapters_as_held(self, stack: Software) -> bool:
        """True if adapters in 16 bits on whole replicas are trained under torch's autocast by its own optimizer."""
        lora, training = getattr(self.specification.model, "lora", None), self.specification.training
        if lora is None or training is None or training.offload is not None or not stack.autocast:
            return False
        wide = stack.adapters == "fp32" or (stack.adapters == "fp32_beside_4_bits" and lora.quantised is not None)
        return not wide and self.specification.parallelism.data.method in LIKE_DDP

    @property
    def stack_keys(self) -> Mapping[str, Any]:
        """The values of the stack that the scenario changes."""
        given = self.specification.software
        return {} if isinstance(given, str) else given.keys

    @property
    def stack(self) -> str:
        """The name of that stack, as given or by default."""
        return self.stack_choice.stack

    @cached_property
    def stack_choice(self) -> StackChoice:
        """The software stack, why it was taken, and what else is taken; no reason if the scenario names it."""
        named, parallelism = self.specification.software, self.specification.parallelism
        given, year = (named, None) if isinstance(named, str) else (named.preset, named.version)
        gpu = self._cluster.accelerator(self.derived.devices[0])
        if given not in (AUTO, *FRAMEWORKS):
            return instead_of(given, gpu) or StackChoice(version_of(given, year), "")
        return default_stack(
            parallelism.data.method,
            {**self.derived.degrees, "ep": parallelism.ep},
            gpu,
            transformer=getattr(self.specification.model, "kind", "") == "transformer",
            stage=getattr(parallelism.data, "stage", 0),
            adapters=getattr(self.specification.model, "lora", None) is not None,
            framework=given,
            year=year,
        )

    @cached_property
    def model(self) -> Model | None:
        """The model; None if the scenario measures a collective or replays a trace."""
        self.check_one_job()
        if self.specification.model is None or self.specification.training is None:
            return None
        gpu = self._cluster.accelerator(self.derived.devices[0])
        return trained_model(self.specification, self.document, gpu, self.software, self.derived.micro_batches)

    @cached_property
    def _schedule(self) -> Schedule:
        self.check_one_job()
        if self.specification.collective is not None:
            return collective_schedule(self.specification.collective, self.derived.ranks)
        if self.replay is not None:
            return self.replay.schedule
        return self._training_schedule(least=False)

    @cached_property
    def _least_schedule(self) -> Schedule:
        return self._training_schedule(least=True)

    def _training_schedule(self, *, least: bool) -> Schedule:
        assert self.model is not None
        schedule = training_schedule(
            self.specification, self.model, self.software, self.derived, self.document, self._cluster, least=least
        )
        check_products(schedule, self._cluster, self.derived.devices, self.document)
        return schedule

    @property
    def broadcasts(self) -> bool:
        """True if the model is broadcast before the first step: several replicas hold all of it."""
        data = self.specification.parallelism.data
        return self.model is not None and data.broadcasts and self.derived.replicas > 1

    def initial(self) -> Schedule | None:
        """Return the broadcast of the model before the first step; None if replicas do not hold the whole model."""
        if self.model is None or not self.broadcasts:
            return None
        from clustersim.workloads.parallelism.ddp import initial_broadcast

        share = model_share(self.model, self.specification.parallelism.parts, self.document)
        return initial_broadcast(self._schedule, share)


def clusters(scenario: str | os.PathLike[str], options: list[str] | None = None) -> dict[str, Cluster]:
    """Return the cluster of *scenario*, or that of each of its variants, by name.

    The network section says which paths it has. Sections other than cluster, network and simulation are not looked at.

    Raises `ScenarioError` with the place of every fault.
    """
    path = loading.located(scenario)
    source = loading.found_from(_read(path, None, options), path.parent)
    runs = variants.documents(source) or {path.stem: source}
    made = {}
    for name, document in runs.items():
        whole = loading.expanded(document)
        cluster, network = (
            Document({key: value for key, value in whole.data.items() if key in keys}, whole.positions)
            for keys in (("cluster",), ("network", "simulation"))
        )
        section, routing = validated(cluster, ClusterHolder).cluster, validated(network, NetworkHolder).routing
        made[name] = _built(section, whole, routing)
    return made


def _on_tori(cluster: Cluster) -> bool:
    return bool(cluster.gpus) and own_stack(cluster.accelerator(cluster.gpus[0])) == "xla"


def _read(path: pathlib.Path, overrides: Mapping[str, Any] | None = None, options: list[str] | None = None) -> Document:
    found = read(path)
    if is_config(found):
        raise ScenarioError(
            f"{path} is no scenario; a model's config.json runs with --cluster: "
            f"clustersim run {path} --cluster dgx_h100 --nodes 4"
        )
    document = with_plain_keys(found, ("model",))
    changes = {key: (value, f"{key}={value}") for key, value in (overrides or {}).items()}
    return loading.overridden(document, {**changes, **loading.options(options or [])})


def _built(section: ClusterSection, document: Document, routing: Routing | None = None) -> Cluster:
    """Return the cluster of *section*. Raises `ScenarioError` at its place in *document*."""
    try:
        return section.build(routing=routing)
    except ClusterError as error:
        key, colon, message = str(error).partition(": ")
        if colon and key.startswith(("cluster.", "network.")):
            raise document.error(tuple(key.split(".")), message) from None
        at = ("cluster", "graph") if "graph" in document.data["cluster"] else ("cluster",)
        raise document.error(at, str(error), at_key=at == ("cluster",)) from None
