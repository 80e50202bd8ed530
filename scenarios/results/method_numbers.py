"""Numbers that some steps have: how tokens spread over experts, the rounds of federated learning, and what the
compression of gradients saves and costs.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.schedule import model_share
from clustersim.simulator.analysis.intervals import partition
from clustersim.simulator.analysis.metrics import percentiles
from clustersim.simulator.analysis.timeline import Timeline, op_names
from clustersim.simulator.hardware.accelerator import Accelerator, Software
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.plain_text import figure, indented
from clustersim.simulator.reading.units import show
from clustersim.simulator.schedule.ops import Compute, Op, Recv, Send
from clustersim.simulator.schedule.program import Program
from clustersim.workloads.data_parallel.buckets import Coding
from clustersim.workloads.operators.mixture_of_experts import Mixture
from clustersim.workloads.operators.model import Model, OperatorLayer
from clustersim.workloads.parallelism.methods.federated import SERVER, arrival_name, update_name

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


@dataclass(frozen=True)
class FederatedRounds:
    """By round: its *seconds*, the seconds that each of its clients waits for the slowest, the bytes that it moves."""

    seconds: tuple[float, ...]
    waiting: tuple[tuple[float, ...], ...]
    nbytes: tuple[float, ...]

    @property
    def mean_waiting(self) -> float:
        """Seconds that a client waits for the slowest of its round, the mean over all rounds."""
        return fmean(seconds for own in self.waiting for seconds in own)

    def summary(self) -> dict[str, Any]:
        """Return the numbers by the keys of a result."""
        found = {
            "rounds": len(self.seconds),
            "clients_of_a_round": len(self.waiting[0]),
            "round_s": fmean(self.seconds),
            "bytes_of_a_round": fmean(self.nbytes),
            "waiting_s": self.mean_waiting,
        }
        several = len(self.seconds) > 1
        return found | ({"round_percentiles_s": percentiles(self.seconds)} if several else {})

    def report(self) -> str:
        """Return the lines of a report."""
        mean, clients = fmean(self.seconds), len(self.waiting[0])
        several = f" (mean of {len(self.seconds)} rounds)" if len(self.seconds) > 1 else ""
        lines = [f"a round takes {show(mean, 'time')}{several} and moves {show(fmean(self.nbytes), 'size', 3)}"]
        if len(self.seconds) > 1:
            told = ", ".join(f"{name} {show(value, 'time')}" for name, value in percentiles(self.seconds).items())
            lines.append(f"rounds: {told}")
        share = self.mean_waiting / mean if mean else 0.0
        waits = f"{show(self.mean_waiting, 'time')} for the slowest, {share:.0%} of the round"
        lines.append(f"each of its {figure(clients)} clients waits {waits}")
        return "\n".join(["federated rounds", *map(indented, lines)])


def federated_rounds(timeline: Timeline) -> FederatedRounds:
    """Return the rounds of *timeline*, whose schedule has the server of federated learning."""
    schedule = timeline.schedule
    rank = next(one for one in range(timeline.world_size) if schedule.program(one).role == SERVER)
    program, own = schedule.program(rank), timeline.of(rank)
    names = op_names(program)
    end_of = {names[op]: end for op, end in zip(own.op.tolist(), own.end.tolist(), strict=True)}
    peers = _peers_by_round(program)
    ends = [end_of[update_name(number)] for number in range(len(peers))]
    arrivals = [[end_of[arrival_name(number, peer)] for peer in own] for number, own in enumerate(peers)]
    return FederatedRounds(
        tuple(end - begin for begin, end in pairwise([0.0, *ends])),
        tuple(tuple(max(own) - end for end in own) for own in arrivals),
        _bytes_by_round(program, peers),
    )


def _peers_by_round(program: Program) -> list[list[int]]:
    """The coordinates of the clients of each round of the server's *program*."""
    found: dict[int, list[int]] = {}
    for op in program.ops:
        if isinstance(op, Recv):
            found.setdefault(int(op.name.split(".")[0]), []).append(op.peer)
    return [found[number] for number in sorted(found)]


def _bytes_by_round(program: Program, peers: list[list[int]]) -> tuple[float, ...]:
    """What the server sends and receives in each round."""
    moved = [op.nbytes for op in program.ops if isinstance(op, Send | Recv)]
    return tuple(2 * len(own) * moved[0] for own in peers)


MODEL, ENCODING, DECODING, OTHER = range(4)
"""Kinds of op, the one that counts first if several run at a time."""


