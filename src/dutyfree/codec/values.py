"""Readers for single JSON values: each checks type and bounds, and raises InvalidRequest for anything else.

A message names the type that was found and never the value, which may be a secret or many megabytes long.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, TypeVar

from dutyfree.errors import InvalidRequest
from dutyfree.tables import Table

MAX_INTEGER: Final = 2**63 - 1
MAX_TEXT_CHARACTERS: Final = 1024 * 1024
MAX_ENTRIES: Final = 65_536

T = TypeVar("T")
Member = TypeVar("Member", bound=Enum)
Reader = Callable[[Any], T]


def text(value: Any) -> str:
    """A string of bounded length."""
    if not isinstance(value, str):
        raise _wrong("a string", value)
    if len(value) > MAX_TEXT_CHARACTERS:
        raise InvalidRequest(f"the string has {len(value)} characters; the limit is {MAX_TEXT_CHARACTERS}")
    return value


def whole(value: Any) -> int:
    """A whole number that fits into 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong("a whole number", value)
    if not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise InvalidRequest("the number does not fit into 64 bits")
    return value


def natural(value: Any) -> int:
    """A whole number that is not negative."""
    if whole(value) < 0:
        raise InvalidRequest(f"the number cannot be negative, as {value} is")
    return int(value)


def number(value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong("a number", value)
    if isinstance(value, int):
        return float(whole(value))
    if not math.isfinite(value):
        raise InvalidRequest("the number is not finite")
    return value


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise _wrong("true or false", value)
    return value


def optional(read: Reader[T]) -> Reader[T | None]:
    """A reader that also takes null."""
    return lambda value: None if value is None else read(value)


def choice(kind: type[Member]) -> Reader[Member]:
    """A reader for the values of an enumeration."""
    known = {str(each.value): each for each in kind}

    def read(value: Any) -> Member:
        if text(value) not in known:
            raise InvalidRequest(f"{value!r:.80} is not one of {', '.join(known)}")
        return known[value]

    return read


def sequence(read: Reader[T]) -> Reader[tuple[T, ...]]:
    """A reader for a list of bounded length."""

    def read_all(value: Any) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise _wrong("a list", value)
        _check_entries(len(value))
        return tuple(read(each) for each in value)

    return read_all


def mapping(read: Reader[T]) -> Reader[dict[str, T]]:
    """A reader for an object with any keys and with values of one kind."""

    def read_all(value: Any) -> dict[str, T]:
        return {text(key): read(each) for key, each in fields(value).items()}

    return read_all


def fields(value: Any) -> dict[str, Any]:
    """A JSON object with a bounded number of keys."""
    if not isinstance(value, dict):
        raise _wrong("an object", value)
    _check_entries(len(value))
    return value


def given(table: Table, **readers: Reader[Any]) -> dict[str, Any]:
    """Those of the fields that are there, read; other fields are refused. Left-out fields keep their defaults."""
    table.allow(*readers)
    return {key: table.required(key, read) for key, read in readers.items() if key in table.content}


def write_bytes(name: str, data: bytes) -> dict[str, str]:
    """Bytes as text and, only where they are not UTF-8, also as `NAME_base64`, which loses nothing."""
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        encoded = base64.b64encode(data).decode("ascii")
        return {name: data.decode("utf-8", "replace"), f"{name}_base64": encoded}


def read_bytes(table: Table, name: str) -> bytes:
    """What `write_bytes` wrote; `NAME_base64` decides where both are there. `loads` has bounded the length."""
    encoded = f"{name}_base64"
    if encoded in table.content:
        return table.required(encoded, _from_base64)
    return table.required(name, _from_text)


def _from_base64(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _wrong("base64", value)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("the string is not base64") from None


def _from_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _wrong("a string", value)
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequest("the string has half of a surrogate pair", hint="write the bytes as base64") from None


def _check_entries(count: int) -> None:
    if count > MAX_ENTRIES:
        raise InvalidRequest(f"there are {count} entries; the limit is {MAX_ENTRIES}")


def _wrong(wanted: str, value: Any) -> InvalidRequest:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    found = names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
    return InvalidRequest(f"{wanted} is wanted, not {found}")
