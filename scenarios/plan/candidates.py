"""Ways to distribute a model, and the memory that each needs on a GPU, reserved memory included."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from scenarios.build.built import BuiltScenario
from scenarios.build.schedule import gradient_dtype, training_schedule
from scenarios.results.memory_need import MemoryNeed, memory_need
from scenarios.specification.parallelism import ParallelismSection
from scenarios.specification.training import Training
from simulator.errors import ScenarioError, ScheduleError
from workloads.composition import degrees, layouts
from workloads.model import Model
from workloads.parallelism import DataMethod
from workloads.parallelism.ddp import DistributedDataParallel
from workloads.parallelism.zero import Zero
from workloads.stages import ENDS


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to distribute the model: the degrees *tp*, *pp*, *dp*, the *stage* of ZeRO, and the *need* of memory."""

    tp: int
    pp: int
    dp: int
    stage: int
    need: MemoryNeed

    @property
    def nbytes(self) -> float:
        """Bytes that a GPU needs at most, reserved memory included."""
        return self.need.nbytes

    @property
    def name(self) -> str:
        """The candidate as text, such as ``tp 8 x dp 16``."""
        if self.stage:
            return f"ZeRO-{self.stage} over dp {self.dp}"
        cut = [f"{axis} {size}" for axis, size in (("tp", self.tp), ("pp", self.pp)) if size > 1]
        return " x ".join([*cut, f"dp {self.dp}"])


@dataclass(frozen=True)
class MemoryBudget:
    """The *capacity* of a GPU (bytes), the number of *gpus*, and what needs the memory: *model* and *training*.

    *node*: the largest number of GPUs in a node.
    """

    scenario: BuiltScenario
    model: Model
    training: Training
    capacity: float
    gpus: int
    node: int

    def gradient_dtype(self, stage: int = 0) -> str:
        """Return the type in which gradients are accumulated under ZeRO of that *stage*."""
        data = _data(self.scenario.specification.parallelism.data, stage)
        return gradient_dtype(self.training, data, self.scenario.software)

    def fits(self, candidate: Candidate) -> bool:
        """Return whether a GPU has the memory that *candidate* needs."""
        return candidate.need.fits

    def candidate(self, tp: int = 1, pp: int = 1, stage: int = 0, **training: Any) -> Candidate:
        """Return the candidate of these degrees, with an upper bound of the memory of a GPU.

        A pipeline runs 1F1B over as many micro-batches as it has stages. The number of replicas is the largest that the
        GPUs allow and that divides the batch. *training* changes keys of that section. Raises `ScenarioError` or
        `ScheduleError` if the model cannot be split so.
        """
        specification, derived = self.scenario.specification, self.scenario.derived
        changed = self.training.model_copy(update=training)
        samples = training.get("micro_batch_size") or derived.micro_batch_size
        shares, most = max(1, self.training.global_batch_size // samples), max(1, self.gpus // (tp * pp))
        dp = next(replicas for replicas in range(min(shares, most), 0, -1) if shares % replicas == 0)
        parallelism = ParallelismSection(
            tp=tp,
            sequence_parallel=tp > 1 and specification.parallelism.sequence_parallel,
            pp=pp,
            layout="balanced" if pp > 1 else None,
            dp=dp,
            data=_data(specification.parallelism.data, stage),
        )
        schedule = training_schedule(
            specification.model_copy(update={"parallelism": parallelism, "training": changed}),
            self.model,
            self.scenario.software,
            replace(
                derived,
                degrees=degrees(list(parallelism.parts.values()), self.gpus),
                layouts=layouts(list(parallelism.parts.values()), self.gpus, parallelism.numbering),
                micro_batch_size=samples,
                micro_batches=pp,
                by_stage=None,
            ),
            self.scenario.document,
            self.scenario.cluster(),
        )
        devices = self.scenario.cluster().gpus[: schedule.mesh.world_size]
        return Candidate(tp, pp, dp, stage, memory_need(self.scenario, schedule, devices=devices))


def _data(given: DataMethod, stage: int) -> Zero:
    """Return ZeRO of that *stage* (0: plain data parallelism) with the bucket size of *given*."""
    bucket = given.bucket if isinstance(given, DistributedDataParallel | Zero) else None
    return Zero.model_validate({"method": "zero", "stage": stage, **({"bucket": f"{bucket:.0f} B"} if bucket else {})})


def memory_budget(scenario: BuiltScenario) -> MemoryBudget:
    """Return the memory budget of *scenario*. Raises `ScenarioError` if it trains no model."""
    model, training, cluster = scenario.model, scenario.specification.training, scenario.cluster()
    if model is None or training is None:
        raise ScenarioError(f"{scenario.name} measures a collective; there is no model to give advice on")
    capacity = min(cluster.accelerator(gpu).memory_bytes for gpu in cluster.gpus)
    nodes: dict[int | str, int] = {}
    for gpu in cluster.gpus:
        nodes[cluster.node_of(gpu)] = nodes.get(cluster.node_of(gpu), 0) + 1
    return MemoryBudget(scenario, model, training, capacity, len(cluster.gpus), max(nodes.values()))


def candidates(budget: MemoryBudget) -> list[Candidate]:
    """Return the candidates: data parallelism, ZeRO-1, 2, 3, tensor parallelism in a node, pipeline across nodes.

    Only data parallelism is tried if it fits. Of the last two kinds the smallest degree that fits is taken, else the
    largest.
    """
    plain = budget.candidate()
    if budget.fits(plain):
        return [plain]
    sharded = [budget.candidate(stage=stage) for stage in (1, 2, 3)] if plain.dp > 1 else []
    degrees = [2**n for n in range(1, budget.node.bit_length()) if 2**n <= budget.node]
    tensor = _first_fit(budget, degrees, lambda tp: budget.candidate(tp=tp))
    inside = tensor[-1].tp if tensor else 1
    between = sum(layer.kind not in ENDS for layer in budget.model.layers)
    stages = [2**n for n in range(1, between.bit_length()) if 2**n <= min(between, budget.gpus // inside)]
    pipeline = [] if tensor and budget.fits(tensor[-1]) else stages
    cut = _first_fit(budget, pipeline, lambda pp: budget.candidate(tp=inside, pp=pp))
    return [plain, *sharded, *tensor, *cut]


def _first_fit(budget: MemoryBudget, degrees: Iterable[int], candidate: Callable[[int], Candidate]) -> list[Candidate]:
    """Return the first of *degrees* that fits, else the last one that is possible, if any."""
    found: list[Candidate] = []
    for degree in degrees:
        try:
            found = [candidate(degree)]
        except (ScenarioError, ScheduleError):
            continue
        if budget.fits(found[0]):
            break
    return found
