"""How strong the isolation of a sandbox is claimed to be; the isolation probes check the claim."""

from __future__ import annotations

from enum import IntEnum


class Isolation(IntEnum):
    """Ordered: a higher value is a stronger claim."""

    NONE = 0
    NAMESPACE = 1
    CONTAINER = 2
    USER_KERNEL = 3
    MICROVM = 4
    VM = 5

    @property
    def label(self) -> str:
        """The name that people read and type."""
        return self.name.lower().replace("_", "-")
