"""Removing the trees that sandboxes leave behind: hostile programs have been there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from dutyfree.errors import SubstrateFailed

TIMEOUT_S = 600.0


def remove_tree(path: Path) -> None:
    """Remove `path` and all below it, however deep, also where directories were made unreadable.

    Links are never followed. Does nothing where there is nothing. Raises SubstrateFailed.
    """
    if not os.path.lexists(path):
        return
    import shutil  # both are slow to import, and few processes have a tree to remove
    import subprocess

    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(path)
    # The usual tree is gone now; these walk without recursion, and start new processes, which costs milliseconds.
    # Files are left as they are: one may have another name elsewhere, in a layer of the image store.
    place = str(path.absolute())
    opened = ["find", place, "-xdev", "-type", "d", "!", "-perm", "-u=rwx", "-exec", "chmod", "u+rwx", "{}", ";"]
    for command in (opened, ["rm", "-rf", "--one-file-system", "--", place]):
        if not path.exists():
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=TIMEOUT_S)
    if path.exists():
        raise SubstrateFailed(f"cannot remove {str(path)!r}")
