"""The input pipeline of a scenario: how long the samples of a step take, and how long the step waits for them.

Loading runs beside the step before, so in the steady state a step takes the longer of both. A checkpoint that is
written in the background shares the storage max-min fairly: neither gets less than half if it wants that.
"""

from __future__ import annotations

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.simulator.reading.dataclass import dataclass


@dataclass(frozen=True)
class Loading:
    """The samples of a step: *nbytes* at *bandwidth* (bytes/s; 0: at once), and *prepare* seconds of the processes.

    *shared*: checkpoints are written to the same storage.
    """

    nbytes: float
    bandwidth: float
    prepare: float
    shared: bool

    @property
    def seconds(self) -> float:
        """Seconds to load the samples of a step, reading and preparing at the same time."""
        return max(self.prepare, self.nbytes / self.bandwidth if self.bandwidth else 0.0)

    def wait(self, step: float) -> float:
        """Return the seconds that a step of *step* seconds waits for its samples."""
        return max(0.0, self.seconds - step)

    def writing(self, size: float, step: float) -> tuple[float, float]:
        """Return the seconds to write *size* bytes beside steps of *step* seconds, and those that the steps lose by it.

        The samples of a step are read while the write goes on; a step lasts as long as they take.
        """
        demand = self.nbytes / (step + self.wait(step))
        granted = min(demand, self.bandwidth / 2)
        seconds = size / (self.bandwidth - granted)
        return seconds, seconds * (1.0 - granted / demand)


def loading(scenario: BuiltScenario) -> Loading | None:
    """Return the loading of a step's samples; None if the scenario has no input section."""
    section, training = scenario.specification.input, scenario.specification.training
    if section is None or training is None:
        return None
    campaign = scenario.specification.campaign
    common = campaign.checkpoint.storage if campaign and campaign.checkpoint else None
    storage = section.storage or common
    each = training.global_batch_size / scenario.derived.replicas
    return Loading(
        training.global_batch_size * section.sample,
        storage.aggregate if storage else 0.0,
        each * section.prepare / section.workers,
        section.storage is None and storage is not None,
    )
