"""Says why a command was not found: it is on this machine, in a place that the sandbox does not show."""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dutyfree.errors import FileFailed

if TYPE_CHECKING:
    from dutyfree.client.box import Box

NOT_FOUND: Final = 127
"""The exit code of a command that could not be started because a file is missing."""
_MAX_SCRIPT_BYTES: Final = 256


async def warn_of_hidden(box: Box, command: str, cwd: str | None) -> None:
    """One line and a hint on stderr if a file that the command needs is here, and not in the sandbox."""
    missing = await find_hidden(box, command, cwd)
    if missing is None:
        return
    print(f"warning: {command!r} needs {missing!r} of this machine, which the sandbox does not show", file=sys.stderr)
    print(f"hint: {how_to_show(command, missing)}", file=sys.stderr)


async def find_hidden(box: Box, command: str, cwd: str | None) -> str | None:
    """The first of the files that the command needs which is on this machine, and not in the sandbox."""
    for path in needed_files(command, brought=await _has(box, _inside(command, cwd))):
        if not await _has(box, path):
            return path
    return None


def needed_files(command: str, *, brought: bool) -> Iterator[str]:
    """The files of this machine that starting `command` takes: itself, what links lead to, and its `#!` program.

    `brought`: the sandbox has the first of them, at a path of its own.
    """
    import shutil  # slow to import, and most commands are found

    path = os.path.abspath(command) if "/" in command else shutil.which(command)  # noqa: PTH100 - links are wanted
    if path is None or not Path(path).is_file():
        return
    if not brought:
        yield path
    if os.path.realpath(path) != path:
        yield os.path.realpath(path)
    interpreter = _interpreter(path)
    if interpreter is not None and Path(interpreter).exists():
        yield interpreter
        yield os.path.realpath(interpreter)


def how_to_show(command: str, missing: str) -> str:
    """Which option shows the missing file."""
    if Path(missing).name.startswith(("python", "pypy")):
        interpreter = command if Path(command).name.startswith(("python", "pypy")) else missing
        shown = f"--python {interpreter} shows this interpreter and its packages, read-only, and puts it first in PATH"
    else:
        parent = Path(missing).parent
        shown = f"--mount {parent}:{parent} shows its directory, read-only"
    return f"{shown}; --upload .:/src --workdir /src brings a copy of this directory"


def _inside(command: str, cwd: str | None) -> str | None:
    """Where the sandbox looks for the command; None if that is not known."""
    if "/" not in command:
        return None
    path = posixpath.join(cwd or "", command)
    return path if posixpath.isabs(path) else None


def _interpreter(path: str) -> str | None:
    try:
        with Path(path).open("rb") as file:
            start = file.read(_MAX_SCRIPT_BYTES)
    except OSError:
        return None
    words = start.split(b"\n", 1)[0][2:].split() if start.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words and words[0].startswith(b"/") else None


async def _has(box: Box, path: str | None) -> bool:
    if path is None:
        return False
    try:
        await box.files.stat(path)
    except FileFailed:
        return False
    return True
