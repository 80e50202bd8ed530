"""Text that is safe on a terminal and in a file: no control characters, no half of a surrogate pair."""

from __future__ import annotations

import re

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters except tab and the ends of lines, and halves of surrogate pairs."""

LONGEST_NAME = 180
"""Bytes of a name: with prefix and suffix, ``timeline_NAME.png``, it is below the 255 of usual file systems."""


def joined(text: str) -> str:
    """Return *text* with pairs of surrogates, as JSON writes characters beyond 16 bits, as one character each."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") if CONTROL.search(text) else text


def text_fault(text: str) -> str:
    """Return what is wrong with *text*; empty if nothing is.

    >>> text_fault("two\\nlines"), text_fault("\\x1b[31mred")
    ('', "has the control character '\\\\x1b'")
    """
    found = CONTROL.search(text)
    if found is None:
        return ""
    what = "half of a surrogate pair," if "\ud800" <= found[0] <= "\udfff" else "the control character"
    return f"has {what} {found[0]!r}"


def name_fault(name: str) -> str:
    """Return why *name* cannot be the name of a folder or a part of a file's name; empty if it can.

    >>> name_fault("zero 1"), name_fault("a/b")
    ('', 'must be the name of a folder below runs/, without "/" or "\\\\", not "a/b"')
    """
    if CONTROL.search(name) or {"\n", "\r", "\t"} & set(name):
        return f"must be the name of a folder below runs/, without control characters, not {name!a}"
    if {"/", "\\"} & set(name) or name in (".", "..") or not name.strip():
        return f'must be the name of a folder below runs/, without "/" or "\\", not "{name}"'
    if len(name.encode()) > LONGEST_NAME:
        return f'must be at most {LONGEST_NAME} bytes long, not {len(name.encode())}: "{name[:20]}..."'
    return ""


def printable(text: str) -> str:
    """Return *text* with control characters as escapes, for a terminal.

    >>> printable("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
