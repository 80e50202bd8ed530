"""A scenario describes a cluster and what runs on it; it builds both and simulates them.

>>> scenario = Scenario.load("hello", {"training.global_batch_size": 64})
>>> scenario.derived.micro_batch_size
16
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Self

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.simulator.reading.dataclass import dataclass

if TYPE_CHECKING:
    from clustersim.scenarios.results.result import Result
    from clustersim.scenarios.run.running import Watch
    from clustersim.scenarios.run.sweep import Sweep


@dataclass(frozen=True, repr=False)
class Scenario(BuiltScenario):
    """A scenario that can be run; see `BuiltScenario` for what it holds."""

    @classmethod
    def of_model(
        cls,
        model: str,
        cluster: str,
        nodes: int = 1,
        batch: int | None = None,
        tokens: str | None = None,
        settings: Sequence[str] = (),
    ) -> Self:
        """Return the scenario of *model* (a name, or the path of a file) on *nodes* of *cluster*.

        *batch*: samples of a step, *tokens* of the whole run, such as ``1T``. *settings*: texts ``key.path=value``.
        What they leave open is chosen by `scenarios.defaults`. Raises `ScenarioError`.

        >>> Scenario.of_model("gpt2", "dgx1").specification.training.precision
        'fp16'
        """
        from clustersim.scenarios import defaults

        data = defaults.model_on(model, cluster, nodes, batch, tokens, settings)
        return cls.model_validate(data, list(settings))

    def run(self, watch: Watch | None = None) -> Result:
        """Simulate the scenario; *watch* is called with each simulation before it starts.

        Raises `DeadlockError` with the circle of waiting ops.
        """
        from clustersim.scenarios.run import running

        return running.run(self, watch)

    def sweep(
        self, over: Mapping[str, Sequence[Any]], *, zipped: bool = False, processes: int = 1, on: str = ""
    ) -> Sweep:
        """Simulate the scenario, or each of its variants, with the values *over* each dotted key; return their rows.

        All combinations are run, or, *zipped*, the first values together, then the second. A run that fails is a row
        with its message. *processes* of this machine share the runs, or the workers of the Dask scheduler *on*, such
        as ``tcp://host:8786``.

        >>> rows = Scenario.load("hello").sweep({"training.global_batch_size": [64, 128]}).table()
        >>> [(row["training.global_batch_size"], row["memory.fits"]) for row in rows]
        [(64, True), (128, True)]
        """
        from clustersim.scenarios.run.sweep import Sweep, executed, runs
        from clustersim.scenarios.run.sweep_table import of_mapping

        axes = of_mapping(over)
        several = list(runs(self, axes, zipped, remote=bool(on)))
        with closing(executed(several, processes, on)) as ended:
            rows = dict(ended)
        return Sweep(self.name, axes, tuple(rows[index] for index in range(len(several))))
