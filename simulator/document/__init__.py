"""YAML documents with the position of each value, so that errors name file, line, column and key.

Catalogue files and scenarios are read by `read`, combined by `merged` (keys override a preset), and `validated` by a
pydantic model with the quantities of this package.
"""

from simulator.document.document import Document, Path, Position, dotted, merged, part, replaced
from simulator.document.quantities import (
    Amount,
    Bandwidth,
    Count,
    Duration,
    Flag,
    Fraction,
    Index,
    Number,
    Power,
    Quantity,
    Rate,
    Ratio,
    Section,
    Size,
    Time,
)
from simulator.document.reading import read, read_document, read_value
from simulator.document.validation import Fault, validated

__all__ = [
    "Amount",
    "Bandwidth",
    "Count",
    "Document",
    "Duration",
    "Fault",
    "Flag",
    "Fraction",
    "Index",
    "Number",
    "Path",
    "Position",
    "Power",
    "Quantity",
    "Rate",
    "Ratio",
    "Section",
    "Size",
    "Time",
    "dotted",
    "merged",
    "part",
    "read",
    "read_document",
    "read_value",
    "replaced",
    "validated",
]
