"""A built scenario is a cluster and what is to run on it, both made from a validated file; results hold it."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from scenarios.build.derived import Derived, derive
from scenarios.build.schedule import collective_schedule, model_share, training_schedule
from scenarios.specification import loading, variants
from scenarios.specification.specification import Specification
from simulator.accelerator import Software
from simulator.cluster import Cluster
from simulator.document import Document, validated
from simulator.errors import ClusterError, ScenarioError, SimulatorError
from simulator.schedule import Schedule
from workloads.model import Model
from workloads.parallelism.ddp import initial_broadcast
from workloads.stack import software


@dataclass(frozen=True)
class BuiltScenario:
    """*specification* as validated, the *document* that it came from, presets included, and its *source* without."""

    specification: Specification
    document: Document
    name: str
    source: Document
    variants: Mapping[str, Self] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        scenario: str | os.PathLike[str],
        overrides: Mapping[str, Any] | None = None,
        options: list[str] | None = None,
    ) -> Self:
        """The scenario at a path, or the shipped one of that name.

        *overrides* sets values by dotted key, *options* the same as text, ``key.path=value``. Raises `ScenarioError`
        with the place of every fault.
        """
        from simulator.document import read

        path = loading.located(scenario)
        document = read(path)
        changes = {key: (value, f"{key}={value}") for key, value in (overrides or {}).items()}
        document = loading.overridden(document, {**changes, **loading.options(options or [])})
        return cls._made(document, path.parent, path.stem)

    @classmethod
    def model_validate(cls, data: Mapping[str, Any]) -> Self:
        """The scenario that *data* says, as a YAML file would; files are found from the working directory."""
        return cls._made(Document(dict(data)), pathlib.Path(), "scenario")

    @classmethod
    def _made(cls, document: Document, folder: pathlib.Path, name: str) -> Self:
        source = loading.found_from(document, folder)
        whole = loading.expanded(variants.first_laid_in(source))
        specification = validated(whole, Specification)
        several = {}
        for variant, changed in variants.documents(source).items():
            its = loading.expanded(changed)
            several[variant] = cls(validated(its, Specification), its, variant, changed)
        scenario = cls(specification, whole, specification.name or name, source, several)
        for one in several.values() if several else (scenario,):
            one.check()
        return scenario

    def changed(self, values: Mapping[str, Any], shown: str) -> Self:
        """The same scenario with *values* by dotted key; *shown* is what a fault of them is told by."""
        document = loading.overridden(self.source, {key: (value, shown) for key, value in values.items()})
        return replace(self._made(document, pathlib.Path(), self.name), name=self.name)

    def check(self) -> None:
        """Hold what needs the cluster and the model against the scenario; raises `ScenarioError` with the place."""
        _ = self.derived
        precisions = {
            kernel.precision
            for layer in (self.model.layers if self.model else ())
            for kernel in layer.forward(1)
            if kernel.flops and kernel.seconds is None
        }
        for accelerator in {self._cluster.accelerator(gpu) for gpu in self.derived.devices}:
            for precision in sorted(precisions):
                try:
                    accelerator.peak(precision)
                except ClusterError as error:
                    raise self.document.error(("training", "precision"), str(error)) from None

    def cluster(self) -> Cluster:
        """Where it runs."""
        return self._cluster

    def schedule(self) -> Schedule:
        """What every rank does."""
        return self._schedule

    @cached_property
    def _cluster(self) -> Cluster:
        try:
            return self.specification.cluster.build()
        except ClusterError as error:
            key, colon, message = str(error).partition(": ")
            if colon and key.startswith("cluster."):
                raise self.document.error(tuple(key.split(".")), message) from None
            at = ("cluster", "graph") if "graph" in self.document.data["cluster"] else ("cluster",)
            raise self.document.error(at, str(error), at_key=at == ("cluster",)) from None

    @cached_property
    def derived(self) -> Derived:
        """Degrees, batches and places that follow from scenario and cluster."""
        return derive(self.specification, self._cluster, self.document)

    @cached_property
    def software(self) -> Software:
        """The software stack that issues the kernels."""
        return software(self.specification.software)

    @cached_property
    def model(self) -> Model | None:
        """What is trained; None where the scenario measures a collective."""
        specification = self.specification
        if specification.model is None or specification.training is None:
            return None
        try:
            model = specification.model.build(specification.training.precision, self.software.fused)
            return model.with_softmax(self.software.softmax_group)
        except ScenarioError:
            raise
        except SimulatorError as error:
            raise self.document.error(("model",), str(error)) from None

    @cached_property
    def _schedule(self) -> Schedule:
        if self.specification.collective is not None:
            return collective_schedule(self.specification.collective, self.derived.ranks)
        assert self.model is not None
        return training_schedule(self.specification, self.model, self.software, self.derived, self.document)

    def initial(self) -> Schedule | None:
        """The broadcast of the model that precedes the first step where replicas hold it; None where there is none."""
        parallelism, model = self.specification.parallelism, self.model
        if model is None or not parallelism.data.broadcasts or self.derived.replicas == 1:
            return None
        return initial_broadcast(self._schedule, model_share(model, parallelism.parts, self.document))
