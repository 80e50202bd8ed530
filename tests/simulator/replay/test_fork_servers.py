"""Processes come from a fork server that has imported what they need, whatever processes were started before."""

import sys

from clustersim.simulator.replay.rank_process import end, start

MODULE = "colorsys"
"""A module of the standard library that nothing else here imports."""


def tell(pipe):
    pipe.send(MODULE in sys.modules)


def is_imported(*imports):
    """Whether a process of a fork server with *imports* begins with `MODULE`."""
    process = start(tell, imports=imports)
    try:
        return process[1].recv()
    finally:
        end([process])


def test_each_set_of_imports_has_its_fork_server():
    assert [is_imported(), is_imported(MODULE), is_imported(), is_imported(MODULE)] == [False, True, False, True]
