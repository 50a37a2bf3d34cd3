"""Removing the trees that sandboxes leave behind: hostile programs have been there."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

from dutyfree.errors import SubstrateFailed

TIMEOUT_S = 600.0


def remove_tree(path: Path) -> None:
    """Remove `path` and all below it, however deep, also where directories were made unreadable.

    Links are never followed. Does nothing where there is nothing. Raises SubstrateFailed.
    """
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(path)
    # The usual tree is gone now; these walk without recursion, and start new processes, which costs milliseconds.
    for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf", "--one-file-system"]):
        if not path.exists():
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([*command, "--", str(path)], capture_output=True, timeout=TIMEOUT_S)
    if path.exists():
        raise SubstrateFailed(f"cannot remove {str(path)!r}")
