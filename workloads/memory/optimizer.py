"""The optimizer step: what it reads and writes, its states, and its kernels for each kind of optimizer.

State of mixed precision: 16-bit parameters and gradients beside fp32 master weights and fp32 states, 2 + 2 + 12 = 16
bytes per parameter with Adam (Rajbhandari et al. 2020, "ZeRO", arXiv:1910.02054, section 3.1). Without master weights
a model cast to 16 bits is updated in place, and torch makes the states like their parameter (torch/optim/adam.py,
``_init_group``): 2 + 2 + 4.

Adafactor is counted in torch/optim (2.13): _adafactor.py, _multi_tensor_adafactor. Passes over a matrix: its norm 1,
norms of rows and of columns of the gradient 2, outer product 1, div 2, clamp 2, rsqrt 2, mul 3, norm of the update 1,
mul 2, add 3; over a vector: its norm 1, square 3 (of one tensor, which is read once: 2), lerp 3, clone 2, clamp 2,
rsqrt 2, mul 3, norm 1, mul 2, add 3. A first moment adds mul 2 and add 3.

Muon orthogonalises the momentum of each hidden matrix by five Newton-Schulz steps in bf16 (torch/optim/_muon.py):
A = X X^T, B = b A + c A A, X = a X + B X, with r rows and c >= r columns 4 r^2 c + 2 r^3 FLOPs each. Its elementwise
part: two lerps 3 + 3, cast, norm, div, decay 2, add 3. Under tensor parallelism each rank orthogonalises its own
shards (Megatron-LM, ``--muon-tp-mode blockwise``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, matmul, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.lookup import nearest
from clustersim.workloads.operators.operator import ParameterTensor

UPDATE = Operation("optimizer step", "optimizer")

NORMS = Operation("tensor norms", "optimizer")
"""The norms by which LARS and LAMB scale the step of each tensor."""

CHUNK = 65536 * 320
"""Elements of one multi-tensor launch: blocks of 65,536, at most 320 of them (PyTorch,
aten/src/ATen/native/cuda/MultiTensorApply.cuh, kChunkSize and depth_to_max_blocks)."""

FP32 = 4
"""Bytes of a master weight."""

QUANTISATION_BLOCK = 2048
"""Elements that share one fp32 scale in a state of 8 bits (Dettmers et al. 2022, arXiv:2110.02861, section 2.1)."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer by its *name*, and the precision of its states, *dtype*.

    Weights of 16 bits have fp32 *master* weights beside them, or are updated themselves.
    """

    name: str
    dtype: str = "fp32"
    master: bool = True


@dataclass(frozen=True, slots=True)
class _Optimizer:
    """*states* kept per parameter, of *state_bytes* each.

    *unfused*: passes over fp32 memory (reads plus writes of one element) of torch's foreach implementation, and
    *launches*, how many multi-tensor kernels make them. *norms*: passes over fp32 memory for the norms of each tensor
    and for what is kept until they are known, and *norm_launches*, how many kernels make them.
    """

    states: int
    state_bytes: float
    unfused: int
    launches: int
    norms: int = 0
    norm_launches: int = 0


# Passes and launches are counted in torch/optim (2.3): adam.py _multi_tensor_adam (lerp 3, mul 2, addcmul 3, sqrt 2,
# div 2, add 2, addcdiv 4), sgd.py _multi_tensor_sgd (momentum: mul 2, add 3, add 3; without: add 3). bitsandbytes
# offers its 8-bit optimizers as one kernel only. LARS reads weight and gradient once more for their norms (You et al.
# 2017, arXiv:1708.03888). LAMB (You et al. 2020, arXiv:1904.00962) as apex fuses it, csrc/multi_tensor_lamb.cu: beside
# what Adam reads and writes, the norms of weight and update read 1 + 1, the update is written and read, and the weight
# is read again: 5; its update is the same in both.
_OPTIMIZERS: Mapping[str, _Optimizer] = {
    "adam": _Optimizer(2, 4.0, 18, 7),
    "momentum": _Optimizer(1, 4.0, 8, 3),
    "sgd": _Optimizer(0, 0.0, 3, 1),
    "adam8bit": _Optimizer(2, 1.0 + 4.0 / QUANTISATION_BLOCK, 0, 1),
    "lars": _Optimizer(1, 4.0, 8, 3, norms=2, norm_launches=2),
    "lamb": _Optimizer(2, 4.0, 0, 1, norms=5, norm_launches=3),
}

ADAFACTOR, WITH_MOMENTUM, MUON = "adafactor", "adafactor_momentum", "muon"

BY_SHAPE = (ADAFACTOR, WITH_MOMENTUM, MUON)
"""Optimizers with states that depend on the shapes of tensors, see `moment_bytes`."""

BY_TENSOR = tuple(name for name, kind in _OPTIMIZERS.items() if kind.norms)
"""Optimizers that scale the step of each tensor by the ratio of two norms, that of its weight and another."""

OPTIMIZERS = (*_OPTIMIZERS, *BY_SHAPE)
"""The known optimizers."""


def moment_bytes(tensor: ParameterTensor, optimizer: str | Optimizer) -> float:
    """Bytes of the states of *tensor* beside master weights; none if it is frozen.

    Adafactor keeps a row and a column of second moments of a matrix (Shazeer and Stern 2018, arXiv:1804.04235, section
    3), and a first moment on request. Muon keeps a momentum of each hidden matrix and updates other tensors by AdamW
    (Jordan et al. 2024, kellerjordan.github.io/posts/muon). Raises `ScenarioError` for an unknown optimizer.

    >>> embedding = ParameterTensor(50_000 * 1_000, rows=50_000)
    >>> moment_bytes(embedding, "adafactor"), moment_bytes(embedding, "muon")
    (204000.0, 400000000.0)
    """
    if not tensor.trainable:
        return 0.0
    known = as_optimizer(optimizer)
    width = BYTES[known.dtype]
    if known.name in (ADAFACTOR, WITH_MOMENTUM):
        second = tensor.rows + tensor.count / tensor.rows if tensor.rows else tensor.count
        return float(width * (second + (tensor.count if known.name == WITH_MOMENTUM else 0)))
    if known.name == MUON:
        return float(width * tensor.count * (1 if tensor.hidden else 2))
    return tensor.count * _moments(known)


def as_optimizer(given: str | Optimizer) -> Optimizer:
    """*given*, with states in fp32 if it is a name. Raises `ScenarioError` for an unknown one."""
    known = Optimizer(given) if isinstance(given, str) else given
    if known.name not in OPTIMIZERS:
        near = ", ".join(nearest(known.name, [*OPTIMIZERS]))
        raise ScenarioError(f'unknown optimizer "{known.name}"; there are: {near}')
    return known


def _moments(known: Optimizer) -> float:
    """Bytes of the states of a parameter; those of 8 bits do not depend on the precision of others."""
    kind = _OPTIMIZERS[known.name]
    share = BYTES[known.dtype] / FP32 if kind.state_bytes == FP32 else 1.0
    return kind.states * kind.state_bytes * share


def state_bytes(optimizer: str | Optimizer, precision: str, gradient_dtype: str | None = None) -> dict[str, float]:
    """Bytes per parameter held all step, by category of memory: parameters, gradients, optimizer.

    Master weights are counted with the optimizer; *gradient_dtype* is *precision* unless given. Raises `ScenarioError`
    for an unknown name, or one of `BY_SHAPE`.

    >>> state_bytes("adam", "fp16"), state_bytes(Optimizer("adam", "bf16"), "bf16")["optimizer"]
    ({'parameters': 2.0, 'gradients': 2.0, 'optimizer': 12.0}, 8.0)
    >>> state_bytes(Optimizer("adam", "bf16", master=False), "bf16")
    {'parameters': 2.0, 'gradients': 2.0, 'optimizer': 4.0}
    """
    known = as_optimizer(optimizer)
    if known.name in BY_SHAPE:
        raise ScenarioError(f"the states of {known.name} depend on the shapes of tensors; there is no number for each")
    held = _held(known, precision, gradient_dtype)
    return {**held, "optimizer": held["optimizer"] + _moments(known)}


def _held(optimizer: Optimizer, precision: str, gradient_dtype: str | None) -> dict[str, float]:
    """Bytes per parameter without the moments of an optimizer, but with master weights."""
    return {
        "parameters": float(_width(precision)),
        "gradients": float(_width(gradient_dtype or precision)),
        "optimizer": 0.0 if _updated(optimizer, precision) == _width(precision) else 4.0,
    }


def _updated(optimizer: Optimizer, precision: str) -> int:
    """Bytes of a weight as the *optimizer* of a model in *precision* reads and writes it."""
    return FP32 if optimizer.master else _width(precision)


def resident_states(
    tensors: Iterable[ParameterTensor],
    optimizer: str | Optimizer,
    precision: str,
    gradient_dtype: str | None = None,
) -> dict[str, float]:
    """Bytes that a rank with *tensors* holds all step, by category of memory; arguments as of `state_bytes`.

    Frozen tensors have parameters only. Copies of weights in fewer bits count with the parameters.
    """
    own = list(tensors)
    held = _held(as_optimizer(optimizer), precision, gradient_dtype)
    trained = sum(tensor.count for tensor in own if tensor.trainable)
    return {
        "parameters": sum((held["parameters"] + tensor.copy_bytes) * tensor.count for tensor in own),
        "gradients": held["gradients"] * trained,
        "optimizer": held["optimizer"] * trained + sum(moment_bytes(tensor, optimizer) for tensor in own),
    }


def copied_gradient_bytes(gradient_dtype: str, *, unfused_update: bool) -> float:
    """Bytes per parameter of the fp32 gradients that are held during an optimizer step only.

    They are the main gradients of Megatron-LM and of DeepSpeed, copies of gradients that are not fp32 (Megatron-LM,
    core/optimizer/optimizer.py, ``_copy_model_grads_to_main_grads``; ``zero_grad`` releases them; DeepSpeed,
    runtime/zero/stage_1_and_2.py, ``single_grad_partition``).

    >>> copied_gradient_bytes("fp16", unfused_update=True), copied_gradient_bytes("fp32", unfused_update=True)
    (4.0, 0.0)
    """
    return 4.0 if unfused_update and _width(gradient_dtype) != 4 else 0.0


def foreach_bytes(optimizer: str | Optimizer) -> float:
    """Bytes per parameter that torch's foreach implementation holds during a step only.

    Adam has a list of the square roots of its second moments (torch/optim/adam.py, ``_multi_tensor_adam``: "foreach
    implementation uses ~ sizeof(params) more peak memory"); SGD updates in place.

    >>> foreach_bytes("adam"), foreach_bytes(Optimizer("adam", "bf16", master=False))
    (4.0, 2.0)
    """
    known = as_optimizer(optimizer)
    return _moments(known) / 2 if known.name == "adam" else 0.0


@dataclass(frozen=True, slots=True)
class Around:
    """The work around an update: *nbytes* for each parameter, by so many *passes*."""

    nbytes: float
    passes: int


def around(
    width: int, precision: str, gradient_dtype: str | None, *, unfused_update: bool = False, flat_update: bool = False
) -> Around:
    """Casts of gradients to weights of *width* bytes, which are updated, and of these back to *precision*.

    With *unfused_update* more, as of `optimizer_kernels`.
    """
    gradient, half = _width(gradient_dtype or precision), _width(precision)
    copy = 0 if half == width else half
    casts = (gradient + width if gradient != width else 0) + (width + copy if copy else 0)
    passes = (gradient != width) + bool(copy)
    if not unfused_update:
        return Around(casts, passes)
    check = 8 if precision == "fp16" else 0
    flat = (gradient + 4) + 4 + 2 * 4 if flat_update and gradient != FP32 else 0
    return Around(4.0 + casts + check + flat, 1 + passes + bool(check) + 3 * bool(flat))


def optimizer_kernels(
    parameters: float,
    optimizer: str | Optimizer,
    precision: str,
    gradient_dtype: str | None = None,
    *,
    fused: bool = True,
    unfused_update: bool = False,
    flat_update: bool = False,
) -> tuple[Kernel, ...]:
    """The kernels of one elementwise optimizer step over *parameters* (how many), none if there are none.

    *fused*: every value is read and written once; else as often as torch's foreach implementation does.
    *unfused_update*: the work around a fused update has kernels of its own, as in Megatron-LM (optimizer/optimizer.py):
    gradients are copied to fp32 unless they are fp32, unscaled and checked in fp16, and read for their norm; weights
    are copied back. *flat_update*: an fp32 copy of each 16-bit gradient is made and summed first to find an overflow,
    and gradients are copied once more to a flat tensor, as in DeepSpeed (runtime/utils.py, ``CheckOverflow``;
    runtime/fp16/fused_optimizer.py, ``step``). A norm above the limit costs Megatron-LM one more pass, which is not
    counted. Raises `ScenarioError` for an unknown optimizer, or one of `BY_SHAPE`.
    """
    known = as_optimizer(optimizer)
    if known.name in BY_SHAPE:
        raise ScenarioError(f"{known.name} is no elementwise optimizer; its kernels depend on the shapes of tensors")
    if not parameters:
        return ()
    kind, launches = _OPTIMIZERS[known.name], ceil(parameters / CHUNK)
    gradient, half, width = _width(gradient_dtype or precision), _width(precision), _updated(known, precision)
    update = 2.0 * width + 2 * _moments(known)
    beside = around(width, precision, gradient_dtype, unfused_update=unfused_update, flat_update=flat_update)
    if unfused_update:
        nbytes, passes = width + update + beside.nbytes, 1 + beside.passes
    elif fused or not kind.unfused:
        # the gradient is read; weights and states are read and written; the 16-bit copy is written
        nbytes, passes = gradient + update + (0 if half == width else half), 1
    else:
        # gradients are first cast to the weights' format, and the updated weights back; states in 16 bits save traffic
        less = 2.0 * (kind.states * width - _moments(known))
        nbytes, passes = width * kind.unfused - less + beside.nbytes, kind.launches + beside.passes
    made = memory_bound(parameters * nbytes, launches=passes * launches, operation=UPDATE)
    if not kind.norms:
        return (made,)
    norms = parameters * width * kind.norms
    return memory_bound(norms, launches=kind.norm_launches * launches, operation=NORMS), made


def _width(precision: str) -> int:
    if precision not in BYTES:
        raise ScenarioError(f'unknown precision "{precision}"; there are: {", ".join(BYTES)}')
    return BYTES[precision]


NEWTON_SCHULZ_STEPS = 5
"""torch/optim/_muon.py: ``ns_steps=5``."""

HALF = "bf16"
"""The precision of Newton-Schulz steps."""

MATRIX_PASSES, VECTOR_PASSES, MOMENTUM_PASSES = 19, 21, 5
"""Passes of Adafactor over fp32 memory, and those of a first moment."""

FOREACH, EACH, EACH_VECTOR = 6, 5, 2
"""Kernels of Adafactor for many tensors at once, and for each matrix or vector: norms and outer products."""


def update_kernels(
    tensors: Iterable[ParameterTensor],
    optimizer: str | Optimizer,
    precision: str,
    gradient_dtype: str | None = None,
    *,
    fused: bool = True,
    unfused_update: bool = False,
    flat_update: bool = False,
) -> tuple[Kernel, ...]:
    """The kernels of one step over those of *tensors* that are trained; other arguments as of `optimizer_kernels`.

    Raises `ScenarioError` for an unknown optimizer.
    """
    own, known = [tensor for tensor in tensors if tensor.trainable], as_optimizer(optimizer)

    def elementwise(several: Sequence[ParameterTensor], kind: Optimizer) -> tuple[Kernel, ...]:
        count = sum(tensor.count for tensor in several)
        how = {"fused": fused, "unfused_update": unfused_update, "flat_update": flat_update}
        return optimizer_kernels(count, kind, precision, gradient_dtype, **how)

    if known.name not in BY_SHAPE:
        return elementwise(own, known)
    width = _updated(known, precision)
    beside = around(width, precision, gradient_dtype, unfused_update=unfused_update, flat_update=flat_update)
    if known.name == MUON:
        rest = elementwise([tensor for tensor in own if not tensor.hidden], replace(known, name="adam"))
        return (*rest, *_muon([tensor for tensor in own if tensor.hidden], known, width, beside))
    return _adafactor(own, width, beside, momentum=known.name == WITH_MOMENTUM)


def _adafactor(tensors: Sequence[ParameterTensor], width: int, beside: Around, *, momentum: bool) -> tuple[Kernel, ...]:
    more = MOMENTUM_PASSES if momentum else 0
    made: list[Kernel] = []
    for several, passes, each in (
        ([tensor for tensor in tensors if tensor.rows], MATRIX_PASSES, EACH),
        ([tensor for tensor in tensors if not tensor.rows], VECTOR_PASSES, EACH_VECTOR),
    ):
        if count := sum(tensor.count for tensor in several):
            launches = (FOREACH + 2 * momentum + beside.passes) * ceil(count / CHUNK) + each * len(several)
            made.append(memory_bound(count * (width * (passes + more) + beside.nbytes), launches=launches))
    return tuple(made)


def _muon(matrices: Sequence[ParameterTensor], known: Optimizer, width: int, beside: Around) -> tuple[Kernel, ...]:
    if not matrices:
        return ()
    count, state = sum(tensor.count for tensor in matrices), BYTES[known.dtype]
    # momentum: gradient and state read, state written; Nesterov's: both read, the result written, then cast
    first = (width + 2 * state) + (width + state + width) + (width + BYTES[HALF])
    # norm, division; decay of the weights; they are read and written once more, with what is added
    last = 3 * BYTES[HALF] + 2 * width + (2 * width + BYTES[HALF])
    launches = 7 * len(matrices) + beside.passes * ceil(count / CHUNK)
    elementwise = memory_bound(count * (first + last + beside.nbytes), launches=launches)
    sides = Counter((tensor.rows, tensor.count // tensor.rows) for tensor in matrices)
    products = (kernel for (rows, columns), n in sides.items() for kernel in newton_schulz(rows, columns, n))
    return elementwise, *products


def newton_schulz(rows: int, columns: int, matrices: int = 1) -> tuple[Kernel, ...]:
    """The products that orthogonalise so many *matrices*; equal ones are one batch here, but a launch each.

    >>> sum(kernel.flops for kernel in newton_schulz(10, 20)) == 5 * (4 * 10 * 10 * 20 + 2 * 10**3)
    True
    """
    short, long = min(rows, columns), max(rows, columns)
    products = (
        matmul(short, short, long, batch=matrices, precision=HALF),
        _with_sum(matmul(short, short, short, batch=matrices, precision=HALF), matrices * short * short),
        _with_sum(matmul(short, long, short, batch=matrices, precision=HALF), matrices * short * long),
    )
    return tuple(replace(kernel, launches=matrices) for kernel in products) * NEWTON_SCHULZ_STEPS


def _with_sum(product: Kernel, elements: int) -> Kernel:
    """*product*, which also reads what it is added to."""
    return replace(product, nbytes=product.nbytes + elements * BYTES[HALF])
