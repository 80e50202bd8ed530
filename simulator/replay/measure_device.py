"""Measurement of a device by timed kernels: matrix products over shapes, copies, launches, and copies to its host.

The device is any that torch has: a GPU or the processor itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.replay.computation import DTYPES
from clustersim.simulator.replay.measurements import DeviceMeasurements, TimedCopy, TimedProduct

BATCHES = 5
BATCH_SECONDS = 0.02
"""A time is the lower quartile of this many batches of about this length: other work only lengthens a time."""

SIDES = (128, 256, 512, 1024, 2048, 4096, 8192)
"""m = n of the products, from less than a tile of every SM to the layers of large models."""
DEPTHS = (64, 256, 1024, 4096, 16384)
"""k of the products."""

LONGEST = 0.25
"""Seconds. Longer products are left out: their rate equals that of the ones before."""

VECTORS = tuple(2**power for power in range(16, 31, 2))
"""Bytes of the copies, from vectors that fit a cache to vectors that do not."""

UNALIGNED = ("bf16", "fp16")
"""Precisions whose products are also measured with odd n and k: rows of 2 bytes alignment, as those of a vocabulary of
50,257."""

WARM_SECONDS = 3.0
"""A GPU multiplies for so long before it is measured. Its clock falls when it reaches the power limit: an H100 from 717
to 685 TFLOP/s in the first two seconds."""

GRAPH_SECONDS = 0.005
"""Products and copies of about this length are one CUDA graph, which launches them without the host."""
GRAPH_KERNELS = 100
"""Most kernels of such a graph."""

LAYERS = 8
"""Layers of the transformer whose training tells the host's time for a kernel."""
WIDTH = 64
"""Its hidden size and the length of its sequence: too small to keep the GPU busy."""

LAUNCHES = 200
"""Kernels of one element, issued one after the other, on a device that launches none."""

ON_PROCESSORS = ("fp32",)
"""Many processors convert the other precisions to this one."""


def measure_device(name: str) -> DeviceMeasurements:
    """Measure the device that torch calls *name*, ``cuda``, ``cuda:1`` or ``cpu``. Raises `CalibrationError`."""
    device = _device(name)
    if device.type != "cuda":
        return DeviceMeasurements(
            "cpu", tuple(_products(device, ON_PROCESSORS)), tuple(_copies(device, device)), _launch(device)
        )
    properties = torch.cuda.get_device_properties(device)
    _warm(device)
    host = torch.device("cpu")
    return DeviceMeasurements(
        properties.name,
        tuple(_products(device, tuple(DTYPES))),
        tuple(_copies(device, device)),
        _launch(device),
        tuple(_copies(device, host)),
        tuple(_copies(host, device)),
        float(properties.total_memory),
        properties.multi_processor_count,
    )


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CalibrationError(f"--device {name}: torch has no such device: {reason}") from None
    return device


def _products(device: torch.device, precisions: tuple[str, ...]) -> Iterator[TimedProduct]:
    for precision in precisions:
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        rate = 0.0
        for side in SIDES:
            for depth in DEPTHS:
                product = TimedProduct(precision, (side, side, depth), 0.0)
                if rate and product.flops / rate > LONGEST:
                    continue
                seconds = _product_seconds(device, DTYPES[precision], product.shape)
                rate = max(rate, product.flops / seconds)
                yield TimedProduct(precision, product.shape, seconds)
        if device.type == "cuda" and precision in UNALIGNED:
            for side in SIDES[-3:]:
                shape = (side, side + 1, side + 1)
                yield TimedProduct(precision, shape, _product_seconds(device, DTYPES[precision], shape))


def _product_seconds(device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int]) -> float:
    m, n, k = shape
    left, right = torch.randn(m, k, device=device, dtype=dtype), torch.randn(k, n, device=device, dtype=dtype)
    out = torch.empty(m, n, device=device, dtype=dtype)
    return kernel_seconds(lambda: torch.mm(left, right, out=out), device)


def _copies(source: torch.device, target: torch.device) -> Iterator[TimedCopy]:
    """Copies from memory to memory.

    On one device its memory is read and written; between two the bus is crossed once.
    """
    pinned = source.type != target.type
    for nbytes in VECTORS:
        vectors = [
            torch.zeros(nbytes, dtype=torch.uint8, device=one, pin_memory=pinned and one.type == "cpu")
            for one in (source, target)
        ]
        device = source if source.type == "cuda" else target
        copy = partial(vectors[1].copy_, vectors[0], non_blocking=pinned)
        seconds = timed(copy, device) if pinned else kernel_seconds(copy, device)
        yield TimedCopy(nbytes if pinned else 2 * nbytes, seconds)


def _warm(device: torch.device) -> None:
    square = torch.randn(SIDES[-1], SIDES[-1], device=device, dtype=torch.bfloat16)
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_SECONDS:
        torch.mm(square, square)
        _finish(device)


def _launch(device: torch.device) -> float:
    """Return the host's time for a kernel: that of a training step that waits for the host, over its kernels."""
    if device.type != "cuda":
        return _issue(device)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, device=device)
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    samples = torch.randn(1, WIDTH, WIDTH, device=device)

    def step() -> None:
        model(samples).sum().backward()

    seconds = timed(step, device)
    return seconds / _kernels_of(step, device)


def _kernels_of(once: Callable[[], object], device: torch.device) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        once()
        _finish(device)
    on_device = [event for event in profile.events() or () if event.device_type.name == "CUDA"]
    return max(1, len(on_device))


def _issue(device: torch.device) -> float:
    one = torch.zeros(1, device=device)

    def launches() -> None:
        for _ in range(LAUNCHES):
            one.add_(1.0)

    return timed(launches, device) / LAUNCHES


def kernel_seconds(once: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of *once*, one kernel, on *device*, without the host's time to launch it."""
    if device.type != "cuda":
        return timed(once, device)
    estimate = min(_batch(once, device, 3) for _ in range(2))
    count = max(1, min(GRAPH_KERNELS, int(GRAPH_SECONDS / estimate)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            once()
    return timed(graph.replay, device) / count


def timed(once: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of *once* on *device*, issued repeatedly."""
    estimate = _batch(once, device, 1)
    count = max(1, min(10_000, int(BATCH_SECONDS / max(_batch(once, device, 1), estimate / 100, 1e-9))))
    times = sorted(_batch(once, device, count) for _ in range(BATCHES))
    return times[(BATCHES - 1) // 4]


def _batch(once: Callable[[], object], device: torch.device, count: int) -> float:
    _finish(device)
    begin = time.perf_counter()
    for _ in range(count):
        once()
    _finish(device)
    return (time.perf_counter() - begin) / count


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
