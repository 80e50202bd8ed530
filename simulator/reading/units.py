"""Quantities: text with a unit in files and options, SI floats inside.

>>> parse("200 Gb/s", "bandwidth")
25000000000.0
>>> show(25e9, "bandwidth")
'25 GB/s'
"""

from __future__ import annotations

import math
import re
from decimal import Decimal, Overflow

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

_BYTES = {f"{p}B": f for p, f in (_DECIMAL | _BINARY).items()}
_BITS_PER_SECOND = {f"{p}b/s": f / 8 for p, f in _DECIMAL.items()} | {f"{p}bit/s": f / 8 for p, f in _DECIMAL.items()}

SECONDS_PER_HOUR, SECONDS_PER_DAY, SECONDS_PER_YEAR = 3600.0, 86_400.0, 365.25 * 86_400.0
_CALENDAR = {"day": SECONDS_PER_DAY, "days": SECONDS_PER_DAY, "year": SECONDS_PER_YEAR, "years": SECONDS_PER_YEAR}

UNITS: dict[str, dict[str, float]] = {
    "bandwidth": {f"{unit}/s": f for unit, f in _BYTES.items()} | _BITS_PER_SECOND,
    "size": _BYTES,
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": SECONDS_PER_HOUR, **_CALENDAR},
    "rate": {f"{p}FLOP/s": f for p, f in _DECIMAL.items()} | {f"{p}FLOPS": f for p, f in _DECIMAL.items()},
    "power": {"W": 1.0, "kW": 1e3, "MW": 1e6},
    "share": {"%": 0.01},
}

EXAMPLES = {
    "bandwidth": '"25 GB/s" (bytes) or "200 Gb/s" (bits)',
    "size": '"40 MB" or "25 MiB"',
    "time": '"3 us" or "1.5 ms"',
    "rate": '"312 TFLOP/s"',
    "power": '"400 W"',
    "share": '"52 %"',
}

_SHOWN = {
    "bandwidth": ("TB/s", "GB/s", "MB/s", "kB/s", "B/s"),
    "size": ("PB", "TB", "GB", "MB", "kB", "B"),
    "time": ("s", "ms", "us", "ns"),
    "rate": ("PFLOP/s", "TFLOP/s", "GFLOP/s", "MFLOP/s", "FLOP/s"),
    "power": ("MW", "kW", "W"),
}

_QUANTITY = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S.*?)?\s*")


def parse(text: str | float, dimension: str) -> float:
    """Read a quantity such as ``"25 GB/s"`` as an SI float (bytes, bytes/s, s, FLOP/s, W).

    *dimension* is a key of `UNITS`. Raises `ValueError`, with an example, for a number without a unit and for a
    unit of another dimension.
    """
    if isinstance(text, bool) or not isinstance(text, str):
        raise ValueError(f"needs a unit, e.g. {EXAMPLES[dimension]}")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"is not a quantity; write e.g. {EXAMPLES[dimension]}")
    number, unit = match.groups()
    if unit is None:
        raise ValueError(f"needs a unit, e.g. {EXAMPLES[dimension]}")
    factor = UNITS[dimension].get(unit)
    if factor is None:
        raise ValueError(f'"{unit}" is not a unit of {dimension}; write e.g. {EXAMPLES[dimension]}')
    try:
        # decimal, so that 5 us is 5e-06 to the last digit
        value = float(Decimal(number) * Decimal(repr(factor)))
    except Overflow:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError("must be finite")
    return value


def show(value: float, dimension: str, digits: int = 4) -> str:
    """Print *value* (SI) with the largest unit that leaves at least 1 before the point, *digits* significant."""
    units = _SHOWN[dimension]
    if value == 0:
        return f"0 {units[-1] if dimension != 'time' else 's'}"
    if not math.isfinite(value):
        return f"{value} {units[-1]}"
    for unit in units:
        factor = UNITS[dimension][unit]
        # rounding first: 0.99999 s is 1 s, not 1000 ms
        if abs(float(f"{value / factor:.{digits}g}")) >= 1:
            break
    scaled = float(f"{value / factor:.{digits}g}")
    return f"{int(scaled) if scaled.is_integer() else scaled} {unit}"


_LONG = {"years": SECONDS_PER_YEAR, "days": SECONDS_PER_DAY, "hours": SECONDS_PER_HOUR, "minutes": 60.0}


def show_long(seconds: float) -> str:
    """Print a time of minutes, hours, days or years, whichever leaves at least 1 before the point; else as `show`.

    >>> show_long(3580.0), show_long(86_400.0), show_long(1e9), show_long(0.25)
    ('59.7 minutes', '1 day', '31.7 years', '250 ms')
    """
    for unit, factor in _LONG.items():
        number = float(f"{seconds / factor:.3g}")
        if number >= 1:
            return (
                f"{number:,.0f} {unit[:-1] if number == 1 else unit}"
                if number >= 100 or number == 1
                else (f"{number:.3g} {unit}")
            )
    return show(seconds, "time", 3)
