"""Choice of the engine: SimPy for small simulations, the compiled event loop for large ones."""

from __future__ import annotations

import logging
from functools import cache

from simulator.errors import SimulatorError

ENGINES = ("auto", "simpy", "compiled")

COMPILED_FROM = 20_000
"""Ops from which ``auto`` takes the compiled engine: loading it takes as long as SimPy takes for so many (0.5 s)."""

log = logging.getLogger(__name__)


def choose(engine: str, ops: int) -> str:
    """The engine to take where *engine* is asked for and so many *ops* are simulated.

    Without numba ``auto`` takes SimPy for any number of ops, and logs a warning. Raises `SimulatorError` for an engine
    that does not exist, and for ``compiled`` without numba.
    """
    if engine not in ENGINES:
        raise SimulatorError(f'no engine "{engine}"; there are {", ".join(ENGINES)}')
    if engine == "compiled" and numba_fault():
        raise SimulatorError(numba_fault())
    if engine != "auto":
        return engine
    if ops < COMPILED_FROM:
        return "simpy"
    if numba_fault():
        _warn_once()
        return "simpy"
    return "compiled"


@cache
def numba_fault() -> str:
    """Why the compiled engine cannot run; empty if it can."""
    try:
        import numba  # noqa: F401
    except ModuleNotFoundError:
        return "the compiled engine needs numba, which is not installed: pip install numba, or take engine: simpy"
    except ImportError as error:
        return f"the compiled engine needs numba, which cannot be imported: {error}; or take engine: simpy"
    return ""


@cache
def _warn_once() -> None:
    log.warning("numba cannot be imported: SimPy runs the simulation, more slowly (pip install numba)")
