"""Settings of the E2B face."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from dutyfree.model import Resources, User

ENVD_VERSION: Final = "0.6.4"
"""The version of E2B's daemon whose interface this face has. Clients choose what they send by it."""
ENVD_PORT: Final = 49983
MIB: Final = 1024 * 1024

_BASE: Final[Mapping[str, str | None]] = MappingProxyType({"base": None})


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator of a server decides. Every limit holds for one gateway."""

    domain: str | None = None
    """The domain of sandboxes' host names, `<port>-<id>.<domain>`; None: clients use their own, and headers."""
    templates: Mapping[str, str | None] = field(default_factory=lambda: _BASE)
    """Images by the name of a template; None is the host's default. Other names are names of images."""
    internet: bool = True
    """Whether sandboxes reach public names on ports 80 and 443 unless a client asks for less."""
    public_ports: bool = True
    """Whether who knows a sandbox's id may reach its ports, unless its client said otherwise."""
    files_only: bool = False
    """Whether forks and snapshots that would need the memory of running processes keep the files alone."""
    resources: Resources = field(default_factory=Resources)
    user: User | None = None
    """The user of commands and files for clients that name none; None is root."""
    acquire_timeout_s: float = 20.0
    """How long a creation waits for a place before it is refused with 429."""
    default_timeout_s: float = 300.0
    max_timeout_s: float = 24 * 3600.0
    paused_ttl_s: float = 7 * 24 * 3600.0
    """How long a paused sandbox is kept."""
    keep_output_bytes: int = 8 * MIB
    """How far a reader of a command's output may fall behind."""
    reader_wait_s: float = 10.0
    """How long a command waits for a client that fell behind, from its last read, before output is lost."""
    max_json_bytes: int = 4 * MIB
    """Of a request's JSON, and of one message of a stream."""
    max_upload_bytes: int = 4096 * MIB
    max_download_bytes: int = 4096 * MIB
    memory_file_bytes: int = 4 * MIB
    """Larger files go through a temporary file."""
    max_streams: int = 10_000
    """Streams, transfers and proxied connections at the same time; more are refused with 429."""
    idle_timeout_s: float = 60.0
    """A client that sends nothing for so long in the middle of a request is cut off."""
    relay_idle_timeout_s: float = 600.0
    """A connection to a port on which nothing is sent for so long is closed."""
    keepalive_s: float = 90.0
    """Between two signs of life in a stream, for clients that do not name a time."""
