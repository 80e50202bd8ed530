"""Settings of all tests."""

import signal

from hypothesis import settings

from scenarios.commands import progress

# no test fails because the machine is busy
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# what a command prints on stderr does not depend on how long it takes
progress.LINES = 1e6

# a shell starts background processes with interrupts ignored; commands that tests start would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
