"""Strict readers for studies in TOML and JSON, on top of `dutyfree.tables`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from dutyfree import tables
from dutyfree.errors import InvalidRequest

T = TypeVar("T")


class Table(tables.Table):
    """A table and where it stands. Every method raises InvalidRequest, which names the place."""

    def given(self, key: str, kind: Callable[[Any], T], default: T) -> T:
        """The value of `key`, as `kind` reads it, or `default` where there is no such key."""
        return self.required(key, kind) if key in self.content else default

    def each(self, key: str) -> Iterator[Table]:
        """The tables in the list under `key`, in their order; none if there is no such key."""
        for number, content in enumerate(self.optional(key, tables.tables) or [], start=1):
            yield Table(content, f"{self.where}, {key} {number}")

    def under(self, key: str) -> Table:
        """The table under `key`; an empty one if there is no such key."""
        return Table(self.optional(key, tables.table) or {}, f"{self.where}, {key}")


def text(value: Any) -> str:
    """A string that is not empty."""
    if not tables.text(value):
        raise InvalidRequest("a string that is not empty is wanted")
    return str(value)


def whole(value: Any) -> int:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"a whole number is wanted, not {value!r:.80}")
    return value


def natural(value: Any) -> int:
    """A whole number that is not negative, and that fits into 63 bits, so that other tools can read it."""
    if not 0 <= whole(value) < 2**63:
        raise InvalidRequest(f"a number from 0 to 2**63 - 1 is wanted, not {value!r:.80}")
    return int(value)


def positive(value: Any) -> int:
    """A whole number above zero."""
    if whole(value) < 1:
        raise InvalidRequest(f"a positive number is wanted, not {value!r:.80}")
    return int(value)


def number(value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise InvalidRequest(f"a number is wanted, not {value!r:.80}")
    return float(value)


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"true or false is wanted, not {value!r:.80}")
    return value


def listed(kind: Callable[[Any], T]) -> Callable[[Any], tuple[T, ...]]:
    """A list of such values."""

    def read(value: Any) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise InvalidRequest(f"a list is wanted, not {value!r:.80}")
        return tuple(kind(each) for each in value)

    return read


def unless_none(kind: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """Such a value, or null, or (TOML has no null) the word "none"."""
    return lambda value: None if value is None or value == "none" else kind(value)


def options(value: Any) -> dict[str, str]:
    """Strings by name; numbers, true and false become strings as on a command line."""
    return {name: _typed(each) for name, each in tables.table(value).items()}


def _typed(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else tables.text(value)
