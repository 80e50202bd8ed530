"""How many simulated ops a second the engine manages, beside the timeouts that bare SimPy manages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from time import process_time

from simpy import Environment, Timeout

from scenarios import Scenario
from simulator.cluster import Cluster
from simulator.engine.simulate import simulate
from simulator.schedule import Schedule
from simulator.timeline import Timeline
from simulator.transport.nccl import nccl
from topologies.uniform import uniform
from workloads.compute import compute
from workloads.parallelism.pipeline import pipeline_parallel
from workloads.pipelines.one_f_one_b import one_f_one_b
from workloads.unit import unit_model

TIMEOUTS, PROCESSES = 200_000, 100
ROUNDS = 3
"""Each figure is the best of so many, in seconds of the processor: what else the machine does only ever slows it."""


@dataclass(frozen=True)
class Speed:
    """*count* of something in *seconds*."""

    name: str
    count: int
    seconds: float

    @property
    def rate(self) -> float:
        """Per second."""
        return self.count / self.seconds


def bare_simpy() -> Speed:
    """Processes, as many as 100 GPUs have, that wait again and again: what SimPy costs without us."""

    def wait(env: Environment, seconds: float) -> Generator[Timeout, None, None]:
        for _ in range(TIMEOUTS // PROCESSES):
            yield env.timeout(seconds)

    def once() -> int:
        env = Environment()
        for number in range(PROCESSES):
            env.process(wait(env, 1.0 + number / PROCESSES))
        env.run()
        return TIMEOUTS

    return _best("bare SimPy timeouts", once)


def engine() -> Iterator[tuple[Speed, Speed]]:
    """The engine on each of `PROGRAMS`, and bare SimPy right before it."""
    for name, made in PROGRAMS.items():
        simulated, bare = made(), bare_simpy()
        yield _best(name, lambda: simulated().ops), bare  # noqa: B023 - called before the next round


def private_compute() -> Callable[[], Timeline]:
    """One GPU computes 40,000 layers that nothing else touches."""
    model = unit_model(100, 1e-3, 2e-3)
    return _simulated(compute(model, one_f_one_b(1, 200), micro_batch_size=1), uniform(1, 1e9, 0.0))


def ddp(nodes: int, transport: str, *, fold: bool = False) -> Callable[[], Timeline]:
    """ResNet-50, eight micro-batches: under nccl a computation meets the collectives on its GPU, under ideal not."""
    changes = {
        "cluster.nodes": nodes,
        "training.micro_batch_size": 8,
        "training.global_batch_size": 4 * nodes * 64,
        "network.transport": transport,
    }
    scenario = Scenario.load("zhores_resnet50_ddp", changes)
    schedule, cluster = scenario.schedule(), scenario.cluster()
    library = nccl() if transport == "nccl" else None
    return lambda: simulate(schedule, cluster, transport=library, fold=fold)


def pipeline(stages: int, micro_batches: int) -> Callable[[], Timeline]:
    """One layer a stage: two computations, two sends and two receives for each micro-batch."""
    model = unit_model(stages, 1e-3, 2e-3, activations=1e6)
    layers = [[layer] for layer in model.layers]
    schedule = compute(model, one_f_one_b(stages, micro_batches), micro_batch_size=1, stages=layers)
    return _simulated(pipeline_parallel(schedule, model, micro_batch_size=1), uniform(stages, 10e9, 5e-6))


def _simulated(schedule: Schedule, cluster: Cluster) -> Callable[[], Timeline]:
    return lambda: simulate(schedule, cluster, fold=False)


def _best(name: str, run: Callable[[], int]) -> Speed:
    best = Speed(name, 0, float("inf"))
    for _ in range(ROUNDS):
        begin = process_time()
        count = run()
        best = min(best, Speed(name, count, process_time() - begin), key=lambda speed: speed.seconds)
    return best


PROGRAMS: dict[str, Callable[[], Callable[[], Timeline]]] = {
    "private compute stream, 1 GPU": private_compute,
    "DDP, ideal, 4 GPUs of Zhores": partial(ddp, 1, "ideal"),
    "DDP, ideal, 100 GPUs of Zhores": partial(ddp, 25, "ideal"),
    "DDP, nccl, 4 GPUs of Zhores": partial(ddp, 1, "nccl"),
    "DDP, nccl, 100 GPUs of Zhores": partial(ddp, 25, "nccl"),
    "DDP, nccl, 100 GPUs of Zhores, folded": partial(ddp, 25, "nccl", fold=True),
    "pipeline 1F1B, 4 stages x 256": partial(pipeline, 4, 256),
    "pipeline 1F1B, 64 stages x 256": partial(pipeline, 64, 256),
}
"""What makes a simulation ready to run; every rank is simulated for itself unless folded."""
