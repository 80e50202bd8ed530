"""Measurements of a device: matrix products, copies, and the cost of a launch. They need no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """A product of m x k by k x n in *seconds*. *shape*: (m, n, k)."""

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
    """Measurements of the device *name*. The bytes of copies in its memory are bytes read plus bytes written.

    *launch*: s of the host for each kernel of eager training. *to_host* and *to_device* are empty if the device is the
    host. *memory* (bytes) and *sms* are as the device reports them.
    """

    name: str
    products: tuple[Product, ...]
    copies: tuple[Transfer, ...]
    launch: float
    to_host: tuple[Transfer, ...] = ()
    to_device: tuple[Transfer, ...] = ()
    memory: float | None = None
    sms: int | None = None
