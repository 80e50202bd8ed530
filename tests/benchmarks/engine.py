"""Ops per second of the engines, beside timeouts per second of bare SimPy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from time import process_time

from simpy import Environment, Timeout

from clustersim.scenarios import Scenario
from clustersim.scenarios.run.running import communicator, variation
from clustersim.simulator.engine.compiled.execution import CompiledExecution
from clustersim.simulator.engine.compiled.lowering import lower
from clustersim.simulator.engine_choice import COMPILED_FIRST_FROM, COMPILED_FROM
from clustersim.simulator.simulate import SimulationRun
from tests.benchmarks.claims import JITTER
from tests.benchmarks.processes import measured

TIMEOUTS, PROCESSES = 200_000, 100
ROUNDS = 3
"""The number of runs; the best counts, in CPU seconds, since other load on the machine only slows a run."""

COMPILED_WANTED, SIMPY_WANTED = 3_000_000 / 700_000, 0.02
"""Targets in ops per timeout of bare SimPy. An op of the SimPy engine is several events of several processes."""


@dataclass(frozen=True)
class Speed:
    """*count* ops or timeouts in *seconds*."""

    name: str
    count: int
    seconds: float
    wanted: float = 0.0

    @property
    def rate(self) -> float:
        """Per second."""
        return self.count / self.seconds


def bare_simpy() -> Speed:
    """The speed of SimPy alone: as many processes as 100 GPUs have, each of which waits again and again."""

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
    """The speed of each of `LOADS`, and of bare SimPy right before it."""
    for name, (made, wanted) in LOADS.items():
        run, bare = made(), bare_simpy()
        yield _best(name, run, wanted), bare


def choice() -> Iterator[str]:
    """What `simulator.engine_choice` weighs: CPU time of loading and of compiling the engine, against SimPy's rate."""
    plain, load = (
        (sys.executable, "-c", "import numpy"),
        (sys.executable, "-c", "import clustersim.simulator.engine.compiled.event_loop"),
    )
    base, kept = measured(plain), measured(load)
    with TemporaryDirectory() as folder:
        fresh = measured(("env", f"NUMBA_CACHE_DIR={folder}", *load))
    rate = _best("", reference("hello", **UNFOLDED, **{"training.steps": 200})).rate
    for what, usage, least in (("loaded", kept, COMPILED_FROM), ("compiled and loaded", fresh, COMPILED_FIRST_FROM)):
        if usage and base:
            seconds = usage.processor - base.processor
            yield f"engine {what} in {seconds:.1f} s, SimPy's {rate * seconds:,.0f} ops; auto takes it from {least:,}"


def loop(scenario: str, **changes: object) -> Callable[[], int]:
    """The compiled event loop alone, without lowering; it keeps all spans."""
    lowering = lower(_simulation(scenario, changes, "compiled").setup)

    def run() -> int:
        CompiledExecution(lowering).run()
        return int(lowering.arrays.options["ops"][0])

    return run


def reference(scenario: str, **changes: object) -> Callable[[], int]:
    """The SimPy engine, with the timeline that is made of its outcome."""
    simulation = _simulation(scenario, changes, "simpy")

    def run() -> int:
        simulation.run()
        return simulation.ops

    return run


def _simulation(name: str, changes: dict[str, object], engine: str) -> SimulationRun:
    scenario = Scenario.load(name, changes)
    fold, network = scenario.specification.simulation.fold, communicator(scenario)
    return SimulationRun(scenario.schedule(), network, scenario.software, variation(scenario), fold=fold, engine=engine)


def _best(name: str, run: Callable[[], int], wanted: float = 0.0) -> Speed:
    best = Speed(name, 0, float("inf"), wanted)
    for _ in range(ROUNDS):
        begin = process_time()
        count = run()
        best = min(best, Speed(name, count, process_time() - begin, wanted), key=lambda speed: speed.seconds)
    return best


REPLICAS = {"cluster.nodes": 32, "parallelism.dp": 4, "training.global_batch_size": 128}
UNFOLDED = {"simulation.fold": False}

LOADS: dict[str, tuple[Callable[[], Callable[[], int]], float]] = {
    "compiled, GPT-3 on 1,024 GPUs": (partial(loop, "gpt3_175b_1024a100"), COMPILED_WANTED),
    "compiled, MegaScale on 256 GPUs, jitter": (
        partial(loop, "megascale_175b_12288a100", **REPLICAS, **JITTER),
        COMPILED_WANTED,
    ),
    "compiled, ResNet-50 on 100 GPUs, unfolded": (partial(loop, "zhores_resnet50_ddp", **UNFOLDED), 0.0),
    "SimPy, ResNet-50 on 100 GPUs": (partial(reference, "zhores_resnet50_ddp"), SIMPY_WANTED),
    "SimPy, ResNet-50 on 100 GPUs, unfolded": (partial(reference, "zhores_resnet50_ddp", **UNFOLDED), SIMPY_WANTED),
    "SimPy, GPT 6.7B on 64 GPUs": (partial(reference, "gpt_6_7b_64a100"), SIMPY_WANTED),
}
"""By name: a function that prepares a run, and the target in ops per timeout of bare SimPy (0: none)."""
