"""What programs send first: hellos of TLS and questions of DNS."""

from __future__ import annotations

import ssl
from contextlib import suppress


def hello(name: str | None) -> bytes:
    """A ClientHello, by OpenSSL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def question(name: str, kind: int = 1, *, flags: int = 0x0100, tail: bytes = b"", more: int = 0) -> bytes:
    labels = b"".join(bytes((len(each),)) + each.encode() for each in name.split(".") if each)
    numbers = (7, flags, 1, 0, 0, more)
    return b"".join(each.to_bytes(2) for each in numbers) + labels + b"\0" + kind.to_bytes(2) + b"\0\1" + tail
