"""What can go wrong, one class for each part of the house; every one is a `SimulatorError`."""


class SimulatorError(Exception):
    """Base of all errors that clustersim raises on purpose; its text is meant for the user."""


class ScheduleError(SimulatorError):
    """A schedule violates a check rule; the text shows the program with the offending op marked."""


class ClusterError(SimulatorError):
    """A cluster cannot be built, or two devices of it cannot reach each other."""


class DeadlockError(SimulatorError):
    """The simulated ranks wait for one another; the text prints the circle."""


class ScenarioError(SimulatorError):
    """A scenario file, an option or a catalogue file is wrong; the text names file, line and key."""


class CalibrationError(SimulatorError):
    """Measurements cannot be read, or do not determine the parameters."""


class ReplayError(SimulatorError):
    """Ranks on real devices did not come to the end: one died, the time ran out, or torch is missing."""
