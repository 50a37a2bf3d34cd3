"""How a pool is to behave."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from dutyfree.errors import InvalidRequest
from dutyfree.pool.routing import Policy
from dutyfree.pool.view import Limits


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The defaults suit one training process on one machine."""

    sandboxes: int = 64
    """Leased, idle, and being made: never more than this."""
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    """What all of them together may take, as far as it was measured."""
    at_once: int | None = None
    """Creations, promotions and resets under way; by default two for each processor."""
    policy: Policy | str = Policy.LOCALITY
    """`locality`; or, to compare it with, `no-locality` and `cold`."""
    layers: bool = True
    """Whether stages become layers, where the substrate can; otherwise they are carried out in every sandbox."""
    waiting: int = 4096
    """Requests that may wait; more are refused with CapacityError."""
    waiting_per_owner: int | None = None
    timeout_s: float = 600.0
    """How long a request waits unless it says otherwise."""
    ttl_s: float = 3600.0
    """How long a lease lasts unless it says otherwise, or is renewed."""
    costs: Path | str | None = None
    """A file that keeps what was measured, from one run to the next."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", _policy(self.policy))
        if self.sandboxes < 1 or (self.at_once is not None and self.at_once < 1):
            raise InvalidRequest(f"a pool of {self.sandboxes} sandboxes, {self.at_once} made at once: use at least 1")
        for name in ("timeout_s", "ttl_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidRequest(f"{name} is {value}; it must be positive and finite")

    @property
    def limits(self) -> Limits:
        """What plans must keep to."""
        at_once = self.at_once if self.at_once is not None else 2 * (os.cpu_count() or 1)
        return Limits(self.sandboxes, self.memory_bytes, self.disk_bytes, at_once)


def _policy(value: Policy | str) -> Policy:
    try:
        return Policy(value)
    except ValueError:
        names = ", ".join(repr(str(each)) for each in Policy)
        raise InvalidRequest(f"policy is {value!r}; it can be {names}") from None
