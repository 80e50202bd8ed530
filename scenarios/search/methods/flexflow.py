"""FlexFlow: Markov chain Monte Carlo over the parallel dimensions of each operator, with an execution simulator.

Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", MLSys 2019 (arXiv:1807.05358). Of
the dimensions sample, operator, attribute and parameter, those are searched that workloads can execute: sample and
parameter. A strategy S gives each operator o_i a configuration c_i: s parts by sample and p parts by parameter on s p
GPUs. The search changes the configuration of one random operator and takes the strategy S* with probability

    min(1, exp(beta (cost(S) - cost(S*))))

cost(S) is the end of the last task of an iteration. The execution simulator has a task for each operator forward and
backward, for each transfer between two operators with other parts, and for each sum of gradients. Tasks of a GPU and
tasks of its link run in the order in which they are ready (`iteration_seconds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from math import exp
from random import Random

from clustersim.scenarios.alternatives.candidate import Candidate
from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.search.pipeline_chain import Machine, PipelineChain, PipelineLayer, Plan, Stage
from clustersim.scenarios.search.planning_problem import Problem
from clustersim.scenarios.search.published_plans import candidates_of
from clustersim.scenarios.specification.plan import AUTO
from clustersim.simulator.reading.errors import ScheduleError

Configuration = tuple[int, int]
"""(parts by sample, parts by parameter) of an operator."""

Strategy = tuple[Configuration, ...]
"""A configuration for each operator."""

TOO_LARGE = 1000.0
"""Factor on the cost of a strategy that needs twice the memory of a GPU, so that the search leaves such strategies."""

BETA = 10_000.0
"""beta in units of 1 / cost of the first strategy: one that is 0.01 % of that slower is taken with probability 1/e.

