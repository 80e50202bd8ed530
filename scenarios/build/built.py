"""A built scenario: the cluster and the schedule of a validated scenario file. Results refer to it."""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from clustersim.scenarios.build.derived import Derived, derive
from clustersim.scenarios.build.network import check_network, conditions
from clustersim.scenarios.build.offload import check_offload
from clustersim.scenarios.build.schedule import collective_schedule, model_share, training_schedule
from clustersim.scenarios.specification import loading, variants
from clustersim.scenarios.specification.specification import NetworkHolder, Specification
from clustersim.scenarios.specification.training import PrecisionByOperator
from clustersim.simulator.hardware.accelerator import Accelerator, Software
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import distinct
from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.document import Document, replaced
from clustersim.simulator.reading.errors import ClusterError, ScenarioError, SimulatorError
from clustersim.simulator.reading.plain_text import name_fault
from clustersim.simulator.reading.validation import Fault, validated
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.topologies.catalogue import having_precision
from clustersim.topologies.cluster_section import ClusterHolder, ClusterSection
from clustersim.topologies.wiring.network import Routing
from clustersim.workloads.architectures.model_keys import is_config, with_plain_keys
from clustersim.workloads.default_software_stack import (
    AUTO,
    FRAMEWORKS,
    StackChoice,
    default_stack,
    instead_of,
    own_stack,
    version_of,
)
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.saved_activations import EVERYTHING
from clustersim.workloads.parallelism._parallelism import is_transformer
from clustersim.workloads.software_stack import specification as stack_specification

