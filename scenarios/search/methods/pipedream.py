"""PipeDream: dynamic programming over layers and machines, level by level of the bandwidths.

Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019 (arXiv:1806.03377, section
3.1). T_l is the time of layer l forward and backward, a_l its output, w_l its weights; level k joins m_k units by the
bandwidth B_k, and a unit is a machine of level k - 1. A stage of the layers i to j on m units takes for each
micro-batch

    T^k(i->j, m) = 1/m max(A^(k-1)(i->j, m_(k-1)), 4 (m - 1)/m sum |w_l| / B_k),    A^0(i->j) = sum T_l

The slowest stage or transfer of the best division takes

    A^k(i->j, m) = min over s, m' of max(A^k(i->s, m - m'), 2 a_s / (B_k m'), T^k(s+1->j, m'))    or    T^k(i->j, m)

In the paper the sum of gradients overlaps with computation, so the larger counts. The published optimizer
(msr-fiddle/pipedream, optimizer_graph_hierarchical.py), of which the bytes of the sum are, adds the two: *overlap*
false. A transfer is shared by the replicas of the receiving stage, and here by those of the sending stage too: the
fewer bound it. Memory is no constraint of the method; the simulation tells whether a plan fits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.scenarios.alternatives.candidate import Candidate
from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.search.pipeline_chain import Floats, Level, Machine, PipelineChain, Plan, Stage
from clustersim.scenarios.search.planning_problem import Problem
from clustersim.scenarios.search.published_plans import candidates_of
from clustersim.scenarios.specification.plan import AUTO
from clustersim.simulator.reading.dataclass import dataclass

EQUAL = 1 - 1e-12
"""A division with more stages must be faster by more than the rounding of a sum."""


UNIFORM = {"tp": [1], "pp": [1], "micro_batch_size": AUTO}
"""Plans of its space in which all stages are alike."""


def candidates(space: Space) -> Iterator[Candidate]:
    """Yield the plan for each micro-batch, and the uniform ones."""
    return candidates_of(propose, space, UNIFORM)


def propose(problem: Problem) -> Plan:
    """Return the best plan over the micro-batches."""
    return min((pipedream(chain, problem.machine) for chain in problem.undivided), key=lambda plan: plan.seconds)


def pipedream(chain: PipelineChain, machine: Machine, *, overlap: bool = True) -> Plan:
    """Return the division of *chain* over all GPUs of *machine* with the shortest bottleneck.

    Stages run 1F1B round-robin: replica k of a stage with n takes the micro-batches k, k + n ... *overlap*: gradients
    are summed beside the computation.

    >>> from clustersim.scenarios.search.pipeline_chain import PipelineLayer
    >>> layers = [PipelineLayer("a", 1, 2, 1.0), PipelineLayer("b", 1, 2, 1.0)]
    >>> layers.append(PipelineLayer("c", 1, 2, gradient_bytes=9e9))
    >>> pipedream(PipelineChain(tuple(layers)), Machine((Level(3, 1e9),))).replicas
    '2-1'
    """
    time = chain.total("forward") + chain.total("backward")
    unit = _between(time)
    levels: list[_Level] = []
    for level in machine.levels:
        top = level is machine.levels[-1]
        levels.append(_Level.solved(chain, level, unit, overlap=overlap, rows=1 if top else len(chain)))
        unit = levels[-1].best
    stages = tuple(
        Stage(last - first + 1, len(gpus), gpus=gpus) for first, last, gpus in _stages(levels, 0, len(chain) - 1)
    )
    return Plan("pipedream", stages, float(unit[0, -1]) / chain.micro_batch_size, chain.micro_batch_size)


def stage_seconds(unit: Floats, weights: Floats, units: int, bandwidth: float, *, overlap: bool) -> Floats:
    """Return T^k(i->j, m) for m *units*: *unit* is A^(k-1)(i->j), *weights* the sum of |w_l|."""
    summed = 4 * (units - 1) / units * weights / bandwidth
    return np.asarray((np.maximum(unit, summed) if overlap else unit + summed) / units)


@dataclass(frozen=True)
class _Level:
    """The solution of a level for the layers i to j on all of its units: *best* seconds by [i, j].

    *choices*: by number of units m, the first layer of the last stage and its units by [i, j], or 0 units if the last
    stage is the only one. There are two of each: [0] where nothing leaves layer j, [1] where its output crosses a cut.
    """

    units: int
    best: Floats
    choices: tuple[tuple[_Choice, _Choice], ...]

    @classmethod
    def solved(cls, chain: PipelineChain, level: Level, unit: Floats, *, overlap: bool, rows: int) -> _Level:
        """Solve for the first *rows* layers as first layer."""
        weights = _between(chain.total("gradient_bytes"), nothing=0.0)
        stage = [stage_seconds(unit, weights, m, level.bandwidth, overlap=overlap) for m in range(1, level.count + 1)]
        transfer = 2 * chain.outputs / level.bandwidth
        cut: list[Floats] = []  # the bottleneck of m units, with the transfer behind layer j
        choices: list[tuple[_Choice, _Choice]] = []
        for m in range(1, level.count + 1):
            last, within = _Choice(stage[m - 1][:rows]), _Choice(np.maximum(stage[m - 1], transfer / m)[:rows])
            for own in range(1, m):
                for s in range(len(chain) - 1):
                    tail = np.maximum(stage[own - 1][s + 1, s + 1 :], transfer[s] / own)
                    seconds = np.maximum(cut[m - own - 1][: s + 1, s, None], tail)
                    last.improve(seconds, s, own)
                    within.improve(np.maximum(seconds, transfer[s + 1 :] / own), s, own)
            cut.append(within.seconds)
            choices.append((last, within))
        return cls(level.count, choices[-1][0].seconds, tuple(choices))

    def stages(self, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first layer, last layer, first unit, units) of each stage of *first* to *last*, last stage first."""
        m, crosses = self.units, 0
        while m:
            choice = self.choices[m - 1][crosses]
            own = int(choice.units[first, last]) or m
            begin = int(choice.before[first, last]) + 1 if own < m else first
            yield begin, last, m - own, own
            last, m, crosses = begin - 1, m - own, 1


