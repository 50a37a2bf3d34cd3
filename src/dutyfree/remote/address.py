"""Where a node is: the URL that users write, and a connection to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from dutyfree.errors import InvalidRequest
from dutyfree.protocol.frames import PROTOCOL, UPGRADE_PATH
from dutyfree.remote.pipe import Pipe

if TYPE_CHECKING:
    import ssl

DEFAULT_PORT: Final = 7480
CONNECT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Address:
    """A node's address: `http://host:port`, `https://host:port` or `unix:/path/to/socket`."""

    host: str
    port: int
    tls: bool
    path: str | None = None
    """Of a unix socket."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL. Raises InvalidRequest."""
        hint = "use http://HOST:PORT, https://HOST:PORT or unix:/PATH"
        if not isinstance(url, str):
            raise InvalidRequest(f"the address of a server is a {type(url).__name__}; it must be text", hint=hint)
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidRequest(f"{url!r:.200} is no address of a server: {error}", hint=hint) from None
        if parts.scheme == "unix" and parts.path.startswith("/"):
            return cls("localhost", 0, tls=False, path=parts.path)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise InvalidRequest(f"{url!r:.200} is no address of a server", hint=hint)
        return cls(parts.hostname, port or DEFAULT_PORT, tls=parts.scheme == "https")

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    def context(self, ca_file: str | Path | None) -> ssl.SSLContext | None:
        """The settings of TLS: certificates are checked, by those of the system or by `ca_file`."""
        if not self.tls:
            return None
        import ssl  # for https alone: loading it takes as long as all else here

        try:
            return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(f"cannot read the certificates in {str(ca_file)!r}: {error}") from None

    async def open(self, tls: ssl.SSLContext | None) -> Pipe:
        """A connection that has been upgraded to the node's protocol. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self.path is not None:
            _, pipe = await loop.create_unix_connection(Pipe, self.path)
        else:
            _, pipe = await loop.create_connection(Pipe, self.host, self.port, ssl=tls)
        try:
            request = f"GET {UPGRADE_PATH} HTTP/1.1\r\nHost: {self.host}\r\nConnection: Upgrade\r\n"
            pipe.transport.write(f"{request}Upgrade: {PROTOCOL}\r\n\r\n".encode())
            status = (await pipe.read_until(b"\r\n\r\n")).split(b"\r\n", 1)[0]
            if b" 101 " not in status:
                raise OSError(f"it is no node of Dutyfree: it answered {status[:100].decode('latin-1')!r}")
        except BaseException:
            await pipe.end()
            raise
        return pipe
