"""The two ways from the host to a command in a sandbox."""

from __future__ import annotations

from enum import StrEnum


class ActionPath(StrEnum):
    """How actions get into a sandbox."""

    GUEST = "guest"
    """The guest is started once, and every action is a message on its one stream."""
    EXEC = "exec"
    """Each action is a call of the engine's own control plane (`docker exec`, `ssh`), as without a guest."""
