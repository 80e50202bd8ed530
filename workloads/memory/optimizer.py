"""The optimizer step: it reads gradients and updates parameters and its own states. Its cost is the bytes it moves.

State of mixed precision: 16-bit parameters and gradients beside fp32 master weights and fp32 states, 2 + 2 + 12 = 16
bytes per parameter with Adam (Rajbhandari et al. 2020, "ZeRO", arXiv:1910.02054, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil

from simulator.errors import ScenarioError
from simulator.kernel import BYTES, Kernel, memory_bound
from simulator.lookup import nearest
from simulator.operation import Operation
from workloads.operators.parameter import ParameterTensor

UPDATE = Operation("optimizer step", "optimizer")

CHUNK = 65536 * 320
"""Elements of one multi-tensor launch: blocks of 65,536, at most 320 of them (PyTorch,
aten/src/ATen/native/cuda/MultiTensorApply.cuh, kChunkSize and depth_to_max_blocks)."""

QUANTISATION_BLOCK = 2048
"""Elements that share one fp32 scale in a state of 8 bits (Dettmers et al. 2022, arXiv:2110.02861, section 2.1)."""


@dataclass(frozen=True, slots=True)
class _Optimizer:
    """*states* kept per parameter, of *state_bytes* each.

    *unfused*: passes over fp32 memory (reads plus writes of one element) of torch's foreach implementation, and
    *launches*, how many multi-tensor kernels make them.
    """

    states: int
    state_bytes: float
    unfused: int
    launches: int


# Passes and launches are counted in torch/optim (2.3): adam.py _multi_tensor_adam (lerp 3, mul 2, addcmul 3, sqrt 2,
# div 2, add 2, addcdiv 4), sgd.py _multi_tensor_sgd (momentum: mul 2, add 3, add 3; without: add 3). bitsandbytes
# offers its 8-bit optimizers as one kernel only.
_OPTIMIZERS: Mapping[str, _Optimizer] = {
    "adam": _Optimizer(2, 4.0, 18, 7),
    "momentum": _Optimizer(1, 4.0, 8, 3),
    "sgd": _Optimizer(0, 0.0, 3, 1),
    "adam8bit": _Optimizer(2, 1.0 + 4.0 / QUANTISATION_BLOCK, 0, 1),
}

OPTIMIZERS = tuple(_OPTIMIZERS)
"""The known optimizers."""


def state_bytes(optimizer: str, precision: str, gradient_dtype: str | None = None) -> dict[str, float]:
    """Bytes per parameter held all step, by category of memory: parameters, gradients, optimizer.

    *precision* ``bf16`` and ``fp16`` keep fp32 master weights, counted with the optimizer; *gradient_dtype* is
    *precision* unless given. Raises `ScenarioError` for an unknown name.

    >>> state_bytes("adam", "fp16")
    {'parameters': 2.0, 'gradients': 2.0, 'optimizer': 12.0}
    """
    kind = _find(optimizer)
    master = 0.0 if _width(precision) == 4 else 4.0
    return {
        "parameters": float(_width(precision)),
        "gradients": float(_width(gradient_dtype or precision)),
        "optimizer": master + kind.states * kind.state_bytes,
    }


def resident_states(
    tensors: Iterable[ParameterTensor], optimizer: str, precision: str, gradient_dtype: str | None = None
) -> dict[str, float]:
    """Bytes that a rank with *tensors* holds all step, by category of memory; arguments as of `state_bytes`.

    Frozen tensors have parameters only. Copies of weights in fewer bits count with the parameters.
    """
    own = list(tensors)
    held = state_bytes(optimizer, precision, gradient_dtype)
    trained = sum(tensor.count for tensor in own if tensor.trainable)
    resident = {category: nbytes * trained for category, nbytes in held.items()}
    resident["parameters"] = sum((held["parameters"] + tensor.copy_bytes) * tensor.count for tensor in own)
    return resident


def copied_gradient_bytes(gradient_dtype: str, *, unfused_update: bool) -> float:
    """Bytes per parameter of the fp32 gradients that are held during an optimizer step only.

    They are the main gradients of Megatron-LM and of DeepSpeed, copies of gradients that are not fp32 (Megatron-LM,
    core/optimizer/optimizer.py, ``_copy_model_grads_to_main_grads``; ``zero_grad`` releases them; DeepSpeed,
    runtime/zero/stage_1_and_2.py, ``single_grad_partition``).

    >>> copied_gradient_bytes("fp16", unfused_update=True), copied_gradient_bytes("fp32", unfused_update=True)
    (4.0, 0.0)
    """
    return 4.0 if unfused_update and _width(gradient_dtype) != 4 else 0.0


def optimizer_kernels(
    parameters: float,
    optimizer: str,
    precision: str,
    gradient_dtype: str | None = None,
    *,
    fused: bool = True,
    unfused_update: bool = False,
    flat_update: bool = False,
) -> tuple[Kernel, ...]:
    """The kernels of one optimizer step over *parameters* (how many), none if there are none.

    *fused*: every value is read and written once; else as often as torch's foreach implementation does.
    *unfused_update*: the work around a fused update has kernels of its own, as in Megatron-LM (optimizer/optimizer.py):
    gradients are copied to fp32 unless they are fp32, unscaled and checked in fp16, and read for their norm; weights
    are copied back. *flat_update*: an fp32 copy of each 16-bit gradient is made and summed first to find an overflow,
    and gradients are copied once more to a flat tensor, as in DeepSpeed (runtime/utils.py, ``CheckOverflow``;
    runtime/fp16/fused_optimizer.py, ``step``). A norm above the limit costs Megatron-LM one more pass, which is not
    counted. Raises `ScenarioError` for an unknown optimizer.
    """
    kind = _find(optimizer)
    if not parameters:
        return ()
    gradient, half = _width(gradient_dtype or precision), _width(precision)
    copy = 0 if half == 4 else half
    launches = ceil(parameters / CHUNK)
    update = 2 * 4.0 + 2 * kind.states * kind.state_bytes
    if unfused_update:
        casts = (gradient + 4 if gradient != 4 else 0) + (4 + copy if copy else 0)
        check = 8 if precision == "fp16" else 0
        flat = (gradient + 4) + 4 + 2 * 4 if flat_update and gradient != 4 else 0
        passes = 2 + (gradient != 4) + bool(copy) + bool(check) + 3 * bool(flat)
        return (
            memory_bound(
                parameters * (4.0 + 4.0 + update + casts + check + flat), launches=passes * launches, operation=UPDATE
            ),
        )
    if fused or not kind.unfused:
        # the gradient is read; weights and states are read and written; the 16-bit copy is written
        return (memory_bound(parameters * (gradient + update + copy), launches=launches, operation=UPDATE),)
    # a 16-bit gradient is first cast to fp32, and the updated weights are cast back
    casts = (gradient + 4 if gradient != 4 else 0) + (4 + copy if copy else 0)
    passes = kind.launches + (gradient != 4) + bool(copy)
    return (memory_bound(parameters * (4.0 * kind.unfused + casts), launches=passes * launches, operation=UPDATE),)


def _find(optimizer: str) -> _Optimizer:
    if optimizer not in _OPTIMIZERS:
        raise ScenarioError(
            f'unknown optimizer "{optimizer}"; there are: {", ".join(nearest(optimizer, [*OPTIMIZERS]))}'
        )
    return _OPTIMIZERS[optimizer]


def _width(precision: str) -> int:
    if precision not in BYTES:
        raise ScenarioError(f'unknown precision "{precision}"; there are: {", ".join(BYTES)}')
    return BYTES[precision]
