"""Compilation by numba, for all compiled functions of the project. The code is kept on disk where it can be."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core import event
from numba.core.caching import FunctionCache
from numba.core.typing.templates import Signature

log = logging.getLogger(__name__)


def compiled(
    what: str = "", seconds: int = 0, signature: Signature | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that compiles a function with the *options* of `numba.njit`, or loads it from the disk.

    It is compiled at once for *signature*; None: when it is called, for the types of its arguments. Before that a
    warning is logged that says *what* is compiled, and about how many *seconds* that takes; no warning without a text.
    Functions that it calls are compiled with it: for them plain `numba.njit` will do, if their constants are in the
    same module.
    """

    def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
        dispatcher = njit(**options)(function)
        cache = _cache(function)
        if cache is not None:
            dispatcher._cache = cache
        if what:
            notice = _Notice(function, what, seconds, cache is not None)
            event.register("numba:compile", notice)  # type: ignore[no-untyped-call]
        if signature is not None:
            dispatcher.compile(signature)
            dispatcher.disable_compile()
        made: Callable[..., Any] = dispatcher
        return made

    return compile_function


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

    def save_overload(self, signature: Signature, data: Any) -> None:
        """Keep the code, if there is room. It can be used in any case."""
        try:
            super().save_overload(signature, data)  # type: ignore[no-untyped-call]
        except OSError as error:
            log.warning("compiled code cannot be kept on disk: %s", error)


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

    def __init__(self, function: Callable[..., Any], what: str, seconds: int, keeps: bool) -> None:
        self.function, self.what, self.seconds, self.keeps = function, what, seconds, keeps

    def on_start(self, event: Any) -> None:
        """Log it. The functions that it calls are compiled with it; they are not logged."""
        if event.data["dispatcher"].py_func is not self.function:
            return
        if self.keeps:
            log.warning("compiling %s, once on this machine: about %d s", self.what, self.seconds)
        else:
            log.warning(
                "compiling %s, about %d s in every run: no folder to keep it in can be written; "
                "set NUMBA_CACHE_DIR to one",
                self.what,
                self.seconds,
            )

    def on_end(self, event: Any) -> None:
        """Nothing is logged."""
