"""What stands in the files of simulations, besides what every file has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dutyfree import tables
from dutyfree.errors import InvalidRequest
from dutyfree.tables import Table

T = TypeVar("T")
Default = TypeVar("Default")


def given(table: Table, key: str, kind: Callable[[Any], T], default: Default) -> T | Default:
    """The value of a key, or `default` where there is none. Raises InvalidRequest, which names the place."""
    return table.required(key, kind) if key in table.content else default


def number(value: Any) -> float:
    """A number that is not negative, and finite. Raises InvalidRequest."""
    return 0.0 if value == 0 and not isinstance(value, bool) else tables.positive(value)


def whole(value: Any) -> int:
    """A whole number that is not negative. Raises InvalidRequest."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise InvalidRequest(f"a whole number is wanted, not {value!r:.80}")
    return value


def flag(value: Any) -> bool:
    """True or false. Raises InvalidRequest."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"true or false is wanted, not {value!r:.80}")
    return value
