"""Durations of kernels on an accelerator, and the launch costs of a software stack.

A matrix product takes the tiles and waves of `simulator.hardware.matrix_products`, or the traffic of its operands;
other kernels are bound by memory. The duration of an op is a smooth maximum of the GPU's time and the host's time to
launch its kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from math import inf, prod
from typing import Annotated, Literal

from pydantic import BeforeValidator

from clustersim.simulator.hardware.kernel import BYTES, EXECUTED, Kernel
from clustersim.simulator.hardware.matrix_products import Tiling, attention_seconds, one_product, padded_flops
from clustersim.simulator.hardware.slowest import expected_maximum
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ClusterError
from clustersim.simulator.reading.quantities import (
    Amount,
    Bandwidth,
    Count,
    Flag,
    Fraction,
    Index,
    Key,
    Number,
    Ratio,
    Size,
    Time,
    number,
)

UNALIGNED = 0.5
"""Speed of a product on tensor cores with unaligned rows, relative to aligned ones, unless the GPU's file has it.
nanoGPT's step became 25 % faster on A100 when its vocabulary of 50,257 was padded to 50,304 (github.com/karpathy/
nanoGPT, model.py, vocab_size; the figure is its author's): the logits, a quarter of the FLOPs, ran twice as fast."""

Loss = Literal[
    "", "fused", "vocab_parallel", "eager", "plain", "shifted", "with_metrics", "chunked", "recomputed", "in_place"
]
"""Names of `workloads.operators.embedding_and_loss.LOSSES`, or none."""

OF_CLOCKS = (
    "matmul_efficiency",
    "low_precision_efficiency",
    "fp32_efficiency",
    "convolution_efficiency",
    "attention_efficiency",
    "attention_backward",
    "own_attention_efficiency",
    "own_attention_backward",
    "cudnn_attention_efficiency",
    "cudnn_attention_backward",
    "exponentials",
)
"""What scales with the clock of an `Accelerator`."""

ATTENTION_TILE = 128
"""Rows and features of a tile of which `Accelerator.attention_start` is the time: rows of a block of FlashAttention-2
and cuDNN, features of a common head."""

ATTENTION_COLUMNS = 1056
"""Scores of a row at which the shares of fused attention hold: those of 2,048 causal positions, where most runs of the
fit to the A100 are, with half a tile (`core_attention.TILE`)."""

FLASH_2_BACKWARD = 2.0
"""Speed of FlashAttention-2 in the backward pass, relative to the first, as the software stacks have it (abstract of
arXiv:2307.08691); forward it counts as the first."""

FLASH_1_HEADS, FLASH_2_HEADS = (32, 64, 128), tuple(range(32, 257, 32))
"""Head sizes of the kernels of FlashAttention: of the first (Dao-AILab/flash-attention v1.0, csrc/flash_attn/
fmha_api.cpp, run_fmha_fwd), and of the second, of which any head is padded to a multiple of 32 (flash_api.cpp)."""

CUDNN_COLUMNS = 4128
"""The same of cuDNN's: 8,192 causal positions, the middle of those that were measured."""

SINGLE_ACCESSES = 5.4e9
"""Elements a second that one SM reads and writes one at a time. Measured with torch 2.11 on one H100 and one H200, with
equal SMs and unequal memories: casts from 16 bits to fp32, operands of unequal types, rows and columns that are
broadcast and copies that exchange dimensions move 4.5e9 to 6.0e9 on the one and 5.1e9 to 6.4e9 on the other, while
plain copies take 1.4 times as long on the one as on the other. Kernels with one block of threads for each channel do so
too (cuDNN): the 53 batch norms of ResNet-50 with contiguous images, 2.84e9 elements of 256 samples, take 13.9 ms
forward (3 accesses) and 24.5 ms backward (5) in fp16, and 13.8 and 27.5 ms in fp32, on the H200."""

OPERATOR_SECONDS = 8e-6
"""Host time of an eager operator of PyTorch, dispatched from Python: 5 to 10 us (the `launch` of the stack ``ddp``)."""


def padded_head(size: int, *, first: bool) -> int:
    """Return the head size of the kernel of FlashAttention-2, or of the *first*, that takes heads of *size*; *size* if
    there is none.

    >>> [padded_head(96, first=first) for first in (True, False)], padded_head(80, first=False)
    ([128, 96], 96)
    """
    return next((own for own in (FLASH_1_HEADS if first else FLASH_2_HEADS) if size <= own), size)


