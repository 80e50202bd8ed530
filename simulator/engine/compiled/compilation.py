"""Compilation by numba, for all compiled functions of the project. The code is kept on disk where it can be."""

from __future__ import annotations

import getpass
import logging
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from numba import njit
from numba.core import event
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, UserWideCacheLocator
from numba.core.runtime.nrt import rtsys
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
            notice = _CompileNotice(function, what, seconds, cache)
            event.register("numba:compile", notice)  # type: ignore[no-untyped-call]
        if signature is not None:
            dispatcher.compile(signature)
            dispatcher.disable_compile()
        made: Callable[..., Any] = dispatcher
        return made

    return compile_function


class _TemporaryFolder(UserWideCacheLocator):
    """The last resort: a folder of the user's own among temporary files, which others cannot write."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        super().__init__(function, file)  # type: ignore[no-untyped-call]
        user = os.getuid() if hasattr(os, "getuid") else getpass.getuser()
        self.home = Path(tempfile.gettempdir()) / f"clustersim-{user}"
        folder: str = self.get_suitable_cache_subpath(file)  # type: ignore[no-untyped-call]
        self._cache_path = str(self.home / folder)

    def ensure_cache_path(self) -> None:
        """Make the folder. Raises `OSError` if it cannot be written, or if it is not the user's own."""
        self.home.mkdir(mode=0o700, exist_ok=True)
        found = self.home.lstat()
        own = not hasattr(os, "getuid") or found.st_uid == os.getuid()
        if not (stat.S_ISDIR(found.st_mode) and own):
            raise PermissionError(f"{self.home} belongs to somebody else")
        super().ensure_cache_path()  # type: ignore[no-untyped-call]


class _Folders(CompileResultCacheImpl):
    """Numba's folders for compiled code, and a temporary one if none of them can be written."""

    _locator_classes: ClassVar[list[Any]] = [*CompileResultCacheImpl._locator_classes, _TemporaryFolder]  # type: ignore[misc]


class _Cache(FunctionCache):
    """Numba's cache with the global constants of the function as part of its key.

    Numba's own key has the version of the function's file only. Constants imported from other files are part of the
    compiled code too.
    """

    _impl_class = _Folders

    @property
    def temporary(self) -> str:
        """The folder, if it is a temporary one; else empty."""
        return str(self._impl.locator.home) if isinstance(self._impl.locator, _TemporaryFolder) else ""

    def _index_key(self, signature: Signature, codegen: Any) -> tuple[Any, ...]:
        names = self._py_func.__globals__.items()
        constants = tuple(sorted((name, value) for name, value in names if isinstance(value, int | float)))
        key: tuple[Any, ...] = super()._index_key(signature, codegen)  # type: ignore[no-untyped-call]
        return *key, constants

    def load_overload(self, signature: Signature, target: Any) -> Any:
        """Return the code on disk; none if it was kept for types of an earlier version, which are no longer there.

        Code that is ready needs numba's runtime, not what numba knows of all functions that it can compile; loading
        that takes longer than the rest.
        """
        target.refresh = partial(rtsys.initialize, target)
        try:
            return super().load_overload(signature, target)  # type: ignore[no-untyped-call]
        except (AttributeError, ImportError):
            self.flush()  # type: ignore[no-untyped-call]
            return None
        finally:
            del target.refresh

    def save_overload(self, signature: Signature, data: Any) -> None:
        """Keep the code, if there is room. It can be used in any case."""
        try:
            super().save_overload(signature, data)  # type: ignore[no-untyped-call]
        except OSError as error:
            log.warning("compiled code cannot be kept on disk: %s", error)


def is_kept(file: Path, name: str) -> bool:
    """Return whether code of the function *name* in the present *file* is on disk, compiled by this version of numba.

    Neither is the file imported nor is anything compiled.
    """
    for kind in _Folders._locator_classes:
        locator = kind.from_function(is_kept, str(file))
        if locator is not None:
            folder, stamp = locator.get_cache_path(), locator.get_source_stamp()
            python = f"py{sys.version_info[0]}{sys.version_info[1]}{sys.abiflags}"
            found = Path(folder).glob(f"{file.stem}.{name}-*.{python}.nbi")
            files: Any = IndexDataCacheFile
            return any(files(folder, index.stem, stamp)._load_index() for index in found)
    return False


def _cache(function: Callable[..., Any]) -> _Cache | None:
    """The cache of *function*; None if no folder for it can be written.

    Numba tries ``NUMBA_CACHE_DIR``, ``__pycache__`` beside the file of the function, and the user's folder for caches.
    A read-only home, as in containers, leaves a temporary folder.
    """
    try:
        return _Cache(function)  # type: ignore[no-untyped-call]
    except (RuntimeError, OSError):
        return None


class _CompileNotice(event.Listener):
    """Logs a warning when the compilation of *function* starts."""

    def __init__(self, function: Callable[..., Any], what: str, seconds: int, cache: _Cache | None) -> None:
        self.function, self.what, self.seconds, self.cache = function, what, seconds, cache

    def on_start(self, event: Any) -> None:
        """Log it. The functions that it calls are compiled with it; they are not logged."""
        if event.data["dispatcher"].py_func is not self.function:
            return
        if self.cache is None:
            log.warning(
                "compiling %s, about %d s in every run: no folder to keep it in can be written; "
                "set NUMBA_CACHE_DIR to one",
                self.what,
                self.seconds,
            )
        elif self.cache.temporary:
            log.warning(
                "compiling %s, about %d s, and kept only in %s: no other folder can be written; "
                "set NUMBA_CACHE_DIR to one that stays",
                self.what,
                self.seconds,
                self.cache.temporary,
            )
        else:
            log.warning("compiling %s, once on this machine: about %d s", self.what, self.seconds)

    def on_end(self, event: Any) -> None:
        """Nothing is logged."""
