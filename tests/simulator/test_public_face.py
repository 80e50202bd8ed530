"""The public face shows all that it names, and loads nothing until asked."""

import subprocess
import sys

import pytest

import simulator


@pytest.mark.parametrize("name", simulator.__all__)
def test_every_name_is_there(name):
    assert getattr(simulator, name).__name__ == name


def test_what_it_does_not_name_is_not_there():
    with pytest.raises(AttributeError, match="module simulator has no attribute Worker"):
        _ = simulator.Worker


def test_importing_it_loads_no_library():
    code = "import simulator, sys; print(sorted({'simpy', 'numpy', 'networkx', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
