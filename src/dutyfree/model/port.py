"""A port inside a sandbox."""

from __future__ import annotations

from dataclasses import dataclass

from dutyfree.checked import whole

MAX_PORT = 65535


@dataclass(frozen=True, slots=True, order=True)
class ListeningPort:
    """A TCP port on which a program of the sandbox waits for connections."""

    address: str
    port: int


def check_port(port: int, *, least: int = 1) -> None:
    """Raise InvalidRequest for a number that is no port. With `least` 0, 0 stands for any free port."""
    whole("port", port, least=least, most=MAX_PORT)
