"""How a pool is to behave."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.errors import InvalidRequest
from dutyfree.pool.routing import Policy
from dutyfree.pool.view import Limits

MAX_SANDBOXES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The defaults suit one training process on one machine."""

    sandboxes: int = 64
    """Leased, idle, and being made: never more than this."""
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
        for name in ("sandboxes", "at_once", "waiting", "waiting_per_owner"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and 1 <= value <= MAX_SANDBOXES):
                raise InvalidRequest(f"{name} is {value!r}; it must be a whole number from 1 to {MAX_SANDBOXES}")
        for name in ("timeout_s", "ttl_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidRequest(f"{name} is {value}; it must be positive and finite")

    @property
    def limits(self) -> Limits:
        """What plans must keep to."""
        at_once = self.at_once if self.at_once is not None else 2 * (os.cpu_count() or 1)
        return Limits(self.sandboxes, at_once=at_once)


def _policy(value: Policy | str) -> Policy:
    try:
        return Policy(value)
    except ValueError:
        names = ", ".join(repr(str(each)) for each in Policy)
        raise InvalidRequest(f"policy is {value!r}; it can be {names}") from None
