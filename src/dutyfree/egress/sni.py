"""The server's name in a TLS ClientHello. No I/O.

Only what comes before the name is read, and it is read strictly: a hello that two readers could understand differently
(two name extensions, two names, lengths that do not add up) is refused.
"""

from __future__ import annotations

from typing import Final

from dutyfree.egress.refusal import Refused
from dutyfree.model.hostname import HostName, parse_host

HANDSHAKE: Final = 22
MAX_HELLO_BYTES: Final = 32 * 1024
_MAX_RECORD_BYTES: Final = 16 * 1024
_CLIENT_HELLO: Final = 1
_SERVER_NAME: Final = 0
_HOST_NAME: Final = 0


class _Reader:
    """Reads big-endian fields and refuses to go past the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise Refused("the TLS hello is not valid", 400)
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width))

    def vector(self, width: int) -> _Reader:
        return _Reader(self.take(self.number(width)))


def server_name(buffer: bytes) -> tuple[str | None] | None:
    """The server's name in the hello at the beginning of the buffer, as `(name,)` or `(None,)` for one without.

    None if the hello is not all there. Raises Refused for what is no ClientHello.
    """
    hello = _hello(buffer)
    return None if hello is None else (_name_in(_Reader(hello)),)


def check(name: str | None, host: HostName) -> None:
    """Raise Refused unless a hello with this server name is one to the host."""
    if not isinstance(host, str):
        if name is not None:
            raise Refused(f"the TLS hello is for {name!r}, the connection for {host}")
        return
    if name is None:
        raise Refused(f"the TLS hello has no server name; the connection is for {host}")
    try:
        same = parse_host(name) == host
    except ValueError:
        same = False
    if not same:
        raise Refused(f"the TLS hello is for {name!r}, the connection for {host}")


def _hello(buffer: bytes) -> bytes | None:
    """The body of the ClientHello, put together from its records; None if it is not all there."""
    message, at = b"", 0
    while True:
        if at < len(buffer) and buffer[at] != HANDSHAKE:
            raise Refused("not a TLS handshake")
        if at + 1 < len(buffer) and buffer[at + 1] != 3:
            raise Refused("not a TLS handshake")
        if len(buffer) < at + 5:
            return None
        length = int.from_bytes(buffer[at + 3 : at + 5])
        if not 0 < length <= _MAX_RECORD_BYTES:
            raise Refused("the TLS hello is not valid", 400)
        message += buffer[at + 5 : at + 5 + length]
        at += 5 + length
        if message and message[0] != _CLIENT_HELLO:
            raise Refused("not a TLS hello")
        if len(message) >= 4:
            size_bytes = int.from_bytes(message[1:4])
            if size_bytes > MAX_HELLO_BYTES:
                raise Refused(f"the TLS hello is longer than {MAX_HELLO_BYTES} bytes")
            if len(message) >= 4 + size_bytes:
                return message[4 : 4 + size_bytes]
        if at > 2 * MAX_HELLO_BYTES:
            raise Refused("the TLS hello is not valid", 400)
        if at > len(buffer):
            return None


def _name_in(hello: _Reader) -> str | None:
    hello.take(2 + 32)
    hello.vector(1)  # session
    hello.vector(2)  # cipher suites
    hello.vector(1)  # compression
    if hello.left == 0:
        return None
    extensions = hello.vector(2)
    if hello.left:
        raise Refused("the TLS hello is not valid", 400)
    names: list[str] = []
    while extensions.left:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind == _SERVER_NAME:
            names.append(_server_name(content))
    if len(names) > 1:
        raise Refused("the TLS hello has more than one server name", 400)
    return names[0] if names else None


def _server_name(extension: _Reader) -> str:
    entries = extension.vector(2)
    kind, name = entries.number(1), entries.vector(2)
    if kind != _HOST_NAME or entries.left or extension.left:
        raise Refused("the TLS hello has more than one server name", 400)
    try:
        return name.take(name.left).decode("ascii")
    except UnicodeDecodeError:
        raise Refused("the TLS hello's server name is not ASCII", 400) from None
