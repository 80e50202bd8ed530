"""Protobuf's wire format: numbers, tags and fields (https://protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

VARINT, FIXED_64, LENGTH = 0, 1, 2
"""Wire types of fields."""


def tag(field: int, wire: int) -> bytes:
    """Return the number and the wire type of a field."""
    return varint(field << 3 | wire)


def varint(number: int) -> bytes:
    """Return *number*, not negative, in groups of seven bits, the lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    if number < 128:
        return bytes((number,))
    groups = bytearray()
    while number >= 128:
        groups.append(number & 127 | 128)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def number(field: int, value: int) -> bytes:
    """Return *value* as the field of that number."""
    return tag(field, VARINT) + varint(value)


def message(field: int, content: bytes | str) -> bytes:
    """Return *content*, a message, a text or bytes, as the field of that number."""
    encoded = content.encode() if isinstance(content, str) else content
    return tag(field, LENGTH) + varint(len(encoded)) + encoded
