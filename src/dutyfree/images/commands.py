"""Running the tools that builds need on the host: bounded in time, ended with us, and quick to say what went wrong."""

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
    """The command has failed. Its text is the end of what it said."""


async def run_command(
    command: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str],
    on_output: Callable[[bytes], None] | None = None,
) -> str:
    """Run it to its end and return the end of its output, standard error included.

    If this is cancelled, or if we are killed, the command and those of its children that stay in its process group
    end, too. Raises CommandFailed, DeadlineExceeded, and SubstrateUnavailable where the tool is missing.
    """
    program = shutil.which(command[0])
    if program is None:
        raise SubstrateUnavailable(f"{command[0]} is not installed", hint=f"Debian: apt-get install {command[0]}")
    process = await asyncio.create_subprocess_exec(
        *bound_to_us(),
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
        raise DeadlineExceeded(f"{command[0]} was not done after {timeout_s:g} s") from None
    finally:
        await asyncio.shield(_end(process))
    text = "".join(each if each.isprintable() or each in "\n\t" else "?" for each in tail.decode("utf-8", "replace"))
    if code:
        raise CommandFailed(text.strip() or f"exit code {code}")
    return text


def bound_to_us() -> list[str]:
    """A prefix that has the kernel kill the command when we die, so that nobody writes where others clean up."""
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
    """Kill the command and its process group, unless it has ended by itself, and reap it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_KILL_S):
            await process.communicate()
