"""The form of an upload (RFC 7578): short fields, and one file, which is written to disk as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import IO, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from dutyfree.server.swerex.requests import Malformed

FILE: Final = "file"
MAX_PARTS: Final = 16
MAX_SHORT_BYTES: Final = 64 * 1024
"""Of all fields and headers together: all that is kept in memory."""
MAX_BOUNDARY_BYTES: Final = 200


class Form:
    """Receives the parts of a form: fields by name, and the file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left_bytes = MAX_SHORT_BYTES
        self._parts = 0
        self._name = ""
        self._header, self._value = b"", b""
        self._is_over = False
        self.fields: dict[str, bytes] = {}
        """Those that have come so far. That of the file is empty."""

    def part_begin(self) -> None:
        """A part begins; its headers follow."""
        self._parts += 1
        self._name = ""
        if self._parts > MAX_PARTS:
            raise Malformed("body", f"the form has more than {MAX_PARTS} parts")

    def header_field(self, data: bytes, start: int, end: int) -> None:
        """A piece of a header's name."""
        self._header += self._bounded(data[start:end])

    def header_value(self, data: bytes, start: int, end: int) -> None:
        """A piece of a header's value."""
        self._value += self._bounded(data[start:end])

    def header_end(self) -> None:
        """A header is whole."""
        if self._header.lower() == b"content-disposition":
            name = parse_options_header(self._value)[1].get(b"name", b"")
            self._name = name.decode("utf-8", "replace")
        self._header = self._value = b""

    def headers_finished(self) -> None:
        """The data of the part follows."""
        if not self._name or self._name in self.fields:
            raise Malformed("body", "a field of the form has no name, or is there twice")
        self.fields[self._name] = b""

    def part_data(self, data: bytes, start: int, end: int) -> None:
        """A piece of a field or of the file."""
        if self._name == FILE:
            self._file.write(data[start:end])
        else:
            self.fields[self._name] += self._bounded(data[start:end])

    def end(self) -> None:
        """The form is whole."""
        self._is_over = True

    async def read(self, body: AsyncIterator[bytes], content_type: str) -> None:
        """Read the whole form. Raises Malformed."""
        kind, options = parse_options_header(content_type.encode("latin-1", "replace"))
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
            raise Malformed("body", "a form with a boundary is required")
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self.part_begin,
                "on_header_field": self.header_field,
                "on_header_value": self.header_value,
                "on_header_end": self.header_end,
                "on_headers_finished": self.headers_finished,
                "on_part_data": self.part_data,
                "on_end": self.end,
            },
        )
        try:
            async for data in body:
                parser.write(data)
            parser.finalize()
        except FormParserError as error:
            raise Malformed("body", f"the form cannot be read: {error}") from None
        if not self._is_over or FILE not in self.fields:
            raise Malformed("body", "the form ends too early" if not self._is_over else "the form has no file")

    def text(self, name: str, default: str | None = None) -> str:
        """A field as text. Raises Malformed."""
        value = self.fields.get(name)
        if value is None and default is not None:
            return default
        try:
            return (value if value is not None else b"\xff").decode()
        except UnicodeDecodeError:
            raise Malformed(name, "text is required") from None

    def _bounded(self, data: bytes) -> bytes:
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise Malformed("body", f"the fields of the form have more than {MAX_SHORT_BYTES} bytes")
        return data
