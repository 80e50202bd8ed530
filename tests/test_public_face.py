"""The public face shows all that it names, and loads nothing until asked."""

import subprocess
import sys

import pytest

import clustersim


@pytest.mark.parametrize("name", clustersim.__all__)
def test_every_name_is_there(name):
    assert getattr(clustersim, name) is not None


def test_what_it_does_not_name_is_not_there():
    with pytest.raises(AttributeError, match="module clustersim has no attribute Worker"):
        _ = clustersim.Worker


def test_importing_it_loads_no_library():
    heavy = "{'simpy', 'numpy', 'networkx', 'pydantic'}"
    code = f"import sys; import clustersim; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
