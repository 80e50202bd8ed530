"""Compiled code is kept on disk. A compilation, and a folder that cannot be written, are reported once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core import config

from clustersim.simulator.engine.compiled.compilation import is_kept

ROOT = Path(__file__).parents[4]

LOOP = """
from numba import njit, types
from constants import FACTOR
from clustersim.simulator.engine.compiled.compilation import compiled

@njit
def _times(number):
    return FACTOR * number

def _loop(number):
    return _times(number) + 1

loop = compiled("the event loop", 10, SIGNATURE, nogil=True)(_loop)
print(loop(5))
"""

LATER = "None"
AT_ONCE = "types.int64(types.int64)"
"""Signatures: compiled when it is called, or at once."""


@pytest.fixture(params=[AT_ONCE, pytest.param(LATER, marks=pytest.mark.exhaustive)])
def loop(request, tmp_path):
    """A function that runs a module with a compiled function in a new process and returns (stdout, stderr)."""
    (tmp_path / "module.py").write_text(LOOP.replace("SIGNATURE", request.param))
    (tmp_path / "constants.py").write_text("FACTOR = 2\n")

    def run(file="module.py", **environment):
        own = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1", **environment}
        kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
        done = subprocess.run(
            [sys.executable, tmp_path / file], env={**kept, **own}, capture_output=True, text=True, check=True
        )
        return done.stdout, done.stderr

    return run


def test_a_compilation_is_reported_and_kept(loop, tmp_path):
    cache = str(tmp_path / "cache")
    assert loop(NUMBA_CACHE_DIR=cache) == ("11\n", "compiling the event loop, once on this machine: about 10 s\n")
    assert loop(NUMBA_CACHE_DIR=cache) == ("11\n", "")


@pytest.mark.exhaustive
def test_kept_code_is_loaded_without_what_numba_compiles_with(loop, tmp_path):
    (tmp_path / "shown.py").write_text("import module, sys; print('numba.np.arraymath' in sys.modules)\n")
    cache = str(tmp_path / "cache")
    assert loop("shown.py", NUMBA_CACHE_DIR=cache)[0] == "11\nTrue\n"
    assert loop("shown.py", NUMBA_CACHE_DIR=cache)[0] == "11\nFalse\n"


@pytest.mark.exhaustive
def test_a_changed_imported_constant_is_compiled_again(loop, tmp_path):
    cache = str(tmp_path / "cache")
    loop(NUMBA_CACHE_DIR=cache)
    (tmp_path / "constants.py").write_text("FACTOR = 3\n")
    assert loop(NUMBA_CACHE_DIR=cache)[0] == "16\n"
    (tmp_path / "constants.py").write_text("FACTOR = 2\n")
    assert loop(NUMBA_CACHE_DIR=cache) == ("11\n", "")


READ_ONLY = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/cache", "NUMBA_CACHE_DIR": "/dev/null/numba"}
"""Nothing can be written in the home of the user, as in many containers."""


@pytest.mark.exhaustive
def test_with_a_read_only_home_it_is_kept_in_a_temporary_folder_of_the_user(loop, tmp_path):
    (tmp_path / "__pycache__").write_text("a file where the folder would be")
    (tmp_path / "temporary").mkdir()
    home = tmp_path / "temporary" / f"clustersim-{os.getuid()}"
    printed, said = loop(TMPDIR=str(tmp_path / "temporary"), **READ_ONLY)
    assert printed == "11\n"
    assert said == (
        f"compiling the event loop, about 10 s, and kept only in {home}: no other folder can be written; "
        "set NUMBA_CACHE_DIR to one that stays\n"
    )
    assert home.stat().st_mode & 0o777 == 0o700
    assert loop(TMPDIR=str(tmp_path / "temporary"), **READ_ONLY) == ("11\n", "")


@pytest.mark.exhaustive
def test_a_temporary_folder_that_is_no_folder_of_the_user_is_not_taken(loop, tmp_path):
    (tmp_path / "__pycache__").write_text("a file where the folder would be")
    (tmp_path / "somewhere").mkdir()
    (tmp_path / f"clustersim-{os.getuid()}").symlink_to(tmp_path / "somewhere")
    assert "in every run" in loop(TMPDIR=str(tmp_path), **READ_ONLY)[1]
    assert list((tmp_path / "somewhere").iterdir()) == []


@pytest.mark.exhaustive
def test_code_is_kept_for_the_present_file_only(loop, tmp_path, monkeypatch):
    folder, module = tmp_path / "cache", tmp_path / "module.py"
    monkeypatch.setattr(config, "CACHE_DIR", str(folder))
    assert not is_kept(module, "_loop")
    loop(NUMBA_CACHE_DIR=str(folder))
    assert is_kept(module, "_loop")
    assert not is_kept(module, "_lo")
    module.write_text(module.read_text() + "# changed")
    assert not is_kept(module, "_loop")


@pytest.mark.exhaustive
def test_without_a_writable_folder_it_is_compiled_in_every_run(loop, tmp_path):
    (tmp_path / "__pycache__").write_text("a file where the folder would be")
    (tmp_path / f"clustersim-{os.getuid()}").write_text("another one")
    for _ in range(2):
        printed, said = loop(TMPDIR=str(tmp_path), **READ_ONLY)
        assert printed == "11\n"
        assert said == (
            "compiling the event loop, about 10 s in every run: no folder to keep it in can be written; "
            "set NUMBA_CACHE_DIR to one\n"
        )


OF_A_TUPLE = """
from tuples import PAIR
from clustersim.simulator.engine.compiled.compilation import compiled

print(compiled("the sum", 1)(lambda pair: pair.left + pair.right)(PAIR(2, 3)))
"""

PAIRS = """
from typing import NamedTuple

class NAME(NamedTuple):
    left: int
    right: int

PAIR = NAME
"""


@pytest.mark.exhaustive
def test_code_for_a_type_that_is_gone_is_compiled_again(tmp_path):
    (tmp_path / "sums.py").write_text(OF_A_TUPLE)
    own = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("Pair", "Couple"):
        (tmp_path / "tuples.py").write_text(PAIRS.replace("NAME", name))
        environment = {**os.environ, **own, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        command = [sys.executable, tmp_path / "sums.py"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr
