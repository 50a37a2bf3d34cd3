"""A document: one value as a JSON object with a `version`, and how it is written and read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from dutyfree.codec import values
from dutyfree.errors import InvalidRequest
from dutyfree.tables import Table

VERSION: Final = 1
"""Raised when a reader of the version before would misunderstand a form; a new field alone does not raise it."""
MAX_DOCUMENT_BYTES: Final = 64 * 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """The JSON form of one type. `decode(encode(value)) == value`.

    Reading is strict about types and bounds. Forms of answers (observation, error, span, status) ignore unknown fields,
    since a newer writer may add some. Forms of requests (spec, action) refuse them: a limit that is silently ignored
    would make a sandbox weaker than its caller asked for.
    """

    what: str
    """For messages, such as "an observation"."""
    write: Callable[[T], dict[str, Any]]
    """The fields, without the version: for a value inside another document."""
    read: Callable[[Table], T]
    """The value of such fields. Raises InvalidRequest."""

    def encode(self, value: T) -> dict[str, Any]:
        """A document that `json.dumps` can write."""
        return {"version": VERSION, **self.write(value)}

    def decode(self, document: object) -> T:
        """The value of a document as `json.loads` gives it.

        Raises InvalidRequest for everything that `encode` could not have written, and for newer versions. Where the
        document is another program's answer, not a caller's request, the reader of that answer turns this error into
        LinkFailed.
        """
        table = self._table(document)
        version = table.required("version", values.natural)
        if version > VERSION:
            raise InvalidRequest(
                f"{self.what} has version {version}; this Dutyfree reads versions up to {VERSION}",
                hint="install a newer Dutyfree",
            )
        if version == 0:
            raise InvalidRequest(f"{self.what} has version 0; the first version is 1")
        return self._read({key: value for key, value in table.content.items() if key != "version"})

    def decode_inner(self, fields: object) -> T:
        """The value of what `write` gave: a part of a document, which has no version of its own."""
        return self._read(self._table(fields).content)

    def _read(self, content: Any) -> T:
        table = Table(content, self.what)
        return table.checked(None, lambda: self.read(table))

    def _table(self, document: object) -> Table:
        return Table({}, self.what).checked(None, lambda: Table(values.fields(document), self.what))


def dumps(document: object, *, indent: int | None = None) -> str:
    """A document as text. Raises ValueError for numbers that JSON does not have."""
    return json.dumps(document, indent=indent, allow_nan=False)


def loads(data: str | bytes, *, limit_bytes: int = MAX_DOCUMENT_BYTES) -> Any:
    """The JSON in `data`, for `Codec.decode`. Raises InvalidRequest if it is no JSON or longer than `limit_bytes`."""
    if len(data) > limit_bytes:
        raise InvalidRequest(f"the document has more than {limit_bytes} bytes")
    try:
        return json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the document is not JSON: {error}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")
