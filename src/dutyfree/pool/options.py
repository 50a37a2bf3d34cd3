"""The settings of a pool."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

from dutyfree.checked import path_text, seconds, whole
from dutyfree.errors import InvalidRequest
from dutyfree.pool.core import CoreOptions
from dutyfree.pool.planner_input import Abilities, Limits
from dutyfree.pool.routing import Policy
from dutyfree.values import dataclass

MAX_SANDBOXES: Final = 1_000_000
MAX_BYTES: Final = 2**60


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The settings of a pool. The defaults suit one training process on one machine."""

    sandboxes: int = 64
    """The most sandboxes at any time: leased ones and their forks, idle ones, and those that are being created."""
    memory_bytes: int | None = None
    """The most memory that all sandboxes may take together. It is expected from measurements in the same states."""
    disk_bytes: int | None = None
    """The most disk space that all sandboxes may take together, expected in the same way."""
    at_once: int | None = None
    """The most creations, promotions and resets at the same time; by default two for each processor."""
    policy: Policy | str = Policy.LOCALITY
    """`locality`. For comparisons: `no-locality` and `cold`."""
    layers: bool = True
    """Whether stages become layers, if the substrate has images; otherwise they are run inside every sandbox."""
    waiting: int = 4096
    """The most requests that may wait; further ones are refused with CapacityError."""
    waiting_per_owner: int | None = None
    """The most requests of one owner that may wait; by default as many as `waiting`."""
    timeout_s: float = 600.0
    """How long a request waits, unless it has a timeout of its own."""
    ttl_s: float = 3600.0
    """How long a lease lasts, unless the request says otherwise or the lease is renewed. Infinite: until released."""
    costs: Path | str | None = None
    """A file that keeps measured costs from one run to the next."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", _policy(self.policy))
        for name, most in (
            ("sandboxes", MAX_SANDBOXES),
            ("at_once", MAX_SANDBOXES),
            ("waiting", MAX_SANDBOXES),
            ("waiting_per_owner", MAX_SANDBOXES),
            ("memory_bytes", MAX_BYTES),
            ("disk_bytes", MAX_BYTES),
        ):
            value = getattr(self, name)
            if value is not None or name in ("sandboxes", "waiting"):
                whole(name, value, least=1, most=most)
        seconds("timeout_s", self.timeout_s)
        seconds("ttl_s", self.ttl_s, finite=False)
        if self.costs is not None:
            path_text("costs", self.costs)

    @property
    def limits(self) -> Limits:
        """The limits for the planner."""
        at_once = self.at_once if self.at_once is not None else 2 * (os.cpu_count() or 1)
        return Limits(self.sandboxes, self.memory_bytes, self.disk_bytes, at_once)

    def for_core(self, abilities: Abilities) -> CoreOptions:
        """The settings of the pool's core, over a substrate with these abilities."""
        return CoreOptions(self.limits, abilities, Policy(self.policy), self.waiting, self.waiting_per_owner)


def _policy(value: Policy | str) -> Policy:
    try:
        return Policy(value)
    except ValueError:
        names = ", ".join(repr(str(each)) for each in Policy)
        raise InvalidRequest(f"policy is {value!r}; it can be {names}") from None


WITHOUT_A_POOL: Final = PoolOptions(
    sandboxes=MAX_SANDBOXES, at_once=MAX_SANDBOXES, policy=Policy.COLD, waiting=MAX_SANDBOXES, ttl_s=math.inf
)
"""The settings of a host without a pool: each lease has a new sandbox, which lasts until the lease is released."""