A first estimate: of four seeds, all find the best known strategy of AlexNet on 16 GPUs within 20,000 proposals; with
1,000 one does.
"""


UNIFORM = {"tp": AUTO, "pp": [1], "micro_batch_size": AUTO}
"""Plans of its space in which all stages are alike."""


def candidates(space: Space) -> Iterator[Candidate]:
    """Yield the plan for each micro-batch, and the uniform ones."""
    return candidates_of(propose, space, UNIFORM)


def propose(problem: Problem) -> Plan:
    """Return the best plan over the micro-batches. Raises `ScheduleError` if none fits."""
    found: list[Plan] = []
    faults: list[ScheduleError] = []
    for chains in problem.by_micro_batch:
        parts = chains if problem.uniform else _all_parts(chains, problem.machine)
        try:
            plan = flexflow(parts, problem.machine, problem.batch, seed=problem.seed, uniform=problem.uniform)
        except ScheduleError as error:
            faults.append(error)
        else:
            found.append(plan)
    if not found:
        raise faults[0]
    return min(found, key=lambda plan: plan.seconds)


def flexflow(
    chains: Sequence[PipelineChain],
    machine: Machine,
    batch: int,
    *,
    seed: int = 0,
    proposals: int = 10_000,
    uniform: bool = False,
) -> Plan:
    """Return the best strategy of three Markov chains, which share *proposals* equally.

    They start from data parallelism, from the cut of every operator by parameter, and from a random strategy, as in the
    paper. A chain ends early if the best strategy has not changed for half of its proposals. *chains*: the operators
    for each number of parts by parameter. *batch*: the samples of an iteration, all at once. *uniform*: all operators
    have one configuration, as a scenario can execute. Equal *seed*, equal answer. Raises `ScheduleError` if no strategy
    that was tried fits in memory.
    """
    seconds, needed = iteration_seconds(chains, machine, batch), held_bytes(chains)

    def cost(strategy: Strategy) -> float:
        excess = max(0.0, needed(strategy) / max(1.0, machine.memory_bytes) - 1)
        return seconds(strategy) * (1 + excess * TOO_LARGE)

    choices, operators, random = configurations(chains, machine), len(chains[0]), Random(seed)
    if uniform:  # a scenario divides its batch evenly
        choices = [(s, p) for s, p in choices if batch % (s * chains[0].micro_batch_size) == 0]
    starts = [max(choices), min(choices), None]
    best: Strategy = (max(choices),) * operators
    for start in starts:
        first = tuple(start or random.choice(choices) for _ in range(operators))
        if uniform:
            first = first[:1] * operators
        best = min(best, _search(first, choices, cost, random, proposals // len(starts), uniform=uniform), key=cost)
    if needed(best) > machine.memory_bytes:
        raise ScheduleError(
            f"flexflow: nothing fits {machine.gpus} GPUs with {machine.memory_bytes / 1e9:.4g} GB left each"
        )
    stages = tuple(Stage(len([*own]), s, p) for (s, p), own in groupby(best))
    return Plan("flexflow", stages, seconds(best) / batch, chains[0].micro_batch_size, pipelined=False)


def _all_parts(chains: Sequence[PipelineChain], machine: Machine) -> list[PipelineChain]:
    """Return a chain for each number of parts by parameter; where none is priced, the layers are simply divided."""
    priced = {chain.tp: chain for chain in chains}
    every = [parts for parts in range(1, machine.gpus + 1) if machine.gpus % parts == 0]
    return [priced[parts] if parts in priced else chains[0].divided(parts) for parts in every]


def held_bytes(chains: Sequence[PipelineChain]) -> Callable[[Strategy], float]:
    """Return a function: strategy -> bytes of the first GPU, which has a part of each operator.

    These are states and the activations of a micro-batch.
    """
    by_parts = {chain.tp: [layer.state_bytes + layer.activation_bytes for layer in chain.layers] for chain in chains}
    return lambda strategy: sum(by_parts[p][number] for number, (_, p) in enumerate(strategy))


def configurations(chains: Sequence[PipelineChain], machine: Machine) -> list[Configuration]:
    """Return the configurations of an operator: all that use a divisor of the GPUs."""
    return [
        (s, chain.tp)
        for chain in chains
        for s in range(1, machine.gpus // chain.tp + 1)
        if machine.gpus % (s * chain.tp) == 0
    ]


def _search(
    strategy: Strategy,
    choices: Sequence[Configuration],
    cost: Callable[[Strategy], float],
    random: Random,
    proposals: int,
    *,
    uniform: bool,
) -> Strategy:
    """Return the best strategy of one Markov chain that begins with *strategy*."""
    best, changed = strategy, 0
    least = now = cost(strategy)
    beta = BETA / now
    for number in range(proposals):
        place, configuration = random.randrange(len(strategy)), random.choice(choices)
        proposed = (*strategy[:place], configuration, *strategy[place + 1 :])
        if uniform:
            proposed = (configuration,) * len(strategy)
        then = cost(proposed)
        if then <= now or random.random() < exp(beta * (now - then)):
            strategy, now = proposed, then
        if now < least:
            best, least, changed = strategy, now, number
        if number - changed > proposals / 2:
            break
    return best


def iteration_seconds(chains: Sequence[PipelineChain], machine: Machine, batch: int) -> Callable[[Strategy], float]:
    """Return the execution simulator: strategy -> seconds of an iteration over *batch* samples.

    All GPUs of an operator have equal tasks, so the first GPU, which takes part in every operator, stands for all. It
    has two queues, computation and link.
    """
    by_parts = {chain.tp: chain.layers for chain in chains}
    times = batch / chains[0].micro_batch_size
    moved = lru_cache(None)(lambda *key: _moved_seconds(by_parts, machine, times, *key))
    summed = lru_cache(None)(lambda *key: _summed_seconds(by_parts, machine, *key))

    def seconds(strategy: Strategy) -> float:
        time = link = 0.0
        for number, (s, p) in enumerate(strategy):
            if number and (transfer := moved(number, strategy[number - 1], (s, p))[0]):
                time = link = max(time, link) + transfer
            time += by_parts[p][number].forward * times / s
        for number in range(len(strategy) - 1, -1, -1):
            s, p = strategy[number]
            time += by_parts[p][number].backward * times / s
            done = time
            if number and (transfer := moved(number, strategy[number - 1], (s, p))[1]):
                time = link = max(time, link) + transfer
            link = max(done, link) + summed(number, (s, p))
        return max(time, link)

    return seconds


def _summed_seconds(
    by_parts: Mapping[int, Sequence[PipelineLayer]], machine: Machine, number: int, own: Configuration
) -> float:
    """Return the time of the ring all-reduce of the gradients of operator *number* over its parts by sample."""
    s, p = own
    if s == 1:
        return 0.0
    return 2 * (s - 1) / s * by_parts[p][number].gradient_bytes / machine.ring_bandwidth(s, p)


def _moved_seconds(
    by_parts: Mapping[int, Sequence[PipelineLayer]],
    machine: Machine,
    times: float,
    number: int,
    before: Configuration,
    own: Configuration,
) -> tuple[float, float]:
    """Return the time of the transfer to operator *number* forward, and of the gradient back.

    Forward, a GPU receives what the operator reads and it does not have. Backward, it receives the gradients of what it
    made; each part by parameter has a summand of them. *times*: the batch in units of the micro-batch of the costs.
    """
    (s, p), (made_s, made_p) = own, before
    made, read = by_parts[made_p][number - 1], by_parts[p][number]
    summands = 1 if read.channelwise or read.gathered else p
    forward = backward = 0.0
    for gpu in range(max(s * p, made_s * made_p)):
        has = _area(gpu, made_s, made_p, whole=made.gathered)
        needs = _area(gpu, s, p, whole=not read.channelwise)
        shared = _overlap(has, needs)
        forward = max(forward, _size(needs) - shared)
        backward = max(backward, summands * _size(has) - shared)
    bandwidth = machine.message_bandwidth(max(s * p, made_s * made_p))
    if bandwidth == float("inf"):
        return 0.0, 0.0
    seconds = times * made.output_bytes / bandwidth
    return forward * seconds, backward * seconds


Area = tuple[float, float, float, float]
"""A part of a tensor as shares of it: samples from, to, channels from, to."""


def _area(gpu: int, s: int, p: int, *, whole: bool) -> Area:
    """Return the part of *gpu* among s parts by sample and p by parameter; *whole*: all channels."""
    if gpu >= s * p:
        return 0.0, 0.0, 0.0, 0.0
    sample, parameter = divmod(gpu, p)
    channels = (0.0, 1.0) if whole else (parameter / p, (parameter + 1) / p)
    return sample / s, (sample + 1) / s, *channels


def _size(area: Area) -> float:
    return (area[1] - area[0]) * (area[3] - area[2])


def _overlap(one: Area, other: Area) -> float:
    samples = min(one[1], other[1]) - max(one[0], other[0])
    channels = min(one[3], other[3]) - max(one[2], other[2])
    return max(0.0, samples) * max(0.0, channels)