@dataclass(frozen=True)
class CompressionNumbers:
    """Of a step, the mean over the GPUs: *gradients* are encoded as *sent* bytes.

    *warm_up*: the share of a run's steps that are not compressed, if known; *start*: their number, if given.
    *encoding*, *decoding*: seconds of its kernels. *exposed*: seconds of these during which the GPU computes nothing
    of the model. The last three are None if the run is too large to keep every span.
    """

    gradients: float
    sent: float
    warm_up: float
    start: int
    encoding: float | None
    decoding: float | None
    exposed: float | None

    @property
    def ratio(self) -> float:
        """How many times fewer bytes are sent in a step that compresses."""
        return self.gradients / self.sent

    @property
    def ratio_of_run(self) -> float:
        """The same over a whole run, with its share of steps that do not compress."""
        return 1.0 / (self.warm_up + (1.0 - self.warm_up) / self.ratio)

    def summary(self) -> dict[str, Any]:
        """The numbers as `run --json` prints them."""
        return {
            "gradient_bytes": self.gradients,
            "sent_bytes": self.sent,
            "ratio": self.ratio,
            "ratio_of_run": self.ratio_of_run,
            "encoding_s": self.encoding,
            "decoding_s": self.decoding,
            "exposed_s": self.exposed,
        }

    def report(self) -> str:
        """The section of a report."""
        before, after = show(self.gradients, "size", 3), show(self.sent, "size", 3)
        lines = [f"compression\n  a GPU encodes {before} of gradients as {after}, {self.ratio:.3g} times less"]
        if self.warm_up:
            first = f"its first {100 * self.warm_up:.3g} % of steps send whole gradients"
            lines.append(f"  {self.ratio_of_run:.3g} times less over a run: {first}; times here are of the others")
        elif self.start:
            lines.append(
                f"  the first {self.start:,} steps of a run send whole gradients; times here are of the others"
            )
        if self.encoding is not None and self.decoding is not None and self.exposed is not None:
            spent = f"encoding {show(self.encoding, 'time')}, decoding {show(self.decoding, 'time')}"
            lines.append(f"  {spent}; {show(self.exposed, 'time')} of both while nothing else is computed")
        return "\n".join(lines)


def compression(timeline: Timeline, steps: float = 0.0) -> CompressionNumbers | None:
    """What compression does in *timeline*; None if it compresses nothing. *steps*: those of the run; 0: not known."""
    schedule, gpus = timeline.schedule, len(timeline.gpu_ranks)
    gradients = sent = warm_up = 0.0
    start = 0
    for number, program in enumerate(schedule.programs):
        for ops, times in program.templates():
            for op in ops:
                if isinstance(op, Coding) and op.sent:
                    count = times * len(schedule.ranks_of(number)) / schedule.batches / gpus
                    gradients, sent = gradients + count * op.gradients, sent + count * op.sent
                    warm_up, start = op.warm_up, op.start
    if not sent:
        return None
    warm_up = min(1.0, start / steps) if start and steps else warm_up
    return CompressionNumbers(gradients, sent, warm_up, start, *_method_seconds(timeline))


def _method_seconds(timeline: Timeline) -> tuple[float | None, float | None, float | None]:
    """Seconds of encoding, of decoding, and of both while the model computes nothing, the mean over the GPUs."""
    if timeline.totals is not None:
        return None, None, None
    schedule, total, gpus = timeline.schedule, np.zeros(3), 0
    for rank, ranks in timeline.classes.items():
        if schedule.program(rank).on != "gpu":
            continue
        written = timeline.of(rank)
        kind = schedule.program(rank).column(_kind, np.int64)[written.op]
        low, high = timeline.window
        inside = np.minimum(written.end, high) - np.maximum(written.begin, low)
        each = np.bincount(kind, np.maximum(0.0, inside), OTHER + 1)
        alone = partition(written.begin, written.end, kind, OTHER + 1, timeline.window)
        seconds = np.array([each[ENCODING], each[DECODING], alone[ENCODING] + alone[DECODING]])
        total, gpus = total + len(ranks) * seconds, gpus + len(ranks)
    encoding, decoding, exposed = (total / gpus / timeline.steps_measured).tolist()
    return encoding, decoding, exposed


def _kind(op: Op) -> int:
    if isinstance(op, Coding):
        return DECODING if op.decodes else ENCODING
    return MODEL if isinstance(op, Compute) else OTHER
