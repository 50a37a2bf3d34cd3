"""The addresses of Docker engines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from dutyfree.errors import SubstrateUnavailable

VARIABLE: Final = "DOCKER_HOST"
DOCKER_SOCKET: Final = "/var/run/docker.sock"
PODMAN_SOCKET: Final = "/run/podman/podman.sock"
DEFAULT_PORT: Final = 2375
_FORWARD: Final = "forward its socket (ssh -L /tmp/engine.sock:/var/run/docker.sock HOST), and use the forwarded one"


@dataclass(frozen=True, slots=True)
class Address:
    """A unix socket (`path`), or else `host` and `port`."""

    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def url(self) -> str:
        """The address in the form of DOCKER_HOST."""
        return f"unix://{self.path}" if self.path else f"tcp://{self.authority}"

    @property
    def authority(self) -> str:
        """The value of the HTTP header `Host`."""
        if self.path:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(url: str, environ: Mapping[str, str] = os.environ) -> Address:
    """Parse an address in the form of DOCKER_HOST. Raises SubstrateUnavailable for an unsupported one."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SubstrateUnavailable(f"{url!r:.200} is not an engine's address: {error}") from error
    if parts.scheme == "unix" and parts.path:
        return Address(path=parts.netloc + parts.path)
    if parts.scheme in ("tcp", "http") and parts.hostname:
        if environ.get("DOCKER_TLS_VERIFY"):
            raise SubstrateUnavailable("an engine behind TLS cannot be used", hint=_FORWARD)
        return Address(host=parts.hostname, port=port or DEFAULT_PORT)
    if parts.scheme in ("ssh", "https", "npipe"):
        raise SubstrateUnavailable(f"an engine behind {parts.scheme}:// cannot be used", hint=_FORWARD)
    raise SubstrateUnavailable(f"{url!r:.200} is not an engine's address", hint="for example unix:///run/docker.sock")


def candidates(environ: Mapping[str, str] = os.environ) -> list[Address]:
    """The addresses to try: $DOCKER_HOST if it is set, else the default sockets of Docker and Podman.

    Raises as `parse` does.
    """
    named = environ.get(VARIABLE)
    if named:
        return [parse(named, environ)]
    runtime = environ.get("XDG_RUNTIME_DIR")
    own = [f"{runtime}/podman/podman.sock"] if runtime else []
    return [Address(path=path) for path in (DOCKER_SOCKET, *own, PODMAN_SOCKET)]
