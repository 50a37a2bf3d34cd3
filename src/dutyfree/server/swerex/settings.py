"""The settings of the SWE-ReX face."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dutyfree.model import Image, Network, Recipe, Resources

MIB: Final = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What sandboxes are, and how much of everything a client may ask for."""

    image: Recipe | Image | str | None = None
    """What sandboxes start from; None for the host's own root."""
    templates: Mapping[str, Recipe | Image | str] = field(default_factory=dict)
    """Further images, by the name that clients ask for: `TOKEN/NAME@TEMPLATE`."""
    resources: Resources | None = None
    network: Network | str = Network.NONE
    workdir: str = "/"
    """Where sessions and commands begin, and what relative paths are relative to."""
    ttl_s: float = 3600.0
    """A sandbox ends when no call has come for this long."""
    acquire_timeout_s: float = 120.0
    """The longest wait for a sandbox; then HTTP 429."""
    max_timeout_s: float = 86_400.0
    """The longest time limit of a command, and that of one without."""
    max_output_bytes: int = 16 * MIB
    """Of one command; what is more is left out, and a line at the end says so."""
    max_body_bytes: int = 64 * MIB
    """Of a request, apart from uploads; and of a file that is read."""
    max_upload_bytes: int = 1024 * MIB
    """Of an upload, and of what a zip file holds."""
    max_upload_files: int = 100_000
    """Files and directories of a zip file."""
    max_uploads: int = 8
    """Of one owner at the same time. Others wait."""
    body_timeout_s: float = 60.0
    """The longest time in which a body must have come, apart from uploads."""
    upload_timeout_s: float = 900.0
    max_sandboxes: int = 10_000
    """How many sandboxes this process keeps at hand. Others are looked up for each call."""

    def limited_s(self, timeout_s: float | None) -> float:
        """The time limit of a command that asks for this one."""
        return self.max_timeout_s if timeout_s is None else min(timeout_s, self.max_timeout_s)
