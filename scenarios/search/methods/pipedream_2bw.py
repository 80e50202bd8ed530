"""PipeDream-2BW: exhaustive over width and depth, with equal stages that are replicated equally.

Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021 (arXiv:2006.09503, section 3). The width
w is the number of replicas of each stage, the depth d that of stages, b the micro-batch. A replica accumulates
gradients over m = B / (w b) micro-batches of the batch B. Stage i takes for each micro-batch

    t_i = max(T_i^comp(b, d) + sum_j T_(j->i)^comm(b, d),  T_i^comm(w, d) / m)

because the sum of gradients overlaps with the next batch: weights are double-buffered. The throughput is w b / max_i
t_i. T_i^comp has the forward pass twice if all layers are recomputed. Stage i of d holds two versions of its weights,
the states of the optimizer, and the activations of d - i micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from clustersim.scenarios.alternatives.candidate import Candidate
from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.search.pipeline_chain import Machine, PipelineChain, Plan, Stage, held_bytes
from clustersim.scenarios.search.planning_problem import Problem
from clustersim.scenarios.search.published_plans import candidates_of
from clustersim.scenarios.specification.plan import AUTO
from clustersim.simulator.reading.errors import ScheduleError

UNIFORM = {"tp": [1], "pp": [1], "micro_batch_size": AUTO, "recompute": ["none", "full"]}
"""Plans of its space in which all stages are alike."""


def candidates(space: Space) -> Iterator[Candidate]:
    """Yield the plan for each micro-batch, and the uniform ones."""
    return candidates_of(propose, space, UNIFORM)


def propose(problem: Problem) -> Plan:
    """Return the best plan over the micro-batches; the method has no tensor parallelism."""
    return pipedream_2bw(problem.undivided, problem.machine, problem.batch)


def pipedream_2bw(chains: Sequence[PipelineChain], machine: Machine, batch: int) -> Plan:
    """Return the width, depth, micro-batch and recomputation with the highest throughput that fit in memory.

    *chains*: the same layers for each micro-batch (and tensor degree) to try. *batch*: the samples B of a step. Raises
    `ScheduleError` if nothing fits.
    """
    best: Plan | None = None
    for chain, recompute in product(chains, (False, True)):
        for width, depth in _shapes(chain, machine, batch):
            cuts = even_cuts(chain, depth)
            if any(
                held_bytes(chain, i, j, depth - stage, recompute=recompute, versions=2) > machine.memory_bytes
                for stage, (i, j) in enumerate(cuts)
            ):
                continue
            seconds = seconds_per_sample(chain, machine, width, cuts, batch, recompute=recompute)
            if best is None or seconds < best.seconds:
                stages = tuple(Stage(j - i, width, chain.tp, recompute) for i, j in cuts)
                best = Plan("pipedream_2bw", stages, seconds, chain.micro_batch_size)
    if best is None:
        raise ScheduleError(
            f"pipedream_2bw: nothing fits {machine.gpus} GPUs with {machine.memory_bytes / 1e9:.4g} GB left each"
        )
    return best


def even_cuts(chain: PipelineChain, depth: int) -> list[tuple[int, int]]:
    """Return (first layer, layer behind the last) of *depth* stages with equally many layers, the ends not counted.

    One more is on the earlier stages if they do not divide; that is the layout ``balanced`` of a scenario.
    """
    counted = [number for number, layer in enumerate(chain.layers) if not layer.end]
    share, more = divmod(len(counted), depth)
    cuts, begin = [0], 0
    for stage in range(depth - 1):
        begin += share + (stage < more)
        cuts.append(counted[begin])
    return [*zip(cuts, [*cuts[1:], len(chain)], strict=True)]


def seconds_per_sample(
    chain: PipelineChain,
    machine: Machine,
    width: int,
    cuts: Sequence[tuple[int, int]],
    batch: int,
    *,
    recompute: bool = False,
) -> float:
    """Return max_i t_i / (w b), seconds a sample."""
    time = chain.total("forward") + chain.total("backward") + (chain.total("recompute") if recompute else 0.0)
    gradients, outputs = chain.total("gradient_bytes"), chain.outputs
    m = batch / (width * chain.micro_batch_size)
    between = machine.message_bandwidth(width * chain.tp * len(cuts))
    slowest = 0.0
    for i, j in cuts:
        received = (outputs[i - 1] if i else 0.0) + outputs[j - 1]
        # a ring passes each byte of the other replicas' shares twice
        summed = 2 * (width - 1) / width * (gradients[j] - gradients[i]) / machine.ring_bandwidth(width, chain.tp)
        slowest = max(slowest, time[j] - time[i] + received / between, summed / m)
    return slowest / (width * chain.micro_batch_size)


def _shapes(chain: PipelineChain, machine: Machine, batch: int) -> Iterator[tuple[int, int]]:
    """Yield each (width, depth) that divides the batch; two versions need as many micro-batches as stages."""
    layers = sum(not layer.end for layer in chain.layers)
    gpus = machine.gpus // chain.tp
    for width in range(1, gpus + 1):
        micro_batches, left = divmod(batch, width * chain.micro_batch_size)
        if not left:
            for depth in range(1, min(gpus // width, layers, micro_batches) + 1):
                yield width, depth
