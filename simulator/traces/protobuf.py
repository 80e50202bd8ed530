"""Protobuf's wire format: numbers, tags and fields (https://protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

from collections.abc import Iterator

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


class TruncatedMessageError(ValueError):
    """Bytes that are no whole message."""


def fields(content: bytes, *, tagged: bool = True, packed: bool = False) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field of *content*; fixed numbers are taken as bytes.

    Without tags *content* is a series of messages behind their lengths; *packed*, it is a series of numbers. Raises
    `TruncatedMessageError`.

    >>> list(fields(number(1, 300) + message(2, "ab"))), list(fields(b"\\x01\\xac\\x02", packed=True))
    ([(1, 300), (2, b'ab')], [(0, 1), (0, 300)])
    """
    place = 0
    while place < len(content):
        field, wire = 0, VARINT if packed else LENGTH
        if tagged and not packed:
            key, place = _read_varint(content, place)
            field, wire = key >> 3, key & 7
        if wire == VARINT:
            value, place = _read_varint(content, place)
            yield field, value
            continue
        length = WIDTHS.get(wire)
        if wire == LENGTH:
            length, place = _read_varint(content, place)
        if length is None or place + length > len(content):
            raise TruncatedMessageError(f"ends early, or is damaged at byte {place:,} of {len(content):,}")
        yield field, content[place : place + length]
        place += length


WIDTHS = {FIXED_64: 8, 5: 4}
"""Bytes of fixed numbers by wire type."""


def _read_varint(content: bytes, place: int) -> tuple[int, int]:
    """Return the number at *place*, and the place behind it."""
    found = 0
    for turn in range(10):
        if place + turn >= len(content):
            break
        found |= (content[place + turn] & 127) << 7 * turn
        if content[place + turn] < 128:
            return found, place + turn + 1
    raise TruncatedMessageError(f"ends early, or is damaged at byte {place:,} of {len(content):,}")
