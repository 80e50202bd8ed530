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


def test_a_short_run_loads_only_what_it_uses():
    """Of the libraries none that it does without, and of the project no readers, queues or charts."""
    code = "import sys\nfrom clustersim.scenarios.commands.command_line import main\ntry:\n    main()\nfinally:\n"
    code += "    print(*sys.modules, file=sys.stderr)"
    arguments = [sys.executable, "-c", code, "run", "--json", "hello"]
    loaded = subprocess.run(arguments, capture_output=True, text=True, check=True).stderr.split()
    own = ("clustersim.scenarios.queue", "clustersim.scenarios.search", "clustersim.simulator.charts")
    heavy = ("numba", "scipy", "networkx", "matplotlib", "rich", "torch", "pandas", *own)
    files = "clustersim.simulator.network.algorithm_files.msccl"
    assert [one for one in loaded if one.split(".")[0] in heavy or one.startswith((files, *own))] == []
