"""Compilation of the event loop by numba, which keeps the compiled code on disk where it can."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core import event
from numba.core.caching import FunctionCache
from numba.core.typing.templates import Signature

SECONDS = 10
"""About how long the event loop takes to compile, s, on one core of an Intel Xeon of 2021."""

log = logging.getLogger(__name__)


def compile_function(function: Callable[..., Any], signature: Signature, **options: Any) -> Callable[..., Any]:
    """Compile *function* for *signature* with the *options* of `numba.njit`, or load it from the cache on disk.

    If it must be compiled, a warning is logged first.
    """
    dispatcher = njit(**options)(function)
    cache = _cache(function)
    if cache is not None:
        dispatcher._cache = cache
    with event.install_listener("numba:compile", _Notice(function, cache is not None)):
        try:
            dispatcher.compile(signature)
        except OSError as error:
            # numba writes its cache last, so the compiled code can be used
            log.warning("the compiled event loop cannot be kept on disk: %s", error)
    dispatcher.disable_compile()
    compiled: Callable[..., Any] = dispatcher
    return compiled


class _Cache(FunctionCache):
    """Numba's cache with the global constants of the function as part of its key.

    Numba's own key has the version of the function's file only. Constants imported from other files are part of the
    compiled code too.
    """

    def _index_key(self, signature: Signature, codegen: Any) -> tuple[Any, ...]:
        names = self._py_func.__globals__.items()
        constants = tuple(sorted((name, value) for name, value in names if isinstance(value, int | float)))
        key: tuple[Any, ...] = super()._index_key(signature, codegen)  # type: ignore[no-untyped-call]
        return *key, constants


def _cache(function: Callable[..., Any]) -> _Cache | None:
    """The cache of *function*; None if numba finds no writable folder for it.

    Numba tries ``NUMBA_CACHE_DIR``, ``__pycache__`` beside the file of the function, and the user's folder for caches.
    """
    try:
        return _Cache(function)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None


class _Notice(event.Listener):
    """Logs a warning when the compilation of *function* starts."""

    def __init__(self, function: Callable[..., Any], caches: bool) -> None:
        self.function, self.caches = function, caches

    def on_start(self, event: Any) -> None:
        """Log it. The functions that it calls are compiled with it; they are not logged."""
        if event.data["dispatcher"].py_func is not self.function:
            return
        if self.caches:
            log.warning("compiling the event loop, once on this machine: about %d s", SECONDS)
        else:
            log.warning(
                "compiling the event loop, about %d s in every run: no folder to keep it in can be written; "
                "set NUMBA_CACHE_DIR to one",
                SECONDS,
            )

    def on_end(self, event: Any) -> None:
        """Nothing is logged."""
