"""Writing bytes to where this process's own output goes."""

from __future__ import annotations

import os
import select


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything. Blocking is meant: a reader of ours that stalls makes the command wait. Raises OSError."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            # Whoever shares the descriptor with us made it non-blocking.
            select.select([], [descriptor], [])
