"""Errors, one class for each part of clustersim; all are subclasses of `SimulatorError`."""


class SimulatorError(Exception):
    """Base of all errors that clustersim raises on purpose; its text is meant for the user."""


class ScheduleError(SimulatorError):
    """A schedule violates a check rule; the text shows the program with the offending op marked."""


class ClusterError(SimulatorError):
    """A cluster cannot be built, or two devices of it cannot reach each other."""


class DeadlockError(SimulatorError):
    """The simulated ranks wait for one another; the text shows the circle."""


class ScenarioError(SimulatorError):
    """A scenario file, an option or a catalogue file is wrong; the text names file, line and key."""


class PlacedError(ScenarioError):
    """A `ScenarioError` that names its place in a document already."""


class CalibrationError(SimulatorError):
    """Measurements cannot be read, or do not determine the parameters."""


class TraceError(SimulatorError):
    """A trace of a real run cannot be read, or does not belong to the scenario; the text names the file."""


class ReplayError(SimulatorError):
    """A replay on real devices did not end: a rank died, the time ran out, or torch is missing."""


class ExecutionError(SimulatorError):
    """Runs cannot be executed where the user wants them: no process starts, or a cluster does not answer."""