@dataclass(frozen=True, slots=True)
class Software:
    """Costs and options of a software stack: the keys of its file (`Section`)."""

    name: str = "ideal"
    launch_seconds: Annotated[Time, Key("launch")] = 0.0
    """Host time to launch a kernel, e.g. 5 us."""
    fused: bool | frozenset[str] = True
    """Operators other than products that have one kernel each: all, none, or those of
    `workloads.operators.operator.FUSIBLE` that are named."""
    sharpness: Ratio = 4.0
    """Exponent q of the smooth maximum of host time h and GPU time g, (h^q + g^q)^(1/q); by default 4."""
    launch_blocking: Flag = False
    """The host waits for each kernel before it launches the next (CUDA_LAUNCH_BLOCKING=1): host time and GPU time add
    up, and no collective runs beside computation."""
    tensor_operators: Annotated[Index, Key("operators")] = 0
    """Operators that the optimizer step launches for each parameter tensor of a rank, one by one."""
    tensor_seconds: Annotated[Time, Key("tensor")] = 0.0
    """Further host time of each step for each parameter tensor."""
    load_seconds: Annotated[Time, Key("load")] = 0.0
    """Host time of each step for loading data and logging."""
    message_operators: Index = 0
    """Operators that the host launches between the arrival of a message of a pipeline and the first kernel that needs
    it: it synchronises with the GPU, so none of them is launched ahead."""
    exchange_seconds: Annotated[Time, Key("exchange")] = 0.0
    """Further time that a stage of a pipeline loses with each message for which it waits."""
    context_bytes: Annotated[Amount, Key("context")] = 0.0
    """GPU memory of a process without tensors: CUDA's context and the loaded kernels."""
    fragmentation: Annotated[float, BeforeValidator(number(0.0, 0.9))] = 0.0
    """Share of the memory reserved for activations that holds none, since blocks are split."""
    async_tensor: Flag = False
    """Backward passes overlap tensor-parallel exchanges of gradients with independent products."""
    unfused_update: Flag = False
    """The operations around an optimizer's update have kernels of their own."""
    flat_update: Flag = False
    """With unfused_update: fp32 copies of fp16 gradients are checked and copied flat too."""
    softmax_group: Count = 1
    """The fused softmax needs heads x samples to be a multiple of it; else each operator has a kernel."""
    fp32_scores: tuple[Literal["scale", "mask", "softmax", "dropout"], ...] = ()
    """What runs in fp32 between the products of attention if scores have 16 bits and the softmax is not fused."""
    slice_seconds: Annotated[Time, Key("slice")] = 0.0
    """Host time for each rank's slice of each tensor of a list that ZeRO-3 communicates; 0 for flat buffers."""
    module_hooks: Index = 0
    """Operators as long as ZeRO-3's hooks around one pass of a module, forward or backward."""
    fetch_hooks: Index = 0
    """The same for each parameter tensor that ZeRO-3 gathers and releases in a pass."""
    gradient_hooks: Index = 0
    """The same for each bucket of gradients that ZeRO-3 reduces."""
    flash_forward: Ratio = 1.0
    """Speed of fused attention in the forward pass, relative to the first FlashAttention."""
    flash_backward: Ratio = 1.0
    """The same of the backward pass."""
    gather_ahead: Flag = False
    """Parameters of a sharded optimizer are gathered during the next forward pass."""
    blocking_reductions: Flag = False
    """Nothing is computed while gradients are reduced to shards; all-reduces across groups and gathers run beside."""
    blocking_all_reduces: Flag = False
    """Gradients of replicas are all-reduced behind the backward pass, whatever `overlap` says."""
    fp32_gradients: tuple[Literal["bf16", "fp16"], ...] = ()
    """Precisions under which gradients are accumulated and reduced in fp32."""
    zero_fp32_gradients: Flag = True
    """Gradients of ZeRO's stage 1 are in fp32 where fp32_gradients says so; false: they have the type of the model."""
    gradient_buffers: Literal["copies", "two", "half", "none", "averaged"] = "copies"
    """Memory of gradient buckets beside the gradients: copies of all, two buckets, half (16-bit copies of fp32), none,
    or averaged (none, and the reduction divides, which costs nothing)."""
    frees_gradients: Flag = False
    """No gradients are held between steps: the backward pass allocates each, and the step frees them."""
    fsdp_units: Literal["none", "flat", "tensors"] = "none"
    """What FSDP copies around the exchanges of a unit: gradients into a flat one (flat), or parameters to tensors of
    their own and gradients to the buffer of the reduction (tensors)."""
    scatter_gather: Flag = False
    """Ranks that hold the same boundary between stages send one part each, and the receivers gather."""
    cross_entropy: Loss = ""
    """How the loss is computed; empty: as fused says, under torch_compile recomputed."""
    gather_logits: Flag = False
    """Tensor-parallel ranks gather the logits, and each computes the whole loss."""
    product_seconds: Annotated[Time, Key("grouped_product")] = 0.0
    """Further host time for each product of a grouped one (an expert), if they are launched one by one."""
    keep_gathered: Flag = False
    """Inputs gathered from the shards of a sequence are kept whole, not gathered again."""
    separate_gate: Flag = False
    """The two products of SwiGLU's input are two kernels, each with exchanges of its own."""
    batch_first: Flag = False
    """Tensors have the samples before the sequence, so that tensor-parallel exchanges of its shards copy their vectors;
    with tp_overlap a product and its exchange are one operator, in as many pieces as ranks."""
    separate_qkv: Flag = False
    """So are those of queries, keys and values where the model holds them in three tensors."""
    fp32_residual: Flag = False
    """A transformer of 16 bits keeps its residual stream in fp32."""
    padded: Flag = False
    """Products with unaligned rows are padded."""
    padded_vocabulary: Flag = False
    """The vocabulary is padded, so that the rows of the logits are aligned."""
    cudnn_attention: Flag = False
    """Fused attention is cuDNN's on GPUs for which cuDNN has one."""
    communication_sms: Index = 0
    """SMs that kernels of communication hold through the whole step; products and attention run on the others."""
    early_stop: Flag = False
    """Recomputation of a layer ends as soon as its backward pass has what it needs."""
    reentrant: Flag = False
    """Layers are recomputed by torch's reentrant checkpoints, whose inputs FSDP holds where weights are frozen."""
    keeps_casts: Flag = True
    """Operands cast to 8 bits are kept for the backward pass, weights cast once a step; else all at each use."""
    accumulation: Literal["fused", "added", "cast", "autocast"] = "fused"
    """How gradients of micro-batches are added up."""
    joint_adapters: Flag = False
    """Queries, keys and values are one tensor with one adapter, and so are gate and up."""
    adapters: Literal["model", "fp32_beside_4_bits", "fp32"] = "model"
    """In what LoRA's adapters are held beside a model of 16 bits: as the model, or in fp32, cast by autocast."""
    four_bit_inputs: Flag = False
    """Products of bitsandbytes' 4-bit weights keep their inputs for the backward pass, as before its version 0.43.2."""
    master_weights: Flag = True
    """The optimizer updates fp32 copies of weights in 16 bits; no key of a stack."""
    kbit_training: Flag = True
    """PEFT prepares a model of bitsandbytes' 4-bit weights for training: where its adapters are in fp32, norms, tables
    and residual stream are too."""
    zero_gradients: Literal["reduce_scatter", "all_reduce"] = "reduce_scatter"
    """How ZeRO's stages 1 and 2 reduce gradients."""
    zero_parameters: Literal["all_gather", "broadcast"] = "all_gather"
    """How ZeRO's ranks get updated parameters: equal shards (all_gather), or each rank's tensors (broadcast)."""
    graphs: Literal["none", "layers", "step"] = "none"
    """What CUDA graphs capture: none, the passes of each layer (layers), or the whole step. The host launches a graph
    as one."""

    def host_seconds(self, kernels: Iterable[Kernel]) -> float:
        """Return the host time to launch the *kernels* of an op, without those of given duration, s."""
        launched = [kernel for kernel in kernels if kernel.seconds is None]
        if self.graphs == "none":
            return sum(self.launching_seconds(kernel) for kernel in launched)
        # a graph of the whole step is launched once: nothing for each op
        outside = sum(self.launching_seconds(one) for one in launched if self.graphs == "layers" and not _captured(one))
        inside = any(self.graphs == "layers" and _captured(kernel) for kernel in launched)
        return outside + self.launch_seconds * inside

    def launching_seconds(self, kernel: Kernel) -> float:
        """Return the host time to launch *kernel*, outside of a graph, s."""
        if not self.launch_seconds:
            return 0.0
        beside = OPERATOR_SECONDS * kernel.operators + self.product_seconds * kernel.products
        return self.launch_seconds * kernel.launches + beside

    @property
    def exponent(self) -> float:
        """*sharpness*, or 1, with which the smooth maximum is a sum, where the host waits for each kernel.

        >>> Software(launch_blocking=True).exponent
        1.0
        """
        return 1.0 if self.launch_blocking else self.sharpness

    @property
    def autocast(self) -> bool:
        """True if torch's autocast chooses the precision of each operator of a model that is held in fp32."""
        return self.accumulation == "autocast" and self.fp32_residual

    @property
    def foreach_update(self) -> bool:
        """True if the optimizer is torch's foreach implementation: each operator runs on a list of all tensors."""
        unfused = not self.fused if isinstance(self.fused, bool) else "optimizer" not in self.fused
        return unfused and not self.unfused_update and not self.tensor_operators

    @property
    def speeds(self) -> tuple[float, ...]:
        """All on which the GPU time of a kernel depends."""
        own = self.flash_forward, self.flash_backward, self.padded, self.cudnn_attention
        return (*own, self.communication_sms)

    @property
    def host_seconds_per_tensor(self) -> float:
        """Host time of each optimizer step for each parameter tensor of a rank."""
        return self.tensor_operators * OPERATOR_SECONDS + self.tensor_seconds

    @property
    def host_seconds_per_message(self) -> float:
        """Time that a pipeline stage loses with each message for which it waits."""
        return self.message_operators * OPERATOR_SECONDS + self.exchange_seconds

    def gradient_dtype(self, precision: str) -> str:
        """In which gradients are accumulated and reduced when a model trains in *precision*."""
        return "fp32" if precision in self.fp32_gradients else precision


