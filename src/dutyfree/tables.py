"""Strict reading of TOML and JSON: an unknown key, a wrong type, a refused value: each error names its place."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from dutyfree.errors import InvalidRequest

MAX_FILE_BYTES: Final = 1024 * 1024

T = TypeVar("T")


def read_document(path: Path, what: str) -> dict[str, Any]:
    """The TOML in a file; `what` it is, "recipe" for one, is for messages. Raises InvalidRequest, with the path."""
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
    """A table of the file, and where it stands, for messages."""

    content: Mapping[str, Any]
    where: str

    def allow(self, *keys: str) -> None:
        """Raise InvalidRequest for a key that is not one of these."""
        for key in self.content:
            if key not in keys:
                raise InvalidRequest(f"{self.where}: there is no key {key!r:.80}", hint=f"use {', '.join(keys)}")

    def required(self, key: str, kind: Callable[[Any], T]) -> T:
        """The value of a key, as `kind` reads it. Raises InvalidRequest if there is none."""
        if key not in self.content:
            raise InvalidRequest(f"{self.where}: {key!r} is missing")
        return self.checked(key, lambda: kind(self.content[key]))

    def optional(self, key: str, kind: Callable[[Any], T]) -> T | None:
        """The same of a key that need not be there."""
        return self.required(key, kind) if key in self.content else None

    def inner(self, key: str, content: Mapping[str, Any]) -> Table:
        """A table that stands under `key` of this one."""
        return Table(content, f"{self.where}, {key}")

    def checked(self, key: str | None, work: Callable[[], T]) -> T:
        """Do the work; what it refuses is told with the place."""
        try:
            return work()
        except InvalidRequest as error:
            if error.message.startswith(self.where):
                raise
            place = self.where if key is None else f"{self.where}, {key}"
            raise InvalidRequest(f"{place}: {error.message}", hint=error.hint) from error


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"a string is wanted, not {value!r:.80}")
    return value


def texts(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise InvalidRequest(f"a list of strings is wanted, not {value!r:.80}")
    return [text(each) for each in value]


def texts_or_one(value: Any) -> list[str]:
    return texts(value if isinstance(value, list) else [value])


def positive(value: Any) -> float:
    """A number above zero, and finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"a number is wanted, not {value!r:.80}")
    if not 0 < value <= sys.float_info.max:
        raise InvalidRequest(f"a positive number is wanted, not {value!r:.80}")
    return float(value)


def table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"a table is wanted, not {value!r:.80}")
    return value


def tables(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise InvalidRequest(f"a list of tables is wanted, not {value!r:.80}")
    return [table(each) for each in value]


def tables_or_one(value: Any) -> list[dict[str, Any]]:
    return tables(value if isinstance(value, list) else [value])


def environment(value: Any) -> dict[str, str]:
    """Names and values of variables."""
    return {key: text(each) for key, each in table(value).items()}
