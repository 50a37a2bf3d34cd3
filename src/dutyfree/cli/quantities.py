"""Types for options: durations, sizes, counts and shares are read the same way by every command."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Final, TypeVar

from dutyfree.checked import SIZES, parse_size
from dutyfree.errors import InvalidRequest

__all__ = ["DURATIONS", "SIZES", "named", "or_none", "percent", "positive", "seconds", "size_bytes", "whole"]

DURATIONS: Final = "seconds, or with a unit: 250ms, 90s, 1.5m, 2h, 7d, 2w"
"""For help texts."""
_UNITS_S: Final = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_NUMBER: Final = r"(\d{1,15}(?:\.\d*)?|\.\d+)"
_DURATION: Final = re.compile(rf"{_NUMBER}(ms|[smhdw]?)", re.ASCII)

T = TypeVar("T")


def seconds(text: str) -> float:
    """Seconds, from a duration such as 90, 90s, 1.5m, 2h or 250ms."""
    match = _DURATION.fullmatch(text.lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; write {DURATIONS}")
    return float(match[1]) * _UNITS_S[match[2]]


def size_bytes(text: str) -> int:
    """Bytes, from a size such as 1024, 512k, 300m, 1GiB or 2t; units are powers of 1024."""
    try:
        return parse_size(text)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(error.message) from None


def whole(text: str) -> int:
    """A whole number, from 1000000 or 1e6."""
    try:
        value = float(text)
        if value != int(value):
            raise ValueError
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number such as 150 or 1e6") from None
    return int(value)


def positive(text: str) -> int:
    """A whole number above zero."""
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above zero")
    return value


def percent(text: str) -> float:
    """A share, from 5 or 5%."""
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage such as 5")
    return value


def or_none(read: Callable[[str], T]) -> Callable[[str], T | None]:
    """A type that also takes `none`, for no limit."""
    return lambda text: None if text == "none" else read(text)


def named(read: Callable[[str], T], example: str) -> Callable[[str], tuple[str, T]]:
    """A type for NAME=VALUE."""

    def read_both(text: str) -> tuple[str, T]:
        name, _, value = text.rpartition("=")
        if not name:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as {example}")
        return name, read(value)

    return read_both
