"""One action on the exec path: one command of the SDK, from its start to its observation."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Literal

from e2b import AsyncSandbox, CommandExitException
from e2b import exceptions as e2b

from dutyfree.errors import DutyfreeError, SandboxGone, SubstrateFailed
from dutyfree.model import Action, Observation, Timing
from dutyfree.substrates.hosted.exec_line import Trailer, wrap
from dutyfree.substrates.hosted.failures import failure

Sink = Callable[[Literal["stdout", "stderr"], bytes], Awaitable[None]]
SIGKILL: Final = 9
_PIECE_BYTES: Final = 256 * 1024
_KILL_S: Final = 5.0
_LATE_S: Final = 5.0
_EARLY_S: Final = 0.05
_SIGNALS: Final = {"killed": 9, "terminated": 15, "interrupt": 2, "hangup": 1, "segmentation fault": 11, "aborted": 6}


class ExecAction:
    """Runs once. Its output goes to `sink` until the action's limit is reached."""

    def __init__(self, sandbox: AsyncSandbox, sandbox_id: str, action: Action, sink: Sink, *, waits: bool) -> None:
        """`waits`: whether the command has an input that is written while it runs."""
        self._sandbox = sandbox
        self._id = sandbox_id
        self._action = action
        self._sink = sink
        self._waits = waits
        self._token = secrets.token_hex(12)
        self._trailer = Trailer(self._token)
        self._room = action.output_limit_bytes
        self._bytes = {"stdout": 0, "stderr": 0}
        self._handle: Any = None
        self._start_ns = time.monotonic_ns()
        self._late = False
        """Whether its time was over before the service had said that it runs."""

    async def start(self, *, cwd: str | None, user: str, request_timeout_s: float) -> None:
        """Start the command. Its timeout is no error here. Raises InvalidRequest, SandboxGone and the like."""
        action = self._action
        line = wrap(action, self._token)
        if self._waits:
            line = line.replace(" </dev/null", "", 1) if action.stdin is None else line
        try:
            self._handle = await self._sandbox.commands.run(
                line,
                background=True,
                envs=dict(action.env),
                user=user,
                cwd=cwd,
                on_stdout=self._on_stdout,
                on_stderr=self._on_stderr,
                stdin=self._waits or bool(action.stdin),
                timeout=action.timeout_s,
                request_timeout=request_timeout_s,
                retain_output=False,
            )
        except Exception as error:
            if not self._is_over(error):
                raise failure("start the command", error) from error
            self._late = True

    async def give(self, data: bytes) -> None:
        """Write to its input; a command that has ended takes nothing."""
        if self._late:
            return
        with suppress(e2b.NotFoundException):
            for start in range(0, len(data), _PIECE_BYTES):
                await self._handle.send_stdin(data[start : start + _PIECE_BYTES])

    async def end_input(self) -> None:
        """Close its input."""
        if self._late:
            return
        with suppress(e2b.NotFoundException):
            await self._handle.close_stdin()

    async def kill(self) -> None:
        """Kill the command: bash, and what the service kills with it."""
        if self._handle is not None:
            with suppress(Exception):
                async with asyncio.timeout(_KILL_S):
                    await self._handle.kill()

    async def wait(self) -> Observation:
        """Its observation, without output. Raises LinkFailed, SubstrateFailed, DeadlineExceeded, and refusals."""
        if self._late:
            return self._observation(0, "", True, None, time.monotonic_ns())
        code, words, timed_out = 0, "", False
        try:
            # The SDK's own limit ends the stream; ours is for a service that holds it all the same.
            async with asyncio.timeout(self._action.timeout_s + _LATE_S):
                await self._handle.wait()
        except CommandExitException as error:
            code, words = error.exit_code, error.error or ""
        except asyncio.CancelledError:
            await asyncio.shield(self.kill())
            raise
        except Exception as error:
            timed_out = self._is_over(error)
            await self.kill()
            if not timed_out:
                raise _under_way(error) from error
        rest, note = self._trailer.finish()
        await self._pass_on("stderr", rest)
        return self._observation(code, words, timed_out, note.execute_ns if note else None, time.monotonic_ns())

    def _is_over(self, error: Exception) -> bool:
        """Whether this is the action's own timeout, and not a failure of the service."""
        if isinstance(error, e2b.SandboxNotRunningException | e2b.SandboxUnreachableException):
            return False
        passed_s = (time.monotonic_ns() - self._start_ns) / 1e9
        return isinstance(error, e2b.TimeoutException | TimeoutError) and passed_s > self._action.timeout_s - _EARLY_S

    def _observation(self, code: int, words: str, timed_out: bool, execute_ns: int | None, end_ns: int) -> Observation:
        signal = SIGKILL if timed_out else _signal(words) if code < 0 else None
        wall_ns = end_ns - self._start_ns
        spent_ns = int(self._action.timeout_s * 1e9) if timed_out else wall_ns if execute_ns is None else execute_ns
        seen = self._bytes
        return Observation(
            exit_code=None if signal is not None else code,
            signal=signal,
            stdout=b"",
            stderr=b"",
            timed_out=timed_out,
            truncated=sum(seen.values()) > self._action.output_limit_bytes,
            stdout_bytes=seen["stdout"],
            stderr_bytes=seen["stderr"],
            oom_killed=False,
            pids_limited=False,
            disk_full=False,
            cpu_ms=0.0,
            peak_memory_bytes=0,
            timing=Timing(self._id, self._start_ns, end_ns, min(spent_ns, wall_ns)),
        )

    async def _on_stdout(self, text: str) -> None:
        await self._pass_on("stdout", text)

    async def _on_stderr(self, text: str) -> None:
        await self._pass_on("stderr", self._trailer.feed(text))

    async def _pass_on(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        data = text.encode()
        self._bytes[stream] += len(data)
        kept = data[: self._room]
        self._room -= len(kept)
        if kept:
            await self._sink(stream, kept)


def _signal(words: str) -> int:
    """The signal in a message such as `signal: killed`."""
    name = words.removeprefix("signal: ").strip()
    number = re.fullmatch(r"(?:signal )?(\d{1,2})", name)
    return int(number[1]) if number else _SIGNALS.get(name, SIGKILL)


def _under_way(error: Exception) -> DutyfreeError:
    """The error for a command under way. A sandbox that is gone by now was there when the command began."""
    found = failure("run the command", error)
    return SubstrateFailed(found.message) if isinstance(found, SandboxGone) else found