def _captured(kernel: Kernel) -> bool:
    """True for what a layer's forward and backward pass run; embedding, loss and optimizer lie outside of a layer."""
    return kernel.operation is None or kernel.operation.kind not in ("embedding", "loss", "optimizer")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU, or the processor of a host: the keys of its catalogue file (`Section`).

    >>> Accelerator(peak_flops=1).seconds([Kernel(flops=3)])
    3.0
    """

    name: str = "unit"
    peak_flops: float | Mapping[str, float] = 1.0
    """Dense FLOP/s by precision, or one number for all."""
    memory_bandwidth: Bandwidth = inf
    """bytes/s."""
    memory_bytes: Annotated[Size, Key("memory")] = inf
    sms: int = 0
    """Multiprocessors; 0: products are not quantised."""
    matmul_efficiency: Fraction = 1.0
    """Share of the peak that the best products reach in a step, under the power limit."""
    low_precision_efficiency: Fraction | None = None
    """The same of products in 8 and 4 bits; None: as other products."""
    burst: Number = 1.0
    """Speed of a product alone, before the power limit lowers the clock, over that in a step."""
    memory_efficiency: Fraction = 1.0
    """Share of the memory's bandwidth that the best kernels reach."""
    kernel_latency: Time = 0.0
    """Start and end of a kernel beside its work, whatever it does."""
    k_half: Number = 0.0
    """The `Tiling` of products, with the next three and kernel_latency."""
    tile_side: Number = 0.0
    split_latency: Time = 0.0
    overlap: Number = inf
    fp32_efficiency: Fraction | None = None
    """As *matmul_efficiency* of products in fp32, if tensor cores do not take part in them; None: as other products."""
    fp32_k_half: Number | None = None
    """The same."""
    convolution_efficiency: Fraction | None = None
    """The same of convolutions in fp32."""
    convolution_k_half: Number | None = None
    """The same."""
    unaligned_efficiency: Fraction = UNALIGNED
    """Speed of products on tensor cores with rows that are not aligned, relative to aligned ones."""
    attention_efficiency: Fraction = 1.0
    """Share of the peak that the products of fused attention reach, softmax included."""
    attention_backward: Fraction = 1.0
    """The same in the backward pass."""
    own_attention_efficiency: Fraction | None = None
    """What *attention_efficiency* is for kernels made for this GPU, of which a stack tells how much faster than
    FlashAttention-2 they are; None: that one. FlashAttention-2 lacks the instructions of later GPUs than Ampere."""
    own_attention_backward: Fraction | None = None
    """The same in the backward pass."""
    cudnn_attention_efficiency: Fraction | None = None
    """As *attention_efficiency* of the products alone, of kernels made for this GPU; None: there are none."""
    cudnn_attention_backward: Fraction | None = None
    """The same in the backward pass."""
    attention_start: Time = 0.0
    """SM time of each tile of `ATTENTION_TILE` rows and features of fused attention beside its scores: its first loads,
    its last stores. The shares hold at `ATTENTION_COLUMNS` scores a row; fewer are slower, more are faster."""
    attention_backward_start: Time = 0.0
    """The same in the backward pass."""
    cudnn_attention_start: Time = 0.0
    """The same of kernels made for this GPU; their shares hold at `CUDNN_COLUMNS`."""
    cudnn_attention_backward_start: Time = 0.0
    """The same in the backward pass."""
    exponentials: Number = 0.0
    """Exponentials a second and SM, of which each score of those kernels takes one beside; 0: they are free."""
    matrix_unit: Index = 0
    """Side of the systolic arrays of a TPU, elements, to which products are padded; 0: it has none."""
    vector_rate: Number = 0.0
    """Operations a second of the vector units beside them, which attention needs for each score; 0: these are free."""
    spread: Number = 0.0
    """Coefficient of variation of the speed of products among GPUs of this type."""
    power: float = 0.0
    """W; 0: not stated."""
    transposes: Flag = True
    """Products of 8 bits take operands in one layout only, so that operands are written transposed too."""
    _prices: dict[tuple[object, ...], tuple[float, float]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __hash__(self) -> int:
        return hash((self.name, self.memory_bandwidth, self.memory_bytes, self.sms))

    def peak(self, precision: str) -> float:
        """Return the dense peak, FLOP/s; for tf32 that of fp32 if there is none. Raises `ClusterError` if unknown."""
        if not isinstance(self.peak_flops, Mapping):
            return self.peak_flops
        if self.lacks_tf32(precision):
            precision = "fp32"
        if precision not in self.peak_flops:
            raise ClusterError(f"{self.name} has no {precision}; it has {', '.join(self.peak_flops)}")
        return self.peak_flops[precision]

    def seconds(self, kernels: Iterable[Kernel], software: Software | None = None) -> float:
        """Return the seconds of *kernels* one after the other, launched by *software* (None: launches are free)."""
        kernels = tuple(kernels)
        key = (kernels, *(software.speeds if software else ()))
        price = self._prices.get(key)
        if price is None:
            modelled = [kernel for kernel in kernels if kernel.seconds is None]
            gpu = sum(self.kernel_seconds(kernel, software) for kernel in modelled)
            given = sum(kernel.seconds for kernel in kernels if kernel.seconds is not None)
            price = self._prices[key] = gpu, given
        gpu, given = price
        if software is None or not software.launch_seconds or not gpu:
            return gpu + given
        host = software.host_seconds(kernels)
        return smooth_maximum(gpu, host, software.exponent) + given

    def slowest_of(self, count: float, now: float = 1) -> Accelerator:
        """Return the expected slowest of *count* GPUs, for which synchronous ranks wait; *now* it is that of so many.

        GPUs at one power limit run products at different clocks; memory has one clock (Sinha et al. 2022, "Not
        All GPUs Are Created Equal", arXiv:2208.11035).

        >>> Accelerator(matmul_efficiency=0.8, spread=0.02).slowest_of(64).matmul_efficiency
        0.764...
        """
        if not self.spread or count == now:
            return self
        slowdown = self.slowdown(count, now)
        shares: dict[str, float] = {name: share for name in OF_CLOCKS if (share := getattr(self, name)) is not None}
        return replace(self, **{name: share / slowdown for name, share in shares.items()})  # type: ignore[arg-type]

    def slowdown(self, count: float, now: float = 1) -> float:
        """Return how many times longer the expected slowest of *count* GPUs takes than that of *now* GPUs."""
        return (1.0 + self.spread * expected_maximum(count)) / (1.0 + self.spread * expected_maximum(now))

    def alone(self) -> Accelerator:
        """Return this GPU as it runs single products in short bursts: the power limit has not lowered its clock yet.

        >>> Accelerator(matmul_efficiency=0.5, burst=1.5).alone().matmul_efficiency
        0.75
        """
        low = self.low_precision_efficiency
        return replace(
            self,
            burst=1.0,
            matmul_efficiency=self.matmul_efficiency * self.burst,
            low_precision_efficiency=low and low * self.burst,
        )

    def kernel_seconds(self, kernel: Kernel, software: Software | None = None) -> float:
        """Return the GPU time of a kernel without its launch, s: the longer of arithmetic and memory traffic.

        Each launch has a start and an end, small operators beside it too; what moves nothing runs on the host alone.
        """
        if kernel.seconds is not None:
            return kernel.seconds
        memory = self.memory_seconds(kernel)
        if not kernel.flops:
            return memory + self.kernel_latency * (kernel.launches + kernel.operators) * bool(kernel.nbytes)
        efficiency, k_half = self._of_products(kernel.precision)
        if kernel.shape is not None and self.matrix_unit:
            return max(self._on_matrix_units(kernel, self.peak(kernel.precision) * efficiency), memory)
        if kernel.shape is None or not self.sms:
            return max(kernel.flops / (self._product_peak(kernel, software) * efficiency), memory)
        sms = max(1, self.sms - (software.communication_sms if software else 0))
        peak = self._product_peak(kernel, software) * efficiency * sms / self.sms
        if kernel.attention:
            return max(self._attention_arithmetic(kernel, software or Software()) * self.sms / sms, memory)
        # without tensor cores libraries use Winograd's algorithm (Lavin and Gray 2015, arXiv:1509.09308) where it is
        # faster
        shapes = [kernel.shape]
        if kernel.winograd is not None and self.lacks_tf32(kernel.precision):
            shapes.append(kernel.winograd)
        tiling = Tiling(k_half, self.tile_side, self.split_latency, self.kernel_latency, self.overlap)
        several = kernel.rows, kernel.depths, kernel.random_rows
        arithmetic = min(one_product(shape, peak, sms, tiling, *several) for shape in shapes)
        return smooth_maximum(arithmetic, memory, self.overlap) + self.kernel_latency

    def memory_seconds(self, kernel: Kernel) -> float:
        """Return the time in which *kernel* reads and writes its bytes, s."""
        seconds = kernel.nbytes / (self.memory_bandwidth * self.memory_efficiency)
        if kernel.accesses and self.sms:
            seconds = max(seconds, kernel.accesses / (min(kernel.blocks or self.sms, self.sms) * SINGLE_ACCESSES))
        return seconds

    def _on_matrix_units(self, kernel: Kernel, rate: float) -> float:
        """Return the seconds of the arithmetic of a product or of attention on systolic arrays at *rate*, FLOP/s."""
        if kernel.attention:
            return attention_seconds(kernel, rate, self.matrix_unit, self.vector_rate)
        return padded_flops(kernel, self.matrix_unit) / rate

    def _product_peak(self, kernel: Kernel, software: Software | None) -> float:
        """Return the dense peak for a product, FLOP/s.

        A batched product of 16 bits with unaligned rows has no tensor cores: with head size 108 in place of 216, 182
        billion parameters took 42 % longer on A100 (bigscience-workshop/bigscience, train/tr11-176B-ml/
        chronicles-prequel.md, 26 February 2022).
        """
        peak = self.peak(kernel.precision)
        if kernel.aligned or kernel.precision == "fp32" or (software and software.padded):
            return peak
        several = kernel.shape is not None and kernel.shape[0] > 1
        unaligned = peak * self.unaligned_efficiency
        return min(unaligned, self.peak("fp32")) if several else unaligned

    def _attention_arithmetic(self, kernel: Kernel, software: Software) -> float:
        """Return the seconds of the arithmetic of fused attention on all SMs.

        The special function units compute 16 exponentials a clock and SM, and their time adds to that of the products,
        which is four times the head size for each score: heads of 64 are slower than half of those of 128 (Shah et al.
        2024, arXiv:2407.08608, section 3.1).
        """
        assert kernel.shape is not None
        backward = kernel.attention == "backward"
        products = 2.0 * prod(kernel.shape) / self.peak(kernel.precision)
        own = self.cudnn_attention_backward if backward else self.cudnn_attention_efficiency
        if software.cudnn_attention and own:
            scores = prod(kernel.shape[:3]) / EXECUTED[kernel.attention]
            seconds = products / own + (scores / (self.exponentials * self.sms) if self.exponentials else 0.0)
            start = self.cudnn_attention_backward_start if backward else self.cudnn_attention_start
            return self._with_starts(kernel, seconds, start, CUDNN_COLUMNS)
        return self._flash_arithmetic(kernel, products, software)

    def _flash_arithmetic(self, kernel: Kernel, products: float, software: Software) -> float:
        """Return the seconds of FlashAttention-2, scaled to the kernels of *software*; *products*: at the peak.

        Heads are padded to a size that there is a kernel for (`padded_head`). Kernels made for this GPU are taken at
        one rate, that at `CUDNN_COLUMNS`: the ratios to FlashAttention-2 hold there, and the start of a tile is not
        known of them.
        """
        if kernel.attention == "backward":
            share, start = self.attention_backward * FLASH_2_BACKWARD, self.attention_backward_start
            own = (self.own_attention_backward or 0.0) * FLASH_2_BACKWARD
            speed = software.flash_backward / FLASH_2_BACKWARD
        else:
            share, start = self.attention_efficiency, self.attention_start
            own, speed = self.own_attention_efficiency or 0.0, software.flash_forward
        if software.flash_forward > 1.0 or software.flash_backward > FLASH_2_BACKWARD:
            if own:
                return products / own / speed
            return self._with_starts(kernel, products / share, start, ATTENTION_COLUMNS, CUDNN_COLUMNS) / speed
        assert kernel.shape is not None
        head = kernel.shape[3]
        padded = padded_head(head, first=software.flash_backward < FLASH_2_BACKWARD) / head
        return padded * self._with_starts(kernel, products / share, start, ATTENTION_COLUMNS) / speed

    def _with_starts(
        self, kernel: Kernel, seconds: float, start: float, columns: int, taken: int | None = None
    ) -> float:
        """Return *seconds* of fused attention, which hold at *columns* scores a row, with the *start* of each tile.

        *taken*: scores of a row in place of its own.
        """
        assert kernel.shape is not None
        own = kernel.shape[2]
        features = prod(kernel.shape) / own / EXECUTED[kernel.attention]
        starts = start * features / (ATTENTION_TILE**2 * self.sms)
        return max(seconds + starts * own * (1.0 / (taken or own) - 1.0 / columns), 0.5 * seconds)

    def _of_products(self, precision: str) -> tuple[float, float]:
        """Return the efficiency and the half depth of products. Convolutions in fp32 say tf32 (`Kernel`)."""
        efficiency, k_half = None, None
        if precision not in BYTES:
            efficiency = self.low_precision_efficiency
        elif precision == "fp32":
            efficiency, k_half = self.fp32_efficiency, self.fp32_k_half
        elif self.lacks_tf32(precision):
            efficiency, k_half = self.convolution_efficiency, self.convolution_k_half
        if k_half is None:
            k_half = self.k_half * self._over_16_bits(precision)
        return efficiency or self.matmul_efficiency, k_half

    def _over_16_bits(self, precision: str) -> float:
        """Return the peak in 8 or 4 bits over that in 16 bits, 1 for other precisions.

        What a tile loads and stores costs as many more of its inner steps as these are faster. Products of 8 bits on an
        H100 agree: they reach the share of products of 16 bits of their own peak, and half of it at twice the depth.
        """
        if precision in BYTES or not isinstance(self.peak_flops, Mapping) or "bf16" not in self.peak_flops:
            return 1.0
        return self.peak(precision) / self.peak("bf16")

    def lacks_tf32(self, precision: str) -> bool:
        """Return True if *precision* is tf32 and there is no figure for it."""
        return precision == "tf32" and isinstance(self.peak_flops, Mapping) and "tf32" not in self.peak_flops


def smooth_maximum(a: float, b: float, sharpness: float) -> float:
    """Return (a^q + b^q)^(1/q): about the larger if they differ much, 2^(1/q) times either if they are equal."""
    low, high = sorted((a, b))
    return high * (1.0 + (low / high) ** sharpness) ** (1.0 / sharpness) if high else 0.0
