"""The numbers and the extended records of tar headers, strictly."""

from __future__ import annotations

import re
from typing import Final

from dutyfree.errors import ArchiveRefused

_LENGTH_DIGITS: Final = 10
_TIME: Final = re.compile(rb"(-?)(\d{1,12})(?:\.(\d{0,40}))?")


def number(field: bytes) -> int:
    """A header's number: octal digits or, for great ones, bytes. Raises ArchiveRefused."""
    if field[0] & 0x80:
        bits = 8 * len(field) - 1
        value = int.from_bytes(field, "big") & ((1 << bits) - 1)
        return value - (1 << bits) if field[0] & 0x40 else value
    digits = field.partition(b"\0")[0].strip(b" ") or b"0"
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise ArchiveRefused(f"the archive is damaged: {field!r} stands where a number belongs")
    return int(digits, 8)


def parse_records(data: bytes) -> dict[str, bytes]:
    """The records of a PAX header, `LENGTH KEY=VALUE\\n` each. Raises ArchiveRefused."""
    records: dict[str, bytes] = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + _LENGTH_DIGITS + 1)
        digits = data[at : max(space, at)]
        end = at + int(digits) if digits.isdigit() else 0
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if not space < end <= len(data) or data[end - 1 : end] != b"\n" or not equals or not key:
            raise ArchiveRefused("the archive is damaged: a PAX header that does not parse")
        records[key.decode("utf-8", "surrogateescape")] = value
        at = end
    return records


def time_ns(value: bytes) -> int:
    """A PAX time, in seconds with a fraction, to the nanosecond. Raises ArchiveRefused."""
    found = _TIME.fullmatch(value)
    if found is None:
        raise ArchiveRefused(f"the archive is damaged: {value[:40]!r} is no time")
    sign, seconds, fraction = found.groups()
    total = int(seconds) * 1_000_000_000 + int((fraction or b"")[:9].ljust(9, b"0"))
    return -total if sign else total
