"""Where the states of training live, and what one program has of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.program import Program
from clustersim.workloads.data_parallel.buckets import Weights
from clustersim.workloads.data_parallel.gradients import updated_stages, weights_by_stage
from clustersim.workloads.memory.optimizer import BY_SHAPE, BY_TENSOR, Optimizer, state_bytes
from clustersim.workloads.operators.model import Model

TO_GPU, TO_HOST = "offload.in", "offload.out"
"""Streams of copies to the GPU and to the host: a GPU has a copy engine for each direction."""

ON_HOST = "offload.host"
"""The stream of computations on the host."""

BEGIN = "offload.begin"
"""The name of an op without work at the begin of a step, which copies await that need nothing else of it."""

READ, WRITE = "nvme.read", "nvme.write"
"""Streams of copies from and to NVMe drives."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where *optimizer* states, *gradients* and *parameters* live: ``gpu``, ``host`` or ``nvme``.

    - *fraction*: the share of the optimizer states that leaves the GPU.
    - *delayed*: the host updates with the gradients of the step before.
    - *fused*: the update on the host is one pass over all tensors, else torch's operations one by one.
    - *overlap*: copies run beside computation.
    - *full_precision*: parameters and gradients cross to the host in fp32, and the host adds gradients up, as in FSDP;
      else in the precision of the model, and the GPU adds them up, as in DeepSpeed.
    - *master_on_gpu*: the GPU keeps fp32 master weights beside those of the host, which come back in fp32 and are cast
      there, as in Megatron Core (optimizer/cpu_offloading/hybrid_optimizer.py, ``param_update_in_fp32``).
    """

    optimizer: str = "gpu"
    gradients: str = "gpu"
    parameters: str = "gpu"
    fraction: float = 1.0
    delayed: bool = False
    fused: bool = True
    overlap: bool = True
    full_precision: bool = False
    master_on_gpu: bool = False

    @property
    def crosses_in_fp32(self) -> bool:
        """True if parameters come back to the GPU in fp32."""
        return self.full_precision or self.master_on_gpu


@dataclass(frozen=True)
class HeldStates:
    """What a rank has of the states: the weights of its *stages*, and the *share* of the trained ones that it updates.

    *element*: bytes per parameter by category of memory. *parameter*, *gradient*: bytes of one as it crosses to the
    host. *optimizer*, *precision*: as in `state_bytes`.
    """

    stages: Mapping[int, Sequence[Weights]]
    share: float
    element: Mapping[str, float]
    parameter: int
    gradient: int
    optimizer: Optimizer
    precision: str

    def elements(self, stages: Sequence[int]) -> float:
        """Return the number of parameters of *stages* that the rank updates."""
        weights = (weights.trained for stage in stages for weights in self.stages.get(stage, ()))
        return self.share * sum(one.parameters for one in weights)

    def widening(self) -> float:
        """Return the bytes of parameters that cross to the GPU, by those that ranks gather; frozen ones cross as held.

        It is the mean over all layers.
        """
        width = BYTES[self.precision]
        weights = [one for own in self.stages.values() for one in own]
        gathered = sum(one.gathered(width) for one in weights)
        trained = sum(one.trained.gathered(width) for one in weights)
        return 1.0 + (self.parameter / width - 1.0) * trained / gathered


def held_by(
    program: Program, model: Model, optimizer: Optimizer, gradient_dtype: str, places: Places
) -> HeldStates | None:
    """Return what *program* has of the states of *model*; None if it updates nothing.

    Raises `ScenarioError` if the optimizer has no states that could leave the GPU, or no implementation on the host.
    """
    if optimizer.name in (*BY_SHAPE, *BY_TENSOR):
        raise ScenarioError(f"{optimizer.name} has no update on the host; take adam, or keep its states on the GPU")
    stages = weights_by_stage(program, model) if program.on == "gpu" else {}
    total = sum(weights.trained.parameters for own in stages.values() for weights in own)
    if not total or not updated_stages(program):
        return None
    element = state_bytes(optimizer, model.precision, gradient_dtype)
    if not element["optimizer"]:
        raise ScenarioError(f"{optimizer.name} in {model.precision} has no states that could leave the GPU; take adam")
    owned = program.resident["optimizer"] / element["optimizer"]
    full = BYTES["fp32"]
    parameter = full if places.crosses_in_fp32 else BYTES[model.precision]
    gradient = full if places.full_precision else BYTES[gradient_dtype]
    return HeldStates(stages, owned / total, element, parameter, gradient, optimizer, model.precision)


def with_places(program: Program, held: HeldStates, places: Places) -> Program:
    """Return *program* with its resident states where *places* has them; those on drives are in neither memory."""
    resident = dict(program.resident)
    away = resident["optimizer"] * places.fraction
    owned = resident["optimizer"] / held.element["optimizer"]
    master = BYTES["fp32"] if places.master_on_gpu and held.precision != "fp32" else 0
    resident["optimizer"] -= away - owned * places.fraction * master
    host = {"gradients": owned * places.fraction * held.gradient * (2 if places.delayed else 1)}
    if places.optimizer == "host":
        host["optimizer"] = away
    if places.gradients == "host":
        resident["gradients"] = resident.get("gradients", 0.0) * (1.0 - places.fraction)
    if places.parameters != "gpu":
        # trained parameters in fp32 are those of the optimizer
        doubled = owned * BYTES[held.precision] if places.full_precision and held.precision != "fp32" else 0.0
        kept = max(0.0, resident["parameters"] - doubled)
        host["parameters"] = kept if places.parameters == "host" else 0.0
        resident["parameters"] = 0.0
    on_host = {f"host.{category}": nbytes for category, nbytes in host.items() if nbytes}
    return replace(program, resident={**{name: n for name, n in resident.items() if n}, **on_host})
