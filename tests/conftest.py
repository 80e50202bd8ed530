"""Settings of all tests."""

import signal

from hypothesis import settings

# no test fails because the machine is busy
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# a shell starts background processes with interrupts ignored; commands that tests start would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
