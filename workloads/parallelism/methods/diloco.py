"""DiLoCo: replicas take many inner steps alone; an outer optimizer then takes a step with the sum of their changes.

Douillard et al. 2023, "DiLoCo" (arXiv:2311.08105): the outer gradient of a replica is the weights of the last outer
step minus its own; the mean over all replicas is all-reduced, and the outer optimizer, by default SGD with Nesterov
momentum, moves the old weights, from which all replicas go on. Every rank keeps a copy of the old weights and the
states of the outer optimizer, all in fp32.

Douillard et al. 2025, "Streaming DiLoCo" (arXiv:2501.18512): weights are divided into *fragments* of layers, and a
period exchanges one fragment after the other, at equal distances, so that less is sent at a time. With a *delay* an
all-reduce runs beside so many inner steps; its result is then mixed with the weights that went on meanwhile. Outer
gradients may have few bits.

A run goes through a whole period; the step time is the mean over it. With a delay, a period before and a period after
it are simulated and not measured, so that exchanges which begin in one period and end in the next one count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil
from typing import Any, Literal

from clustersim.simulator.hardware.kernel import BYTES, Kernel, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.quantities import Count, Index
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.gradients import map_replicas
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.parallelism._parallelism import Parallelism, TrainingStep
from clustersim.workloads.parallelism.methods._local_steps import LocalSteps, after_batches, held
from clustersim.workloads.pipelines._row_patterns import SteadyState

FP32 = 4.0
"""Bytes of a weight as optimizers hold it, and of an element of the outer optimizer's states."""

STATES = {"nesterov": 1, "momentum": 1, "sgd": 0, "adam": 2}
"""States of an outer optimizer for each parameter (arXiv:2311.08105, section 3.3, compares these four)."""

BESIDE = f"{REPLICAS}.outer"
"""The stream of exchanges with a delay: a communicator of their own, beside that of gradients within a subgroup."""

WIDTH = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5}
"""Bytes of an element of the outer gradients; fp4 is E3M0 (arXiv:2501.18512, section 2.3)."""


class DiLoCo(LocalSteps):
    """Every replica takes inner steps of its own; after a period an outer optimizer moves the weights of all."""

    method: Literal["diloco"]
    """diloco: an outer optimizer takes a step with the mean change of all replicas after a period of inner steps."""
    every: Count
    """Inner steps of a period. Required."""
    outer: Literal["nesterov", "momentum", "sgd", "adam"] = "nesterov"
    """The outer optimizer."""
    dtype: Literal["fp32", "bf16", "fp16", "fp8", "fp4"] = "fp32"
    """In which outer gradients are all-reduced."""
    fragments: Count = 1
    """Parts of the weights that are exchanged one after the other within a period (Streaming DiLoCo)."""
    pattern: Literal["strided", "sequential"] = "strided"
    """The layers of a fragment: every n-th one, or neighbours."""
    delay: Index = 0
    """Inner steps beside which an exchange runs, before its result is applied; 0: everything waits for it."""

    def check(self, others: Mapping[str, Parallelism]) -> None:
        """An exchange is over before the next one of its fragment begins; each fragment has a step of its own."""
        super().check(others)
        if self.fragments > self.every:
            raise Fault(
                ("data", "fragments"), f"must be at most {self.every}, the steps of a period, not {self.fragments}"
            )
        if self.delay >= self.every:
            raise Fault(("data", "delay"), f"must be below {self.every}, the steps of a period, not {self.delay}")

    def period(self, steps: int) -> SteadyState:
        """Whole periods; with a delay one before and one after them."""
        around = self.every if self.delay else 0
        return SteadyState(around, ceil(steps / self.every) * self.every, around)

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """Take an outer step after each period."""
        batches = schedule.batches
        schedule = self.within_groups(schedule, step)
        outer = _Outer(step.model, self.outer, self.dtype, mixes=self.delay > 0)

        def stepped(program: Program, _: Mapping[str, int]) -> Program:
            sizes = held(program, step.model)
            fragments = self._fragments(sizes)
            program = after_batches(program, batches, lambda batch: self._outer_steps(outer, fragments, batch, batches))
            kept = FP32 * (1 + STATES[self.outer]) * sum(sizes)
            resident = {**program.resident, "optimizer": program.resident.get("optimizer", 0.0) + kept}
            return replace(program, resident=resident)

        return map_replicas(schedule, step.model, stepped)

    def _fragments(self, layers: list[int]) -> list[int]:
        """The parameters of each fragment, from those of the *layers* of a rank."""
        count = self.fragments
        if self.pattern == "strided":
            return [sum(layers[first::count]) for first in range(count)]
        return [sum(layers[len(layers) * n // count : len(layers) * (n + 1) // count]) for n in range(count)]

    def _outer_steps(self, outer: _Outer, fragments: list[int], batch: int, batches: int) -> Iterator[Op]:
        """What follows inner step *batch*: the exchanges that begin, and outer steps with those that end."""
        for number in self._exchanged(batch):
            yield from outer.exchange(f"outer {batch}.{number}", fragments[number])
        last = batch == batches - 1
        for begun in range(max(0, batch - self.delay), batch + 1 if last else batch - self.delay + 1):
            for number in self._exchanged(begun):
                yield outer.update(f"outer {begun}.{number}", fragments[number])

    def _exchanged(self, batch: int) -> list[int]:
        """The fragments whose exchange begins after inner step *batch*; the last ends the period."""
        place = batch % self.every + 1
        return [n for n in range(self.fragments) if self.every * (n + 1) // self.fragments == place]

    def facts(self) -> Mapping[str, Any]:
        """The period and the outer optimizer."""
        return {"inner_steps": self.every, "outer_optimizer": self.outer}


@dataclass(frozen=True)
class _Outer:
    """Makes the ops of an outer step; *mixes*: its result is mixed with weights that went on."""

    model: Model
    optimizer: str
    dtype: str
    mixes: bool

    def exchange(self, name: str, parameters: int) -> Iterator[Op]:
        """The outer gradient of so many *parameters* and its all-reduce: blocking, or beside what follows."""
        nbytes = WIDTH[self.dtype] * parameters
        # old and new weights are read, their difference is written
        difference = memory_bound(2 * FP32 * parameters + nbytes)
        yield Compute(name=f"{name}.gradient", kernels=self._kernels(difference), allocates={"buffers": nbytes})
        reduced = Collective(name=name, kind="all_reduce", over=REPLICAS, nbytes=nbytes)
        yield replace(reduced, stream=BESIDE, after=(f"{name}.gradient",)) if self.mixes else reduced

    def update(self, name: str, parameters: int) -> Op:
        """The outer step over so many *parameters*."""
        nbytes = WIDTH[self.dtype] * parameters
        # states and old weights are read and written, new weights are written and, to be mixed, read
        passes = 2 * STATES[self.optimizer] + 2 + 1 + self.mixes
        width = BYTES[self.model.precision]
        copy = width if width < FP32 else 0.0
        kernel = memory_bound((passes * FP32 + copy) * parameters + nbytes)
        after = (name,) if self.mixes else ()
        return Compute(name=f"{name}.update", kernels=self._kernels(kernel), after=after, frees={"buffers": nbytes})

    def _kernels(self, kernel: Kernel) -> tuple[Kernel, ...]:
        """*kernel*, unless the durations of the model are given."""
        return (kernel,) if self.model.optimizer_seconds is None else ()
