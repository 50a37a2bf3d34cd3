"""What is said of leases that a program forgets: blocks that are dropped, boxes that are dropped."""

from __future__ import annotations

import warnings


def warn_of_dropped_block() -> None:
    """A block was entered and then dropped, so that the garbage collector ends it: warn."""
    message = (
        "a block (of a lease, a session ...) ends because the object that opened it was dropped before the block was "
        "left: keep that object; a lease from `acquire()` lasts until `close()`"
    )
    warnings.warn(message, ResourceWarning, stacklevel=2)


def warn_of_dropped_box(lease_id: str) -> None:
    """The box of a lease was dropped while the lease still lasts: warn."""
    message = (
        f"the box of lease {lease_id} was dropped, and the lease goes on: keep the box and close it; "
        "`host.get` finds the lease again, `host.release` ends it"
    )
    warnings.warn(message, ResourceWarning, stacklevel=2)
