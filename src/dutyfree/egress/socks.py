"""SOCKS 5, as far as a proxy without passwords needs it: CONNECT to names and addresses. No I/O."""

from __future__ import annotations

from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from dutyfree.egress.refusal import Refused
from dutyfree.model.hostname import HostName, parse_host

VERSION: Final = 5
ACCEPTED: Final = b"\x05\x00"
NO_METHOD: Final = b"\x05\xff"
_CONNECT: Final = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4


class Reply(IntEnum):
    """How a request ended."""

    SUCCEEDED = 0
    FAILED = 1
    NOT_ALLOWED = 2
    UNREACHABLE = 4
    COMMAND = 7


def reply(code: Reply) -> bytes:
    """The answer to a request. Its bound address is always zeros: it would be one of the host's."""
    return bytes((VERSION, code, 0, _IPV4)) + bytes(6)


def parse_greeting(buffer: bytes) -> tuple[bool, int] | None:
    """Whether the client can do without a password, and the greeting's length; None if it is not all there."""
    if len(buffer) < 2 or len(buffer) < 2 + buffer[1]:
        return None
    length = 2 + buffer[1]
    return 0 in buffer[2:length], length


def parse_request(buffer: bytes) -> tuple[HostName, int, int] | None:
    """Host, port and the request's length; None if it is not all there. Raises Refused."""
    if len(buffer) < 5:
        return None
    version, command, reserved, kind, first = buffer[:5]
    if version != VERSION or reserved != 0:
        raise Refused("not a request of SOCKS 5", 400)
    if command != _CONNECT:
        raise Refused("SOCKS: only CONNECT is offered", 405)
    sizes = {_IPV4: 4, _IPV6: 16, _NAME: 1 + first}
    if kind not in sizes:
        raise Refused("SOCKS: unknown kind of address", 400)
    end = 4 + sizes[kind]
    if len(buffer) < end + 2:
        return None
    raw, port = buffer[4:end], int.from_bytes(buffer[end : end + 2])
    if port == 0:
        raise Refused("SOCKS: there is no port 0", 400)
    try:
        host = _name(raw[1:]) if kind == _NAME else IPv4Address(raw) if kind == _IPV4 else IPv6Address(raw)
    except ValueError as error:
        raise Refused(f"the target is not valid: {error}", 400) from None
    return host, port, end + 2


def _name(raw: bytes) -> HostName:
    text = raw.decode("ascii")
    if ":" in text:
        raise ValueError("an address in place of a name")
    return parse_host(text)
