"""Integrated model, batch and domain parallelism: a grid Pr x Pc, of which the Pr ranks here share every micro-batch.

Gholami et al. 2018 (arXiv:1712.04432). The Pc columns are the replicas, ``dp``. Each layer is divided over the Pr ranks
by domain, by model or by batch (`workloads.operators.domain`). The gradients of weights that all Pr ranks have
are reduced over all Pr x Pc ranks, those of a layer cut by model over the Pc replicas.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import BelongsTo, Count
from clustersim.simulator.schedule.mesh import Axis, Mesh
from clustersim.workloads.operators.lowering import Overlap
from clustersim.workloads.operators.model import Model, OperatorLayer
from clustersim.workloads.operators.operator import REPLICAS, Way
from clustersim.workloads.parallelism._parallelism import Parallelism

DOMAIN = "domain"
"""The axis of the Pr ranks."""

JOINT = f"{REPLICAS}.{DOMAIN}"
"""The axis of all Pr x Pc ranks."""

BY_KIND: Mapping[str, Way] = {"convolution": "domain", "linear": "model"}
"""The default: images are cut, as are the outputs of dense layers."""


class Domain(Parallelism):
    """Domain parallelism: ranks share every sample; images are cut, and dense layers by their outputs."""

    axis: ClassVar[str] = DOMAIN
    key: ClassVar[str] = "domain"

    domain: Count = 1
    """Ranks that share every micro-batch of a convolutional model (Pr of Gholami et al., whose Pc is dp)."""
    domain_layers: Annotated[dict[str, Way], BelongsTo("domain", to="domain parallelism, but domain is 1")] = Field(
        default_factory=dict
    )
    """How layers are divided, by name or by kind (convolution, linear): domain, model or batch. By default images are
    cut (domain) and dense layers by their outputs (model)."""

    def degrees(self, ranks: int) -> Mapping[str, int]:
        """As given; no axis for one rank."""
        return {DOMAIN: self.domain} if self.domain > 1 else {}

    @property
    def sample_shares(self) -> int:
        """All ranks if some layer is divided by batch."""
        return self.domain if "batch" in self.domain_layers.values() else 1

    def share(self, model: Model) -> Model:
        """The model of one rank."""
        if self.domain == 1:
            return model
        from clustersim.workloads.operators.domain import divided
        from clustersim.workloads.operators.sharded import Side

        layers = [layer for layer in model.layers if isinstance(layer, OperatorLayer)]
        if len(layers) < len(model.layers) or any(layer.kind not in BY_KIND for layer in layers):
            raise ScenarioError(
                f"domain = {self.domain}: domain parallelism needs a convolutional model, and {model.name} is not one; "
                "try 1"
            )
        known = {layer.name for layer in layers} | set(BY_KIND)
        for name in self.domain_layers:
            if name not in known:
                raise ScenarioError(
                    f"domain_layers: {model.name} has no layer {name}; its layers: {', '.join(sorted(known))}"
                )
        return replace(model, layers=divided(layers, self._ways(layers), Side(DOMAIN, self.domain), JOINT))

    def _ways(self, layers: list[OperatorLayer]) -> list[Way]:
        chosen = {**BY_KIND, **self.domain_layers}
        return [chosen.get(layer.name, chosen[layer.kind]) for layer in layers]

    def overlap(self, software: Software) -> Mapping[str, Overlap]:
        """Sums of gradients of inputs run beside the weight gradients if the software does so."""
        return {DOMAIN: Overlap(asynchronous=software.async_tensor)}

    def further_axes(self, mesh: Mesh) -> Mapping[str, Axis]:
        """All ranks, which have the weights of layers that are divided by domain or batch."""
        return {JOINT: mesh.joint(DOMAIN, REPLICAS)} if self.domain > 1 else {}

    def facts(self) -> Mapping[str, Any]:
        """How kinds and layers are divided."""
        return {"domain_layers": {**BY_KIND, **self.domain_layers}} if self.domain > 1 else {}
