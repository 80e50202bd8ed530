"""The entry of an accelerator is recovered from simulated measurements, and fitted to this processor."""

from dataclasses import replace

import numpy as np
import pytest

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.kernel import matmul
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.replay.accelerator_fit import entry, fit_link
from clustersim.simulator.replay.measurements import DeviceMeasurements, TimedCopy, TimedProduct
from clustersim.topologies.catalogue import GPUS, device
from tests.extras import require

require("torch", "the measurement needs torch")


LAUNCH = 24.6e-6
"""The host's, for a kernel of eager training beside an H200. Kernels are measured without it."""


def timed(accelerator, precisions, noise=0.02):
    """The measurements that *accelerator* would produce."""
    from clustersim.simulator.replay import measure_device as measuring

    random = np.random.default_rng(0)

    def about(seconds):
        return float(seconds * np.exp(noise * random.standard_normal()))

    products = tuple(
        TimedProduct(p, (side, side, k), about(accelerator.seconds([matmul(side, side, k, precision=p)])))
        for p in precisions
        for side in measuring.SIDES
        for k in measuring.DEPTHS
    )
    rate = accelerator.memory_bandwidth * accelerator.memory_efficiency
    # vectors in a cache are read four times as fast
    copies = tuple(
        TimedCopy(2 * n, about(accelerator.kernel_latency + 2 * n / rate / (4 if n < 32e6 else 1)))
        for n in measuring.VECTORS
    )
    host_copies = tuple(TimedCopy(n, about(9e-6 + n / 21e9)) for n in measuring.VECTORS)
    return DeviceMeasurements(
        "x", products, copies, LAUNCH, host_copies, host_copies, accelerator.memory_bytes, accelerator.sms
    )


def test_the_efficiencies_of_a_gpu_of_the_catalogue():
    known = device(GPUS, "a100_80gb").accelerator()
    truth = replace(known, matmul_efficiency=0.66, memory_efficiency=0.78, k_half=150.0)
    found = entry(timed(truth, ("bf16", "tf32")), known)
    made = found.accelerator
    assert made.peak_flops == known.peak_flops
    assert made.matmul_efficiency == pytest.approx(0.66, rel=0.03)
    assert made.k_half == pytest.approx(150, rel=0.15)
    assert made.memory_efficiency == pytest.approx(0.78, rel=0.03)
    assert set(found.errors) == {"matmul_efficiency", "k_half", "memory_efficiency"}
    assert found.errors["memory_efficiency"] < 0.05
    assert found.fit.typical_error < 0.03


def test_a_gpu_outside_the_catalogue():
    truth = Accelerator("new", {"fp32": 40e12, "bf16": 600e12}, 2.5e12, 64e9, sms=96, k_half=90.0)
    made = entry(timed(truth, ("fp32", "bf16"))).accelerator
    assert made.peak("bf16") == pytest.approx(600e12, rel=0.05)
    assert made.peak("fp32") == pytest.approx(40e12, rel=0.05)
    assert made.memory_bandwidth == pytest.approx(2.5e12, rel=0.05)
    assert (made.sms, made.memory_bytes) == (96, 64e9)


def test_the_link_to_the_host():
    measured = timed(device(GPUS, "h100").accelerator(), ("bf16",))
    fitted = fit_link([*measured.to_host, *measured.to_device])
    assert (fitted.latency, fitted.bandwidth) == (pytest.approx(9e-6, rel=0.1), pytest.approx(21e9, rel=0.03))


def test_nothing_measured():
    with pytest.raises(CalibrationError, match="no products were measured"):
        entry(DeviceMeasurements("x", (), (TimedCopy(1e6, 1e-3), TimedCopy(1e7, 1e-2)), LAUNCH))


def test_this_processor_is_a_device(monkeypatch):
    from clustersim.simulator.replay import measure_device as measuring

    for name, value in {"SIDES": (32, 64), "DEPTHS": (32,), "VECTORS": (2**16, 2**20), "BATCH_SECONDS": 1e-3}.items():
        monkeypatch.setattr(measuring, name, value)
    measured = measuring.measure_device("cpu")
    assert [one.shape for one in measured.products] == [(32, 32, 32), (64, 64, 32)]
    assert [one.nbytes for one in measured.copies] == [2**17, 2**21]
    assert (measured.to_host, measured.sms) == ((), None)
    made = entry(measured).accelerator
    fastest = max(one.flops / one.seconds for one in measured.products)
    assert 0 < made.peak("fp32") < 100 * fastest
    assert made.sms == 0 and made.memory_bandwidth > 0


def test_a_missing_device():
    from clustersim.simulator.replay import measure_device as measuring

    with pytest.raises(CalibrationError, match="--device tpu9: torch has no such device"):
        measuring.measure_device("tpu9")
