"""How the tokens of a step spread over experts and ranks, and what the fullest rank costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.schedule import model_share
from clustersim.simulator.hardware.accelerator import Accelerator, Software
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.plain_text import figure, indented
from clustersim.simulator.reading.units import show
from clustersim.workloads.operators.experts.mixture import Mixture
from clustersim.workloads.operators.model import Model, OperatorLayer

SHOWN = 4
"""Experts with most tokens that a report shows."""


@dataclass(frozen=True)
class ExpertLoad:
    """*tokens*: of each expert, from one micro-batch of all ranks that send to it; the mean over layers with experts.

    *seconds*: of each rank of an expert-parallel group, what its experts compute in a step in forward and backward
    passes of all micro-batches, the mean over the pipeline ranks. Rank i of the group has the experts from
    ``i * local`` on.
    """

    tokens: tuple[float, ...]
    seconds: tuple[float, ...]
    local: int

    @property
    def imbalance(self) -> float:
        """Tokens of the fullest rank over those of the mean rank."""
        ranks = [sum(self.tokens[i : i + self.local]) for i in range(0, len(self.tokens), self.local)]
        return max(ranks) * len(ranks) / sum(ranks)

    @property
    def lost(self) -> float:
        """Seconds of a step that the slowest rank computes longer than the mean rank."""
        return max(self.seconds) - sum(self.seconds) / len(self.seconds)

    def summary(self) -> dict[str, Any]:
        """The numbers as `run --json` prints them, with a row for each expert."""
        total = sum(self.tokens)
        return {
            "fullest_rank_over_mean": self.imbalance,
            "slowest_rank_s": max(self.seconds),
            "mean_rank_s": sum(self.seconds) / len(self.seconds),
            "rows": [
                {"expert": expert, "ep_rank": expert // self.local, "tokens": tokens, "share": tokens / total}
                for expert, tokens in enumerate(self.tokens)
            ],
        }

    def report(self) -> str:
        """The section of a report: the experts with most tokens, and what their rank costs."""
        mean = sum(self.tokens) / len(self.tokens)
        order = sorted(range(len(self.tokens)), key=lambda expert: -self.tokens[expert])[:SHOWN]
        if len(set(self.tokens)) == 1:
            return f"experts\n  each of {len(self.tokens)} gets {figure(mean)} tokens from a micro-batch of its ranks"
        rows = [
            [
                f"expert {expert}",
                f"ep rank {expert // self.local}",
                figure(self.tokens[expert]),
                f"{self.tokens[expert] / mean:.2f} x mean",
            ]
            for expert in order
        ]
        table = plain_text.table(rows, ["", "", "tokens", ""], "llrr")
        slowest = self.seconds.index(max(self.seconds))
        cost = (
            f"the fullest rank has {self.imbalance:.2f} times the mean; ep rank {slowest} computes "
            f"{show(max(self.seconds), 'time')} of experts a step, {show(self.lost, 'time')} more than the mean rank"
        )
        return f"experts with most tokens from a micro-batch of their ranks\n{indented(table)}\n  {cost}"


def expert_load(scenario: BuiltScenario) -> ExpertLoad | None:
    """The load of the experts of *scenario*; None if its model has none."""
    if scenario.model is None:
        return None
    parts = scenario.specification.parallelism.parts
    share = model_share(scenario.model, parts, scenario.document)
    found = _mixtures(share)
    if not found:
        return None
    size, experts = scenario.derived.micro_batch_size, found[0].experts
    loads = [mixture.dispatch(size) for mixture in found]
    sources = loads[0].sources
    tokens = tuple(sources * sum(load.tokens[e] for load in loads) / len(loads) for e in range(experts.count))
    several = next((own for part in parts.values() if (own := part.unequal_shares(share))), ())
    models = several or (share,) * experts.cut.ranks
    accelerator = scenario.cluster().accelerator(scenario.derived.devices[0])
    known = {id(model): _seconds(model, size, accelerator, scenario.software) for model in models}
    passes = scenario.derived.micro_batches / scenario.derived.degree("pp")
    return ExpertLoad(tokens, tuple(known[id(model)] * passes for model in models), experts.local)


def _mixtures(model: Model) -> list[Mixture]:
    layers = (layer.operators for layer in model.layers if isinstance(layer, OperatorLayer))
    return [operator for operators in layers for operator in operators if isinstance(operator, Mixture)]


def _seconds(model: Model, size: int, accelerator: Accelerator, software: Software) -> float:
    """Of one micro-batch, the products of the experts in all layers."""
    known: dict[int, float] = {}
    total = 0.0
    for mixture in _mixtures(model):
        if mixture.number not in known:
            known[mixture.number] = accelerator.seconds(mixture.expert_kernels(size), software)
        total += known[mixture.number]
    return total
