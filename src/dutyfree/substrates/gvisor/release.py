"""Finds out the version of a `runsc` program."""

from __future__ import annotations

import os
import re
import select
import subprocess
from pathlib import Path
from typing import Final

from dutyfree.threads import in_thread

FIRST_THAT_KILLS_TREES: Final = "20230101"
"""In earlier releases, orphans do not become children of the guest: daemons of an action that timed out may survive."""
ANSWER_S: Final = 5.0
_ANSWER_BYTES: Final = 4096
_DATE: Final = re.compile(r"version \S{0,40}?(20\d{6})(?!\d)")


async def version(program: Path) -> str:
    """The output of `runsc --version`; empty if there is none within 5 s."""
    return await in_thread(_version, program)


def kills_trees(version: str) -> bool:
    """Whether all processes of an action can be ended. A version without a date counts as new."""
    date = release_date(version)
    return date is None or date >= FIRST_THAT_KILLS_TREES


def release_date(version: str) -> str | None:
    """The date of a release, as eight digits, from the output of `runsc --version`."""
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
