"""Writing bytes to this process's own output."""

from __future__ import annotations

import os
import select


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything. It blocks on purpose: a slow reader of our output slows the command. Raises OSError."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            # Another process that shares the descriptor made it non-blocking.
            select.select([], [descriptor], [])
