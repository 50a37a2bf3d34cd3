"""Which gVisor a program is."""

from __future__ import annotations

import os
import re
import select
import subprocess
from pathlib import Path
from typing import Final

from dutyfree.threads import in_thread

FIRST_THAT_KILLS_TREES: Final = "20230101"
"""Before, orphans were not given back to the guest: daemons of an action that timed out may go on."""
ANSWER_S: Final = 5.0
_ANSWER_BYTES: Final = 4096
_DATE: Final = re.compile(r"version \S{0,40}?(20\d{6})(?!\d)")


async def version(program: Path) -> str:
    """What it says of itself; nothing where that cannot be learnt in time."""
    return await in_thread(_version, program)


def kills_trees(version: str) -> bool:
    """Whether it ends all that an action has started. One that does not tell its date is taken for a new one."""
    date = dated(version)
    return date is None or date >= FIRST_THAT_KILLS_TREES


def dated(version: str) -> str | None:
    """The day of a release, as eight digits, in what `runsc --version` says."""
    found = _DATE.search(version)
    return found[1] if found else None


def _version(program: Path) -> str:
    try:
        process = subprocess.Popen(
            [program, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return ""
    with process:
        try:
            assert process.stdout is not None
            answer = select.poll()
            answer.register(process.stdout, select.POLLIN)
            if not answer.poll(ANSWER_S * 1000):
                return ""
            return os.read(process.stdout.fileno(), _ANSWER_BYTES).decode("utf-8", "replace")
        finally:
            process.kill()
