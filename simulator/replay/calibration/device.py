"""Measurement of a device by timed kernels: matrix products over shapes, copies, launches, and copies to its host.

The device is any that torch has: a GPU or the processor itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from simulator.errors import CalibrationError
from simulator.replay.calibration.measured_device import Device, Product, Transfer
from simulator.replay.computation import DTYPES

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

LAUNCHES = 200
"""Kernels of one element, issued one after the other, so that the host is the bottleneck."""

ON_PROCESSORS = ("fp32",)
"""Many processors convert the other precisions to this one."""


def measure_device(name: str) -> Device:
    """Measure the device that torch calls *name*, ``cuda``, ``cuda:1`` or ``cpu``. Raises `CalibrationError`."""
    device = _device(name)
    if device.type != "cuda":
        return Device("cpu", tuple(_products(device, ON_PROCESSORS)), tuple(_copies(device, device)), _launch(device))
    properties = torch.cuda.get_device_properties(device)
    host = torch.device("cpu")
    return Device(
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


def _products(device: torch.device, precisions: tuple[str, ...]) -> Iterator[Product]:
    for precision in precisions:
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        rate = 0.0
        for side in SIDES:
            for depth in DEPTHS:
                product = Product(precision, (side, side, depth), 0.0)
                if rate and product.flops / rate > LONGEST:
                    continue
                seconds = _product_seconds(device, DTYPES[precision], product.shape)
                rate = max(rate, product.flops / seconds)
                yield Product(precision, product.shape, seconds)


def _product_seconds(device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int]) -> float:
    m, n, k = shape
    left, right = torch.randn(m, k, device=device, dtype=dtype), torch.randn(k, n, device=device, dtype=dtype)
    out = torch.empty(m, n, device=device, dtype=dtype)
    return timed(lambda: torch.mm(left, right, out=out), device)


def _copies(source: torch.device, target: torch.device) -> Iterator[Transfer]:
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
        seconds = timed(lambda pair=tuple(vectors): pair[1].copy_(pair[0], non_blocking=pinned), device)  # type: ignore[misc]
        yield Transfer(nbytes if pinned else 2 * nbytes, seconds)


def _launch(device: torch.device) -> float:
    one = torch.zeros(1, device=device)

    def launches() -> None:
        for _ in range(LAUNCHES):
            one.add_(1.0)

    return timed(launches, device) / LAUNCHES


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
