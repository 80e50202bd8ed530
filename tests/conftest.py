"""What holds for all tests."""

from hypothesis import settings

# no test is gated by the clock: a busy machine is no fault of the code
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
