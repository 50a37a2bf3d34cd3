"""Where a request goes: to the control plane, to a sandbox's daemon, or to a port of a sandbox. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dutyfree.errors import InvalidRequest
from dutyfree.model.port import MAX_PORT
from dutyfree.server.e2b.settings import ENVD_PORT

MAX_ID_CHARACTERS: Final = 128
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_HOST: Final = re.compile(r"(\d{1,5})-([A-Za-z0-9_-]{1,128})\.([A-Za-z0-9.-]{1,253})", re.ASCII)
_PORT: Final = re.compile(r"\d{1,5}", re.ASCII)

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Target:
    """A port of a sandbox."""

    sandbox_id: str
    port: int

    @property
    def is_daemon(self) -> bool:
        """Whether it is the port of E2B's daemon, which the face itself serves."""
        return self.port == ENVD_PORT


def header(headers: Headers, name: bytes) -> str | None:
    """The value of a header, or None. Raises InvalidRequest if it is there twice."""
    found = [value for each, value in headers if each == name]
    if len(found) > 1:
        raise InvalidRequest(f"the header {name.decode()} is there {len(found)} times")
    return found[0].decode("latin-1") if found else None


def find_target(headers: Headers, domain: str | None) -> Target | None:
    """The sandbox that a request names by its headers, its host name or its token; None for the control plane.

    Versions of the SDK before 2.20 send nothing but the token once they have connected to a sandbox. Without a
    `domain`, a host name of any domain counts. Raises InvalidRequest for names that are none.
    """
    sandbox_id = header(headers, b"e2b-sandbox-id")
    if sandbox_id is not None:
        port = header(headers, b"e2b-sandbox-port")
        return Target(check_id(sandbox_id), ENVD_PORT if port is None else parse_port(port))
    host = header(headers, b"host")
    if host is not None and (target := parse_host(host, domain)) is not None:
        return target
    named, dot, _ = (header(headers, b"x-access-token") or "").partition(".")
    return Target(check_id(named), ENVD_PORT) if dot else None


def parse_host(host: str, domain: str | None) -> Target | None:
    """The target of a host name `<port>-<id>.<domain>`, with or without a port of the server; None for others."""
    name = host.rpartition(":")[0] if re.search(r":\d*$", host, re.ASCII) else host
    match = _HOST.fullmatch(name.rstrip("."))
    if match is None or (domain is not None and match[3].lower() != domain.lower()):
        return None
    return Target(match[2], parse_port(match[1]))


def parse_port(text: str) -> int:
    """A port of a sandbox. Raises InvalidRequest."""
    if _PORT.fullmatch(text) is None or not 1 <= int(text) <= MAX_PORT:
        raise InvalidRequest(f"{text!r:.20} is no port")
    return int(text)


def check_id(text: str) -> str:
    """An id of a sandbox. Raises InvalidRequest."""
    if _ID.fullmatch(text) is None:
        raise InvalidRequest(f"{text!r:.40} is no id of a sandbox")
    return text
