"""Runs the host tools that builds need, with a timeout; the tools die with this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dutyfree.errors import DeadlineExceeded, SubstrateUnavailable

TAIL_BYTES: Final = 4096
_READ_BYTES: Final = 64 * 1024
_KILL_S: Final = 10.0


class CommandFailed(Exception):
    """The command failed. The message is the end of its output."""


async def run_command(
    command: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str],
    on_output: Callable[[bytes], None] | None = None,
) -> str:
    """Run the command and return the end of its output, including stderr.

    If this call is cancelled or this process is killed, the command and the children in its process group end, too.
    Raises CommandFailed, DeadlineExceeded, and SubstrateUnavailable if the tool is missing.
    """
    program = shutil.which(command[0])
    if program is None:
        raise SubstrateUnavailable(f"{command[0]} is not installed", hint=f"Debian: apt-get install {command[0]}")
    process = await asyncio.create_subprocess_exec(
        *die_with_parent(),
        program,
        *command[1:],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(env),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            tail = await _tail(process, on_output)
            code = await process.wait()
    except TimeoutError:
        raise DeadlineExceeded(f"{command[0]} did not finish within {timeout_s:g} s") from None
    finally:
        await asyncio.shield(_end(process))
    text = "".join(each if each.isprintable() or each in "\n\t" else "?" for each in tail.decode("utf-8", "replace"))
    if code:
        raise CommandFailed(text.strip() or f"exit code {code}")
    return text


def die_with_parent() -> list[str]:
    """A command prefix that makes the kernel kill the command when this process dies.

    Otherwise the command could go on writing to a directory that another process cleans up.
    """
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


async def _tail(process: asyncio.subprocess.Process, on_output: Callable[[bytes], None] | None) -> bytes:
    assert process.stdout is not None
    tail = b""
    while piece := await process.stdout.read(_READ_BYTES):
        tail = (tail + piece)[-TAIL_BYTES:]
        if on_output is not None:
            on_output(piece)
    return tail


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the command and its process group unless it has ended, and reap it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_KILL_S):
            await process.communicate()
