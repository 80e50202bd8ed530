"""What holds for all tests."""

import signal

from hypothesis import settings

# no test is gated by the clock: a busy machine is no fault of the code
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# what a shell starts in the background, these tests perhaps, ignores interrupts, and so would the commands they start
signal.signal(signal.SIGINT, signal.default_int_handler)
