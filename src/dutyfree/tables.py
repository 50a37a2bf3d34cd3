"""Strict reading of TOML and JSON: an unknown key, a wrong type, a refused value: each error names its place."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from dutyfree.errors import InvalidRequest
from dutyfree.values import dataclass

MAX_FILE_BYTES: Final = 1024 * 1024

T = TypeVar("T")
Default = TypeVar("Default")


def read_document(path: Path, what: str) -> dict[str, Any]:
    """The TOML in a file; `what` it is, "recipe" for one, is for messages. Raises InvalidRequest, with the path."""
    import tomllib  # slow to import, and most processes read no TOML

    data = _beginning(path, MAX_FILE_BYTES + 1, f"the {what} ")
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{path}: a {what} has at most {MAX_FILE_BYTES} bytes", hint="give big things as files")
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{path}: not TOML: {error}") from error


def read_json(path: Path, most_bytes: int, *, hint: str | None = None) -> dict[str, Any]:
    """The JSON object in a file. Raises InvalidRequest, with the path, and with the `hint` for one that is damaged."""
    data = _beginning(path, most_bytes + 1)
    if len(data) > most_bytes:
        raise InvalidRequest(f"{path} is longer than {most_bytes} bytes", hint=hint)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is damaged: {error}", hint=hint) from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path} is not a JSON object", hint=hint)
    return value


def _beginning(path: Path, most_bytes: int, what: str = "") -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most_bytes)
    except OSError as error:
        raise InvalidRequest(f"cannot read {what}{str(path)!r}: {error.strerror}") from error


@dataclass(slots=True)
class Table:
    """A table of the file, and where it stands. Every method raises InvalidRequest, which names the place."""

    content: Mapping[str, Any]
    where: str

    def allow(self, *keys: str) -> None:
        """Refuse a key that is not one of these."""
        for key in self.content:
            if key not in keys:
                raise InvalidRequest(f"{self.where}: there is no key {key!r:.80}", hint=f"use {', '.join(keys)}")

    def required(self, key: str, kind: Callable[[Any], T]) -> T:
        """The value of a key, as `kind` reads it; refused if there is no such key."""
        if key not in self.content:
            raise InvalidRequest(f"{self.where}: {key!r} is missing")
        return self.checked(key, lambda: kind(self.content[key]))

    def optional(self, key: str, kind: Callable[[Any], T]) -> T | None:
        """The same of a key that need not be there."""
        return self.required(key, kind) if key in self.content else None

    def given(self, key: str, kind: Callable[[Any], T], default: Default) -> T | Default:
        """The value of a key, or `default` where there is no such key."""
        return self.required(key, kind) if key in self.content else default

    def each(self, key: str) -> Iterator[Table]:
        """The tables in the list under `key`, in their order; none if there is no such key."""
        for number, content in enumerate(self.optional(key, tables) or [], start=1):
            yield Table(content, f"{self.where}, {key} {number}")

    def under(self, key: str) -> Table:
        """The table under `key`; an empty one if there is no such key."""
        return self.inner(key, self.optional(key, table) or {})

    def inner(self, key: str, content: Mapping[str, Any]) -> Table:
        """A table that stands under `key` of this one."""
        return Table(content, f"{self.where}, {key}")

    def checked(self, key: str | None, work: Callable[[], T]) -> T:
        """Do the work; its InvalidRequest is raised again with the place."""
        try:
            return work()
        except InvalidRequest as error:
            if error.message.startswith(self.where):
                raise
            place = self.where if key is None else f"{self.where}, {key}"
            raise InvalidRequest(f"{place}: {error.message}", hint=error.hint) from error


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise _wanted("a string", value)
    return value


def nonempty_text(value: Any) -> str:
    if not text(value):
        raise InvalidRequest("a string with something in it is wanted")
    return str(value)


def texts(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise _wanted("a list of strings", value)
    return [text(each) for each in value]


def texts_or_one(value: Any) -> list[str]:
    return texts(value if isinstance(value, list) else [value])


def number(value: Any) -> float:
    """A finite number."""
    return _number(value, -sys.float_info.max, "a finite number")


def nonnegative(value: Any) -> float:
    """A finite number that is not below zero."""
    return _number(value, 0, "a number that is not negative")


def positive(value: Any) -> float:
    """A finite number above zero."""
    return _number(value, math.ulp(0.0), "a positive number")


def _number(value: Any, least: float, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wanted("a number", value)
    if not least <= value <= sys.float_info.max:
        raise _wanted(what, value)
    return float(value)


def whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wanted("a whole number", value)
    return value


def natural(value: Any) -> int:
    """A whole number that is not negative, and that other tools can hold, too."""
    if not 0 <= whole(value) < 2**63:
        raise _wanted("a whole number from 0 to 2**63 - 1", value)
    return int(value)


def positive_whole(value: Any) -> int:
    if whole(value) < 1:
        raise _wanted("a positive whole number", value)
    return int(value)


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wanted("true or false", value)
    return value


def listed(kind: Callable[[Any], T]) -> Callable[[Any], tuple[T, ...]]:
    """A list of such values."""

    def read(value: Any) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise _wanted("a list", value)
        return tuple(kind(each) for each in value)

    return read


def unless_none(kind: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """Such a value, or null, or (TOML has no null) the word "none"."""
    return lambda value: None if value is None or value == "none" else kind(value)


def options(value: Any) -> dict[str, str]:
    """Strings by name; numbers, true and false become what one would have typed on a command line."""
    return {name: _typed(each) for name, each in table(value).items()}


def _typed(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else text(value)


def table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wanted("a table", value)
    return value


def tables(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise _wanted("a list of tables", value)
    return [table(each) for each in value]


def tables_or_one(value: Any) -> list[dict[str, Any]]:
    return tables(value if isinstance(value, list) else [value])


def environment(value: Any) -> dict[str, str]:
    """Names and values of variables."""
    return {key: text(each) for key, each in table(value).items()}


def _wanted(what: str, value: Any) -> InvalidRequest:
    return InvalidRequest(f"{what} is wanted, not {value!r:.80}")
