"""Names and literal addresses of hosts, in one normal form.

Everything that a program may write in place of a plain name is refused here, not interpreted: `127.1`, `0x7f.1`,
`2130706433`, `0177.0.0.1`, `%6c%6f`, a scope, userinfo. Some C libraries turn such text into addresses, and a name that
two programs read differently is how checks are passed by.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

Address = IPv4Address | IPv6Address
HostName = str | Address
"""A name in lower case without a trailing dot, or a literal address."""

MAX_NAME_CHARACTERS = 253
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]{2,45})\](?::([1-9][0-9]{0,4}))?")
_PLAIN = re.compile(r"([^:\[\]@/?#%\\\s]+)(?::([1-9][0-9]{0,4}))?")
_AMBIGUOUS = re.compile("[ßς\u200c\u200d]")
"""Characters that the two standards for international names encode differently."""
MAX_PORT = 65535


def parse_host(text: str) -> HostName:
    """A name or an IPv4 address in its normal form; an IPv6 address needs no brackets here. Raises ValueError."""
    if ":" in text:
        return _ipv6(text)
    name = text[:-1] if text.endswith(".") else text
    if not name.isascii():
        name = _punycode(name)
    name = name.lower()
    if not name or len(name) > MAX_NAME_CHARACTERS:
        raise ValueError(f"a name of {len(name)} characters")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        if text.endswith("."):
            raise ValueError(f"{text!r} is neither a name nor an address")
        return _ipv4(name)
    for label in labels:
        if not _LABEL.fullmatch(label):
            raise ValueError(f"{label!r} is not a part of a name")
    return name


def split_authority(text: str) -> tuple[HostName, int | None]:
    """Host and port of `name`, `name:port`, `address:port` or `[address]:port`. Raises ValueError."""
    if (match := _BRACKETED.fullmatch(text)) is not None:
        host: HostName = _ipv6(match[1])
    elif (match := _PLAIN.fullmatch(text)) is not None:
        host = parse_host(match[1])
    else:
        raise ValueError(f"{text!r} is neither a name nor an address")
    if match[2] is None:
        return host, None
    port = int(match[2])
    if port > MAX_PORT:
        raise ValueError(f"there is no port {port}")
    return host, port


def format_authority(host: HostName, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if isinstance(host, IPv6Address) else f"{host}:{port}"


def _ipv4(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except AddressValueError:
        raise ValueError(f"{text!r} is neither a name nor an address") from None


def _ipv6(text: str) -> IPv6Address:
    try:
        address = IPv6Address(text)
    except AddressValueError:
        raise ValueError(f"{text!r} is neither a name nor an address") from None
    if address.scope_id is not None:
        raise ValueError(f"{text!r} has a scope")
    return address


def _punycode(name: str) -> str:
    if _AMBIGUOUS.search(name):
        raise ValueError(f"{name!r} has more than one encoding; write it as punycode (xn--...)")
    try:
        return name.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError(f"{name!r} is not a name") from None
