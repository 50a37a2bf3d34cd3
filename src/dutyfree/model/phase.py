"""The phases of a rollout: the categories that its time is divided into."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """A category of time. `EXECUTE` is what the guest itself measured; all the rest is tax."""

    QUEUE = "queue"
    PLACE = "place"
    CREATE = "create"
    READY = "ready"
    SETUP = "setup"
    DISPATCH = "dispatch"
    EXECUTE = "execute"
    OBSERVE = "observe"
    RESET = "reset"
    SNAPSHOT = "snapshot"
    FORK = "fork"
    DESTROY = "destroy"
    UNATTRIBUTED = "unattributed"

    @property
    def is_tax(self) -> bool:
        """Whether this time is infrastructure rather than an action's own execution."""
        return self is not Phase.EXECUTE
