"""What may pass through a connection that the rules have allowed. No I/O."""

from __future__ import annotations

from typing import Final

from dutyfree.egress import http_head, sni
from dutyfree.model.hostname import HostName

TLS_PORT: Final = 443


class TunnelStart:
    """Looks at the first bytes of a tunnel: a TLS hello must be one to the host. On port 443 all else is refused."""

    done: Final = False

    def __init__(self, host: HostName, port: int) -> None:
        self._host = host
        self._port = port
        self._held = b""
        self._decided = False

    def feed(self, data: bytes) -> bytes:
        """The bytes to pass on; none until the hello is whole. Raises Refused."""
        if self._decided:
            return data
        self._held += data
        if self._port == TLS_PORT or self._held[0] == sni.HANDSHAKE:
            found = sni.server_name(self._held)
            if found is None:
                return b""
            sni.check(found[0], self._host)
        self._decided = True
        held, self._held = self._held, b""
        return held


class Response:
    """A server's answer to one request. Its head says that the connection ends, whatever the server said."""

    done: Final = False

    def __init__(self) -> None:
        self._held = b""
        self._in_body = False

    def feed(self, data: bytes) -> bytes:
        """The bytes to pass on. Raises Refused for what is no answer."""
        if self._in_body:
            return data
        self._held += data
        passed = b""
        while not self._in_body and (end := http_head.find_end(self._held)) is not None:
            status, head = http_head.response_head(self._held[:end])
            self._held = self._held[end:]
            passed += head
            self._in_body = status >= 200
        if self._in_body:
            passed, self._held = passed + self._held, b""
        return passed
