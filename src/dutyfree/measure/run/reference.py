"""The reference: how long a bare process takes now. It depends on the machine alone, not on what a study compares.

It is measured before every block. `compare` finds in it how much the machine itself changed between two runs.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from statistics import median
from typing import Final

from dutyfree.trace import now_ns

SPAWNS: Final = 5
"""The median of so many counts, because one in a few is a straggler on a busy machine."""


def bare_spawn_ns() -> int | None:
    """The median time to spawn `true` and wait for its end; None if it cannot be run here. Blocks for milliseconds."""
    program = _program()
    if program is None:
        return None
    took_ns = []
    for _ in range(SPAWNS):
        begin_ns = now_ns()
        try:
            child = os.posix_spawn(program, [program], {})
            os.waitpid(child, 0)
        except OSError:  # no more processes are allowed, or another library waits for all children
            return None
        took_ns.append(now_ns() - begin_ns)
    return round(median(took_ns))


@cache
def _program() -> str | None:
    return shutil.which("true")