if TYPE_CHECKING:
    from clustersim.scenarios.build.grid_choice import GridChoice
    from clustersim.workloads.operators.operator_names import Rule

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
    of the cluster. *grid_choice*: how ``tp: auto`` was replaced in them.
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
            cls._with_choices(whole, name, source) if not runs else cls(specification, whole, name, source, checked)
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
    def _with_choices(cls, document: Document, name: str, source: Document, part: Cluster | None = None) -> Self:
        """The scenario of *document*, with what its cluster decides: the library of tori, the grid of ``tp: auto``.

        *part*: the nodes of the cluster that it has, if it is one of several jobs.
        """
        specification = validated(document, Specification)
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
        jobs = cls._jobs(specification, document, cluster) if specification.jobs else {}
        made = cls(specification, document, name, source, jobs=jobs, grid_choice=choice)
        made.__dict__["_cluster"] = cluster
        return made

    @classmethod
    def _jobs(cls, specification: Specification, document: Document, cluster: Cluster) -> dict[str, Self]:
        from clustersim.scenarios.build.node_placement import nodes_of_jobs

        nodes = nodes_of_jobs(specification.jobs, cluster, document)
        found = {}
        for job, own in nodes.items():
            alone = loading.expanded(loading.of_job(document, job))
            found[job] = cls._with_choices(alone, job, alone, cluster.on_nodes(frozenset(own)))
        return found

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
        if self.jobs:
            for job in self.jobs.values():
                job.check()
            return
        _ = self.derived  # checks degrees, batches and placement
        check_offload(self.specification, self._cluster, self.derived, self.document)
        conditions(self.specification, self._cluster, self.document)
        check_network(self.specification, self._cluster, self.document)
        precisions = {
            kernel.precision
            for layer in (self.model.layers if self.model else ())
            for kernel in layer.forward(1)
            if kernel.flops and kernel.seconds is None
        } | ({self.model.precision} if self.model else set())
        for accelerator in self._cluster.count(self.derived.devices[: self.derived.ranks]):
            for precision in sorted(precisions):
                self._check_precision(accelerator, precision, "precision")

    @property
    def runs(self) -> tuple[Self, ...]:
        """What is simulated: the variants, or the scenario itself if it has none."""
        return tuple(self.variants.values()) or (self,)

    def check_trains(self, what: str) -> None:
        """Raise `ScenarioError` if the scenario measures a collective and therefore has no *what*."""
        if self.model is None:
            raise ScenarioError(f"{self.name} measures a collective; it has no {what}")

    def _check_products(self, schedule: Schedule) -> None:
        """Check that each device has the precisions of the products that *schedule* runs on it."""
        cluster, devices = self._cluster, self.derived.devices
        needed: dict[tuple[Accelerator, str], str] = {}
        accelerators, places = cluster.accelerators(devices)
        for number, program in enumerate(schedule.programs):
            ranks = np.array(schedule.ranks_of(number), np.int64)
            owns = hosts = [accelerators[place] for place in distinct(places[ranks]).tolist()]
            if program.on == "gpu" and program.computes_on_host:
                hosts = list({cluster.accelerator(cluster.host_of(devices[rank])) for rank in ranks.tolist()})
            for op in program.computations():
                updates = op.on == "host" or (op.action is not None and op.action.phase == "O")
                key = "optimizer" if updates else "precision"
                for kernel in op.kernels:
                    if kernel.flops and kernel.seconds is None:
                        for one in hosts if op.on == "host" else owns:
                            needed.setdefault((one, kernel.precision), key)
        for (accelerator, precision), key in needed.items():
            self._check_precision(accelerator, precision, key)

    def _check_precision(self, accelerator: Accelerator, precision: str, key: str) -> None:
        """Raise `ScenarioError` at the *key* of training if *accelerator* has no products in *precision*."""
        try:
            accelerator.peak(precision)
        except ClusterError as error:
            what = f"multiplies matrices in {precision}, but " if key == "optimizer" else ""
            raise self.document.error(("training", key), f"{what}{error}{_others(precision)}") from None

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

    def check_one_job(self) -> None:
        """Raise `ScenarioError` if it has several jobs."""
        if self.jobs:
            raise self.document.error(
                ("jobs",), "clustersim run, check and plot take several jobs; here give one", at_key=True
            )

    @cached_property
    def derived(self) -> Derived:
        """Degrees, batches and devices that follow from scenario and cluster."""
        if self.jobs:
            raise self.document.error(
                ("jobs",), "clustersim run, check and plot take several jobs; here give one", at_key=True
            )
        return derive(self.specification, self._cluster, self.document)

    @cached_property
    def software(self) -> Software:
        """The software stack that issues the kernels."""
        try:
            return stack_specification(self.stack).changed(self.stack_keys).build()
        except Fault as fault:
            raise self.document.error(("software", *fault.path), fault.message, fault.hint) from None

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
        """The model; None if the scenario measures a collective."""
        self.check_one_job()
        specification = self.specification
        if specification.model is None or specification.training is None:
            return None
        products, gpu = specification.training.product_precision, self._cluster.accelerator(self.derived.devices[0])
        if products == "tf32" and gpu.lacks_tf32(products):
            raise self.document.error(("training", "precision"), f"{gpu.name} has no tf32; take fp32")
        try:
            model = specification.model.build(products, self.software.fused)
            return self._saving(self._in_low_precision(model.with_software(self.software)))
        except ScenarioError:
            raise
        except SimulatorError as error:
            raise self.document.error(("model",), str(error)) from None

    def _saving(self, model: Model) -> Model:
        """Return *model* with the scenario's rule of what activation functions keep."""
        training = self.specification.training
        if training is None:
            return model
        rule = training.recompute_options.rule
        if rule is not None:
            model = self._recomputing(model, rule)
        if training.saved == EVERYTHING:
            return model
        path = "training", "activation_function" if training.activation_function else "saved_precision"
        if not is_transformer(model):
            raise self.document.error(path, f"belongs to a transformer, and {model.name} is not one")
        if training.saved.experts_fp8 and model.shape.experts is None:
            raise self.document.error(("training", "saved_precision"), f"belongs to experts, and {model.name} has none")
        try:
            return model.saving(training.saved)
        except ScenarioError as error:
            raise self.document.error((*path, "bits"), str(error)) from None

    def _recomputing(self, model: Model, rule: Rule) -> Model:
        """Return *model* with *rule* for what recomputation by operator runs again."""
        path = "training", "recompute"
        if not is_transformer(model):
            raise self.document.error(path, f"operators are those of a transformer, and {model.name} is not one")
        missing = {"mla_up": model.shape.latent is None, "experts": model.shape.experts is None}
        for name in sorted(rule.names):
            if missing.get(name):
                raise self.document.error((*path, "operators"), f"{model.name} has no {name}")
        try:
            return model.recomputing(rule)
        except ScenarioError as error:
            raise self.document.error((*path, "every"), str(error)) from None

    def _in_low_precision(self, model: Model) -> Model:
        """Return *model* with products in 8 or 4 bits, if the scenario asks for them."""
        training = self.specification.training
        if training is None or not isinstance(training.precision, PrecisionByOperator):
            return model
        if not is_transformer(model):
            word = training.base_precision
            why = f"belongs to a transformer, and {model.name} is not one; give one word, such as {word}"
            raise self.document.error(("training", "precision", "matmul"), why)
        gpu = self._cluster.accelerator(self.derived.devices[0])
        low = training.precision.low(
            transposes=gpu.transposes,
            keeps_casts=self.software.keeps_casts,
            micro_batches=self.derived.micro_batches,
        )
        try:
            return model.in_low_precision(low)
        except ScenarioError as error:
            raise self.document.error(("training", "precision", "matmul"), str(error)) from None

    @cached_property
    def _schedule(self) -> Schedule:
        self.check_one_job()
        if self.specification.collective is not None:
            return collective_schedule(self.specification.collective, self.derived.ranks)
        return self._training_schedule(least=False)

    @cached_property
    def _least_schedule(self) -> Schedule:
        return self._training_schedule(least=True)

    def _training_schedule(self, *, least: bool) -> Schedule:
        assert self.model is not None
        schedule = training_schedule(
            self.specification, self.model, self.software, self.derived, self.document, self._cluster, least=least
        )
        self._check_products(schedule)
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


def _others(precision: str) -> str:
    """Return which GPUs of the catalogue have *precision*, if it is one of products in few bits."""
    having = having_precision(precision) if precision not in BYTES else []
    return f"; these have {precision}: {', '.join(having)}" if having else ""


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
