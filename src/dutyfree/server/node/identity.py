"""Who a client of the node is: what its token says."""

from __future__ import annotations

from dataclasses import dataclass, field

from dutyfree.errors import Unauthenticated


@dataclass(frozen=True, slots=True)
class Identity:
    """An owner, and what it may do."""

    owner: str
    is_gateway: bool = False
    """Whether it speaks for other owners, whose tokens it has checked."""
    is_operator: bool = False
    """Whether it may see the status, metrics and bill of the whole node."""
    max_sandboxes: int | None = None
    """The most leases and forks of the owner at any time."""
    leases_per_minute: int | None = None
    token_hash: bytes = field(default=b"", repr=False)
    """Of the token that it came with; empty for those that need none."""


def refused() -> Unauthenticated:
    """The error for every wrong token."""
    return Unauthenticated("the token is not valid", hint="`dutyfree token create NAME` makes one on the server")