class _Choice:
    """The best *seconds* by [i, j] so far, the last layer *before* the last stage, and the *units* of that stage."""

    def __init__(self, single: Floats) -> None:
        self.seconds = single.copy()
        self.before = np.zeros(single.shape, np.int64)
        self.units = np.zeros(single.shape, np.int64)

    def improve(self, seconds: Floats, before: int, units: int) -> None:
        """Take *seconds* where they are less; their rows begin at layer 0, their columns behind layer *before*."""
        place = np.s_[: len(seconds), before + 1 :]
        better = seconds < self.seconds[place] * EQUAL
        self.seconds[place][better] = seconds[better]
        self.before[place][better] = before
        self.units[place][better] = units


def _between(total: Floats, nothing: float = np.inf) -> Floats:
    """Return the sum over the layers i to j by [i, j], from running sums; *nothing* for i > j."""
    sums = total[None, 1:] - total[:-1, None]
    return np.where(np.tri(len(sums), k=-1, dtype=bool), nothing, sums)


def _stages(levels: list[_Level], first: int, last: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return (first layer, last layer, GPUs) of each stage of the layers *first* to *last* on a machine of *levels*.

    Replica q of a stage on m units is on unit q mod m, so that a micro-batch stays within a unit.
    """
    if not levels:
        return [(first, last, (0,))]
    *inner, level = levels
    size = int(np.prod([below.units for below in inner], dtype=np.int64))
    found: list[tuple[int, int, tuple[int, ...]]] = []
    for begin, end, unit, own in reversed([*level.stages(first, last)]):
        for a, b, gpus in _stages(inner, begin, end):
            found.append((a, b, tuple((unit + q) * size + gpu for gpu in gpus for q in range(own))))
    return found
