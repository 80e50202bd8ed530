"""Piper: dynamic programming over stages, with data and tensor parallelism and recomputation in each.

Tarnawski, Narayanan and Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization", NeurIPS 2021, and its
code (msr-fiddle/piper). A stage of the layers S runs with tensor degree t and data-parallel degree d. N micro-batches
make a batch, p_v is the time of layer v, c a transfer at an end of the stage, w_v the gradient bytes, B the bandwidth:

    TPS(S, t, d) = sum_v p_v(t) / d + 2 sum c / (d B) + 4 (d - 1)/d sum_v w_v(t) / (N B)

Let s be the sum of the data-parallel degrees from this stage to the last one. Each replica holds ceil(s / d)
micro-batches, so the stage needs a(S) ceil(s / d) + b(S) bytes, which must fit. The best time per micro-batch of the
layers from i on, on k GPUs, is

    dp[i][k][s] = min over j, t, d of max(TPS(i..j, t, d), dp[j + 1][k - t d][s - d])

In the paper each layer of a stage may be recomputed or not, chosen by a heuristic; here a stage recomputes all of its
layers or none, chosen exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from clustersim.scenarios.alternatives.candidate import Candidate
from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.search.pipeline_chain import Machine, PipelineChain, Plan, Stage, held_bytes
from clustersim.scenarios.search.planning_problem import Problem
from clustersim.scenarios.search.published_plans import candidates_of
from clustersim.scenarios.specification.plan import AUTO
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError

Option = tuple[PipelineChain, bool]
"""The layers by the tensor degree of a stage, and whether it recomputes."""


UNIFORM = {"tp": AUTO, "pp": AUTO, "micro_batch_size": AUTO, "recompute": ["none", "full"]}
"""Plans of its space in which all stages are alike."""


def candidates(space: Space) -> Iterator[Candidate]:
    """Yield the plan for each micro-batch, and the uniform ones."""
    return candidates_of(propose, space, UNIFORM)


def propose(problem: Problem) -> Plan:
    """Return the best plan over the micro-batches. Raises `ScheduleError` if nothing fits."""
    plans = []
    for chains in problem.by_micro_batch:
        micro_batches = problem.batch // chains[0].micro_batch_size
        plans += _solved(chains, problem.machine, micro_batches, uniform=problem.uniform)
    return _fastest(plans, problem.machine)


def piper(chains: Sequence[PipelineChain], machine: Machine, micro_batches: int, *, uniform: bool = False) -> Plan:
    """Return the plan with the least time per micro-batch that fits in memory.

    *chains*: the same layers for each tensor degree to try, all of one micro-batch. *micro_batches*: N of a batch, a
    multiple of each d. *uniform*: all stages have the same tensor degree and recomputation, as a scenario can execute.
    Raises `ScheduleError` if nothing fits.
    """
    return _fastest(_solved(chains, machine, micro_batches, uniform=uniform), machine)


def _solved(chains: Sequence[PipelineChain], machine: Machine, micro_batches: int, *, uniform: bool) -> list[Plan]:
    """Return the best plan of all options, or one for each option if *uniform*; none where nothing fits."""
    options: list[Option] = [*product(chains, (False, True))]
    several = [[option] for option in options] if uniform else [options]
    solved = [_Search(own, machine, micro_batches).plan() for own in several]
    return [plan for plan in solved if plan]


def _fastest(plans: Sequence[Plan], machine: Machine) -> Plan:
    found = min(plans, key=lambda plan: plan.seconds, default=None)
    if found is None:
        raise ScheduleError(
            f"piper: nothing fits {machine.gpus} GPUs with {machine.memory_bytes / 1e9:.4g} GB left each"
        )
    return found


def stage_seconds(
    chain: PipelineChain, machine: Machine, i: int, j: int, d: int, micro_batches: int, *, recompute: bool = False
) -> float:
    """Return TPS of the layers i to j - 1 on *d* replicas."""
    columns = ("forward", "backward", *(("recompute",) if recompute else ()))
    p = sum(float(chain.total(column)[j] - chain.total(column)[i]) for column in columns)
    c = (chain.outputs[i - 1] if i else 0.0) + chain.outputs[j - 1]
    w = chain.total("gradient_bytes")[j] - chain.total("gradient_bytes")[i]
    resync = 4 * (d - 1) / d * w / (micro_batches * machine.ring_bandwidth(d, chain.tp))
    return float(p / d + 2 * c / (d * machine.message_bandwidth(machine.gpus)) + resync)


@dataclass(frozen=True)
class _Step:
    """A stage of the layers i to *end* - 1 with *option* on *d* replicas."""

    option: Option
    end: int
    d: int


class _Search:
    """The table dp and, for each entry, the stage that made it.

    If all options have one tensor degree t, stages with s in all need t s GPUs. Then the table has no axis of GPUs:
    *gpus* is 0, and s is bounded instead.
    """

    def __init__(self, options: Sequence[Option], machine: Machine, micro_batches: int) -> None:
        self.options, self.machine, self.micro_batches = options, machine, micro_batches
        self.layers = len(options[0][0])
        degrees = {chain.tp for chain, _ in options}
        self.most = min(micro_batches, machine.gpus // min(degrees))
        self.counted = len(degrees) > 1
        self.gpus = machine.gpus if self.counted else 0
        self.dp = np.full((self.layers + 1, self.gpus + 1, self.most + 1), np.inf)
        self.dp[self.layers, :, 0] = 0.0
        self.step = np.full(self.dp.shape, -1, np.int64)
        self.steps: list[_Step] = []

    def plan(self) -> Plan | None:
        """Fill the table from the last layer and return the best plan; None if nothing fits."""
        for i in range(self.layers - 1, -1, -1):
            for end, (option, d) in product(range(i + 1, self.layers + 1), self._degrees()):
                self._try(i, end, option, d)
        s = int(self.dp[0, self.gpus].argmin())
        if not np.isfinite(self.dp[0, self.gpus, s]):
            return None
        chain = self.options[0][0]
        return Plan(
            "piper", self._stages(s), float(self.dp[0, self.gpus, s]) / chain.micro_batch_size, chain.micro_batch_size
        )

    def _degrees(self) -> list[tuple[Option, int]]:
        return [
            (option, d)
            for option in self.options
            for d in range(1, self.most + 1)
            if self.micro_batches % d == 0 and d * option[0].tp <= self.machine.gpus
        ]

    def _try(self, i: int, end: int, option: Option, d: int) -> None:
        """Put the stage of the layers i to *end* - 1 before each entry behind it, where it fits and is faster."""
        chain, recompute = option
        most = self._most_in_flight(chain, i, end, recompute=recompute) * d
        s = min(self.most, most)
        if s < d:
            return
        gpus = d * chain.tp * self.counted
        seconds = stage_seconds(chain, self.machine, i, end, d, self.micro_batches, recompute=recompute)
        behind = np.maximum(self.dp[end, : self.gpus + 1 - gpus, : s + 1 - d], seconds)
        place = np.s_[i, gpus:, d : s + 1]
        better = behind < self.dp[place]
        if better.any():
            self.dp[place][better] = behind[better]
            self.step[place][better] = len(self.steps)
            self.steps.append(_Step(option, end, d))

    def _most_in_flight(self, chain: PipelineChain, i: int, end: int, *, recompute: bool) -> int:
        """Return the largest y with a y + b within the memory of a GPU."""
        b = held_bytes(chain, i, end, 0, recompute=recompute)
        a = held_bytes(chain, i, end, 1, recompute=recompute) - b
        free = self.machine.memory_bytes - b
        if free < a:
            return 0
        return int(free / a) if free < a * self.most else self.most

    def _stages(self, s: int) -> tuple[Stage, ...]:
        stages, i, k = [], 0, self.gpus
        while i < self.layers:
            step = self.steps[self.step[i, k, s]]
            chain, recompute = step.option
            stages.append(Stage(step.end - i, step.d, chain.tp, recompute))
            i, k, s = step.end, k - step.d * chain.tp * self.counted, s - step.d
        return tuple(stages)
