"""Execution of independent runs: in this process, in processes of this machine, or on a Dask cluster.

>>> from scenarios.execution import execute
>>> list(execute([(abs, -2), (abs, 3)]))
[(0, 2), (1, 3)]
"""

from scenarios.execution.execute import execute
from scenarios.execution.job import Failure

__all__ = ["Failure", "execute"]
