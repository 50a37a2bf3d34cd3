"""Heads of HTTP requests to a proxy: a strict reader, and what is sent upstream. No I/O.

What two implementations could read differently is refused, not repaired: bare line feeds, folded lines, spaces before a
colon, two Host lines, a Host that is not the target, lengths that contradict each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult

from dutyfree.egress.refusal import Refused
from dutyfree.model.hostname import HostName, format_authority, split_authority

MAX_HEAD_BYTES: Final = 32 * 1024
MAX_LINE_BYTES: Final = 8 * 1024
MAX_HEADERS: Final = 100
HTTP_PORT: Final = 80
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e]+) HTTP/1\.([01])")
_HEADER: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\x20-\x7e\x80-\xff\t]*)")
_LENGTH: Final = re.compile(r"[0-9]{1,15}")
_HOP_BY_HOP: Final = frozenset(
    ("connection", "keep-alive", "proxy-connection", "proxy-authorization", "proxy-authenticate", "te", "upgrade")
)
"""Headers between the program and the proxy, which are not sent on. A trailer is refused by the body's reader."""


@dataclass(frozen=True, slots=True)
class Request:
    """The head of one request."""

    method: str
    host: HostName
    port: int
    path: str
    """What is asked of the server; empty for CONNECT."""
    headers: tuple[tuple[str, str], ...]
    length_bytes: int
    """Of the body; 0 where there is none, and where it is chunked."""
    chunked: bool

    @property
    def is_connect(self) -> bool:
        """Whether it asks for a tunnel."""
        return self.method == "CONNECT"

    def upstream_head(self) -> bytes:
        """The head that is sent to the server: one request on one connection."""
        named = {
            name.strip().lower() for key, value in self.headers if key == "connection" for name in value.split(",")
        }
        # What the framing depends on stays, also if a Connection line names it.
        dropped = (_HOP_BY_HOP | named) - {"host", "content-length", "transfer-encoding"}
        lines = [f"{self.method} {self.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self.headers if name not in dropped and name != "host"]
        authority = str(self.host) if self.port == HTTP_PORT else format_authority(self.host, self.port)
        if self.port == HTTP_PORT and ":" in authority:
            authority = f"[{authority}]"
        lines[1:1] = [f"host: {authority}"]
        lines += ["connection: close", "", ""]
        return "\r\n".join(lines).encode("latin-1")


def find_end(buffer: bytes) -> int | None:
    """The length of the head at the beginning of the buffer; None if it is not all there. Raises Refused."""
    end = buffer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    head = buffer[: end + 4] if end >= 0 else buffer
    if head.count(b"\n") != head.count(b"\r\n"):
        raise Refused("a line of the request ends without a carriage return", 400)
    if end < 0:
        if len(buffer) >= MAX_HEAD_BYTES:
            raise Refused(f"the head of the request is longer than {MAX_HEAD_BYTES} bytes", 431)
        return None
    return end + 4


def parse(head: bytes, transparent: tuple[HostName, int] | None = None) -> Request:
    """Read a whole head, up to and with its empty line.

    `transparent`: the host and port that the connection itself is for; the request then names a path alone. Otherwise
    it is one to a proxy: CONNECT, or a whole `http://` address. Raises Refused.
    """
    lines = head[:-4].split(b"\r\n")
    if len(lines) > MAX_HEADERS + 1 or max(map(len, lines)) > MAX_LINE_BYTES:
        raise Refused("the request has too many or too long lines", 431)
    match = _REQUEST_LINE.fullmatch(lines[0])
    if match is None:
        raise Refused("the request line is not one of HTTP/1", 400)
    method, target, minor = match[1].decode(), match[2].decode(), int(match[3])
    headers = tuple(_header(line) for line in lines[1:])
    host, port, path = _target(method, target, transparent)
    _check_host(headers, host, port, method, minor)
    length_bytes, chunked = _body(headers, minor)
    if method == "CONNECT" and (length_bytes or chunked):
        raise Refused("CONNECT has no body", 400)
    return Request(method, host, port, path, headers, length_bytes, chunked)


def response_head(head: bytes) -> tuple[int, bytes]:
    """Status and head of a server's response, to be passed on with `connection: close`. Raises Refused."""
    lines = head[:-4].split(b"\r\n")
    status = re.fullmatch(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: .*)?", lines[0], re.DOTALL)
    if status is None:
        raise Refused("the server's answer is not one of HTTP/1", 502)
    code = int(status[1])
    if code < 200:
        return code, head
    dropped = (b"connection", b"keep-alive", b"proxy-connection")
    kept = [line for line in lines[1:] if line.split(b":", 1)[0].strip().lower() not in dropped]
    return code, b"\r\n".join([lines[0], *kept, b"connection: close", b"", b""])


def _header(line: bytes) -> tuple[str, str]:
    match = _HEADER.fullmatch(line)
    if match is None:
        raise Refused("a header of the request is not valid", 400)
    return match[1].decode().lower(), match[2].decode("latin-1").strip(" \t")


def _target(method: str, target: str, transparent: tuple[HostName, int] | None) -> tuple[HostName, int, str]:
    try:
        if transparent is not None:
            if not target.startswith("/") and target != "*":
                raise Refused("the request's target is not a path", 400)
            return *transparent, target
        if method == "CONNECT":
            host, port = split_authority(target)
            if port is None:
                raise Refused("CONNECT needs a port", 400)
            return host, port, ""
        scheme, separator, rest = target.partition("://")
        if not separator or scheme.lower() != "http":
            raise Refused("a request to the proxy needs a whole http:// address; use CONNECT for all else", 400)
        parts = re.fullmatch(r"([^/?#]*)(/[^#]*|\?[^#]*)?", rest)
        if parts is None:
            raise Refused("the request's target is not valid", 400)
        url = SplitResult("http", parts[1], parts[2] or "/", "", "")
        host, port = split_authority(url.netloc)
        path = url.path if url.path.startswith("/") else f"/{url.path}"
        return host, HTTP_PORT if port is None else port, path
    except ValueError as error:
        raise Refused(f"the target is not valid: {error}", 400) from None


def _check_host(headers: tuple[tuple[str, str], ...], host: HostName, port: int, method: str, minor: int) -> None:
    values = [value for name, value in headers if name == "host"]
    if not values and minor == 0:
        return  # HTTP/1.0 knows no such line, and some clients ask for tunnels by it
    if len(values) != 1:
        raise Refused("the request must have one Host line", 400)
    try:
        named, named_port = split_authority(values[0])
    except ValueError as error:
        raise Refused(f"the Host line is not valid: {error}", 400) from None
    implied = port if method == "CONNECT" else HTTP_PORT
    if named != host or (implied if named_port is None else named_port) != port:
        raise Refused(f"the Host line {values[0]!r} differs from the target", 400)


def _body(headers: tuple[tuple[str, str], ...], minor: int) -> tuple[int, bool]:
    lengths = [value for name, value in headers if name == "content-length"]
    codings = [value for name, value in headers if name == "transfer-encoding"]
    if len(lengths) + len(codings) > 1:
        raise Refused("the request says more than once how long its body is", 400)
    if codings:
        if codings[0].lower() != "chunked" or minor == 0:
            raise Refused("the only transfer encoding is chunked, in HTTP/1.1", 400)
        return 0, True
    if lengths and not _LENGTH.fullmatch(lengths[0]):
        raise Refused("the length of the body is not a number", 400)
    return int(lengths[0]) if lengths else 0, False
