"""The commands, one file each. They import what they need when they are called.

The signature of a command lists its options; therefore some of these functions are over 40 lines long.
"""

from scenarios.commands import (
    accuracy,
    calibrate,
    campaign,
    check,
    compare,
    explain,
    init,
    listing,
    memory,
    mfu,
    plan,
    plot,
    run,
    schema,
    sensitivity,
    show,
    sweep,
    validate,
)
from scenarios.commands.exchange import export, importing, report

__all__ = [
    "accuracy",
    "calibrate",
    "campaign",
    "check",
    "compare",
    "explain",
    "export",
    "importing",
    "init",
    "listing",
    "memory",
    "mfu",
    "plan",
    "plot",
    "report",
    "run",
    "schema",
    "sensitivity",
    "show",
    "sweep",
    "validate",
]
