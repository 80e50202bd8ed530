"""Choice of the engine: SimPy for small simulations, the compiled event loop for large ones."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.lookup import installed, loaded

ENGINES = ("auto", "simpy", "compiled")

COMPILED_FROM = 20_000
"""From this number of ops on, ``auto`` is the compiled engine. SimPy runs as many in the time of loading it, 0.5 s."""

COMPILED_FIRST_FROM = 400_000
"""The same while the engine has not been compiled on this machine, counted over all simulations of a process.

SimPy runs 30,000 to 60,000 ops a second (``python -m tests.benchmarks engine``), so as many in 7 to 13 s; compiling
takes 20 s, once for all later simulations."""

log = logging.getLogger(__name__)


def choose(engine: str, ops: int) -> str:
    """The engine for a simulation of *ops* ops, where *engine* is the user's choice.

    ``auto`` leaves to SimPy what it ends sooner than numba is imported, or the engine compiled if it has not been.
    Without numba it is SimPy for any number of ops, and a warning is logged. Raises `SimulatorError` for an
    unknown engine, and for ``compiled`` without numba.
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
    if not _compiled_before() and _Simulated.ops + ops < COMPILED_FIRST_FROM:
        _Simulated.ops += ops
        return "simpy"
    return "compiled"


class _Simulated:
    """The *ops* that SimPy has been given in this process because the engine was not compiled."""

    ops = 0


def _compiled_before() -> bool:
    """Return whether the compiled engine is loaded, or kept on disk by an earlier process."""
    return loaded("clustersim.simulator.engine.compiled.event_loop") or _kept()


@cache
def _kept() -> bool:
    from clustersim.simulator.engine.compiled.compilation import is_kept

    return is_kept(Path(__file__).parent / "engine/compiled/event_loop.py", "_advance")


@cache
def numba_found() -> bool:
    """Return whether numba seems to be installed; it is not imported, which takes longer than a small simulation."""
    return installed("numba")


@cache
def numba_fault() -> str:
    """The reason why the compiled engine cannot run; empty if it can."""
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
