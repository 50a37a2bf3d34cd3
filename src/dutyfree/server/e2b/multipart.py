"""Forms with files (RFC 7578), as they come: nothing is kept but the piece that was received last."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from dutyfree.errors import InvalidRequest

MAX_PARTS: Final = 1000
_MAX_HEADER_BYTES: Final = 16 * 1024


@dataclass(slots=True)
class Part:
    """A file of a form. Its data must be read before the next part is asked for."""

    filename: str
    data: AsyncIterator[bytes]


class _Events:
    """What the parser has found so far: data of the current part, ends of parts, and headers."""

    def __init__(self) -> None:
        self.found: deque[tuple[str, bytes]] = deque()
        self._name, self._value, self._size = b"", b"", 0
        self._disposition = b""

    def part_begin(self) -> None:
        self._disposition, self._size = b"", 0

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += self._bounded(data[start:end])

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._bounded(data[start:end])

    def header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name = self._value = b""

    def headers_finished(self) -> None:
        self.found.append(("begin", self._disposition))

    def part_data(self, data: bytes, start: int, end: int) -> None:
        self.found.append(("data", data[start:end]))

    def part_end(self) -> None:
        self.found.append(("end", b""))

    def end(self) -> None:
        self.found.append(("finished", b""))

    def _bounded(self, data: bytes) -> bytes:
        self._size += len(data)
        if self._size > _MAX_HEADER_BYTES:
            raise InvalidRequest(f"the headers of a part have more than {_MAX_HEADER_BYTES} bytes")
        return data


async def parts(body: AsyncIterator[bytes], content_type: str) -> AsyncIterator[Part]:
    """The files of a form, in their order. Raises InvalidRequest for what is no form."""
    _, options = parse_options_header(content_type.encode("latin-1", "replace"))
    boundary = options.get(b"boundary")
    if not boundary or len(boundary) > 200:
        raise InvalidRequest("the form has no boundary")
    events = _Events()
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": events.part_begin,
            "on_header_field": events.header_field,
            "on_header_value": events.header_value,
            "on_header_end": events.header_end,
            "on_headers_finished": events.headers_finished,
            "on_part_data": events.part_data,
            "on_part_end": events.part_end,
            "on_end": events.end,
        },
    )
    pulled = _pull(body, parser, events)
    count = 0
    async for kind, data in pulled:
        if kind == "finished":
            return
        if kind == "begin":
            count += 1
            if count > MAX_PARTS:
                raise InvalidRequest(f"more than {MAX_PARTS} files in one form")
            part = Part(read_filename(data), _data(pulled))
            yield part
            async for _ in part.data:
                pass
    raise InvalidRequest("the form ends too early")


def read_filename(disposition: bytes) -> str:
    """The name of a part's file. Browsers and clients write quotes in it as %22."""
    _, options = parse_options_header(disposition)
    if b"filename" not in options:
        raise InvalidRequest("a field of the form is no file")
    name = options[b"filename"].decode("utf-8", "replace")
    return name.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


async def _data(pulled: AsyncIterator[tuple[str, bytes]]) -> AsyncIterator[bytes]:
    async for kind, data in pulled:
        if kind == "end":
            return
        yield data


async def _pull(
    body: AsyncIterator[bytes], parser: MultipartParser, events: _Events
) -> AsyncIterator[tuple[str, bytes]]:
    try:
        async for data in body:
            parser.write(data)
            while events.found:
                yield events.found.popleft()
        parser.finalize()
    except FormParserError as error:
        raise InvalidRequest(f"the form cannot be read: {error}") from None
    while events.found:
        yield events.found.popleft()
