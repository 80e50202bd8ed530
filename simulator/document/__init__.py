"""A YAML document keeps where each of its values stands, so that a fault is told with file, line, column and key.

Catalogue files and scenarios come in by this door: `read`, `merged` (a preset below the keys that override it), then
`validated` into a pydantic model built of the quantities that stand here.
"""

from simulator.document.document import Document, Path, Position, dotted, merged, part, replaced
from simulator.document.quantities import (
    Amount,
    Bandwidth,
    Count,
    Flag,
    Fraction,
    Index,
    Number,
    Power,
    Rate,
    Ratio,
    Section,
    Size,
    Time,
)
from simulator.document.reading import read, read_value
from simulator.document.validation import Fault, validated

__all__ = [
    "Amount",
    "Bandwidth",
    "Count",
    "Document",
    "Fault",
    "Flag",
    "Fraction",
    "Index",
    "Number",
    "Path",
    "Position",
    "Power",
    "Rate",
    "Ratio",
    "Section",
    "Size",
    "Time",
    "dotted",
    "merged",
    "part",
    "read",
    "read_value",
    "replaced",
    "validated",
]
