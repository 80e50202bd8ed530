"""A device is measured by timing kernels on it: matrix products over shapes, copies, launches, and copies to its host.

The device is a parameter: any that torch has, a GPU or the processor itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from simulator.errors import CalibrationError
from simulator.replay.computation import DTYPES

BATCHES = 5
BATCH_SECONDS = 0.02
"""A time is the lower quartile of so many batches of about so long: what else goes on can only add."""

SIDES = (128, 256, 512, 1024, 2048, 4096, 8192)
DEPTHS = (64, 256, 1024, 4096, 16384)
"""m = n and k of the products: from less than a tile of every SM to the layers of large models."""

LONGEST = 0.25
"""Seconds: products that would take longer are left out. They are as fast as those before them."""

VECTORS = tuple(2**power for power in range(16, 31, 2))
"""Bytes that are copied: from what lies in a cache to what does not."""

LAUNCHES = 200
"""Kernels of one element, issued one after the other: the host is what they wait for."""

ON_PROCESSORS = ("fp32",)
"""The others are converted there by many."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product of m x k by k x n, *shape* being (m, n, k), in *seconds*."""

    precision: str
    shape: tuple[int, int, int]
    seconds: float

    @property
    def flops(self) -> float:
        """A multiplication and an addition for each term."""
        m, n, k = self.shape
        return 2.0 * m * n * k


@dataclass(frozen=True, slots=True)
class Transfer:
    """*nbytes* read or written in *seconds*."""

    nbytes: float
    seconds: float


@dataclass(frozen=True)
class Device:
    """What was measured of the device that is called *name*: of copies in its memory all bytes read and written count.

    *launch* is in s for each kernel; *to_host* and *to_device* are none where the device is the host. *memory* in bytes
    and *sms* are what it says of itself.
    """

    name: str
    products: tuple[Product, ...]
    copies: tuple[Transfer, ...]
    launch: float
    to_host: tuple[Transfer, ...] = ()
    to_device: tuple[Transfer, ...] = ()
    memory: float | None = None
    sms: int | None = None


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
    """From memory to memory; on one device its memory is read and written, between two the bus passed once."""
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
    """Seconds of *once* on *device*, issued again and again."""
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
