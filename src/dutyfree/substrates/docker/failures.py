"""Maps the error messages of engines to Dutyfree's errors, with hints."""

from __future__ import annotations

import re
from typing import Final

from dutyfree.errors import (
    CapacityError,
    DutyfreeError,
    InvalidRequest,
    SubstrateFailed,
    SubstrateUnavailable,
    Unsupported,
)

_QUOTED_CHARACTERS: Final = 400
_ROOM: Final = "look at `docker system df`, and run `docker system prune`"
_RUNTIME: Final = "register it with the engine: `runtimes` in its daemon.json"
_OFFLINE: Final = "load it with `docker load`, or build it from a recipe: the engine cannot fetch it"
_TABLE: Final[tuple[tuple[str, type[DutyfreeError], str | None], ...]] = (
    (r"no space left on device|disk quota exceeded", CapacityError, _ROOM),
    (r"too many open files|resource temporarily unavailable|cannot allocate memory", CapacityError, None),
    (r"could not find an available.* address pool|no available (IPv4 )?address", CapacityError, "destroy some first"),
    (
        r"no such image|manifest unknown|manifest for .* not found|does not exist or no pull access|pull access denied"
        r"|repository .*not found|name unknown|unauthorized|authentication required",
        InvalidRequest,
        "check its name; pull a private image first: `docker pull`",
    ),
    (r"invalid reference format|must be lowercase", InvalidRequest, "for example debian:stable-slim"),
    (
        r"dial tcp|no such host|lookup .* on |connection refused|i/o timeout|TLS handshake|x509|HTTP response to HTTPS"
        r"|proxyconnect|request canceled|network is unreachable",
        SubstrateFailed,
        _OFFLINE,
    ),
    (r"exec format error|does not match the .*platform", InvalidRequest, "it is of another architecture"),
    (r"max depth exceeded", InvalidRequest, "save the snapshot, and start from what was saved"),
    (r"unable to find (user|group)|invalid (user|group) ", InvalidRequest, "give the user as numbers: 1000:1000"),
    (r"minimum memory limit|range of CPUs", InvalidRequest, None),
    (r"unknown (or invalid )?runtime|runtime .*not found|invalid runtime name", SubstrateUnavailable, _RUNTIME),
    (r"network .* not found", Unsupported, "the engine has no such network"),
    (r"is already in use", SubstrateFailed, None),
)  # fmt: skip
"""The first pattern that matches decides. A message that matches none becomes SubstrateFailed."""


class EngineRefused(Exception):
    """An engine answered with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def failure(what: str, message: str) -> DutyfreeError:
    """The error for an engine that refused to do `what`. It quotes the engine's message, printable characters only."""
    quoted = "".join(each if each.isprintable() else " " for each in message).strip()[:_QUOTED_CHARACTERS]
    for pattern, kind, hint in _TABLE:
        if re.search(pattern, message, re.IGNORECASE):
            return kind(f"the engine did not {what}: {quoted}", hint=hint)
    return SubstrateFailed(f"the engine did not {what}: {quoted or 'it gave no reason'}")
