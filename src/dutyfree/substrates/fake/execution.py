"""One action of a fake sandbox, from its start to its observation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from dutyfree.contract import SpanListener
from dutyfree.errors import InvalidRequest
from dutyfree.model import Action, Observation, Phase, Timing
from dutyfree.substrates.fake.pipes import Output, OutputWriter, Pipe, Reader
from dutyfree.substrates.fake.shell import Exit, Killed, Shell, Tasks
from dutyfree.substrates.fake.tree import Directory
from dutyfree.trace import now_ns

if TYPE_CHECKING:
    from dutyfree.substrates.fake.sandbox import FakeSandbox

_SIGKILL = 9
# Signals that a command without a handler survives.
_IGNORED_SIGNALS = frozenset({0, 17, 18, 23, 28})


class Execution:
    """Runs an action's command in its sandbox, under the action's limits."""

    def __init__(
        self, sandbox: FakeSandbox, action: Action, stdin: Reader, output: Output, on_span: SpanListener | None
    ) -> None:
        self._sandbox = sandbox
        self._action = action
        self._stdin = stdin
        self._output = output
        self._on_span = on_span
        self._tasks = Tasks()
        self._main: asyncio.Task[int] | None = None
        self._killed_by: int | None = None
        self._start_ns = now_ns()

    def check(self) -> None:
        """Raise InvalidRequest for a cwd that is not there."""
        cwd = self._action.cwd or "/"
        try:
            is_there = cwd.startswith("/") and isinstance(self._sandbox.tree.locate_or_none(cwd), Directory)
        except OSError:
            is_there = False
        if not is_there:
            raise InvalidRequest(f"the cwd {cwd!r} is not a directory of the sandbox")

    def signal(self, number: int) -> None:
        """Send a signal to the command; does nothing once it has ended."""
        if self._main is not None and not self._main.done() and number not in _IGNORED_SIGNALS:
            self._killed_by = number
            self._main.cancel()

    def kill(self) -> None:
        """Kill the command and all that it started."""
        self.signal(_SIGKILL)
        self._tasks.kill()

    async def observe(self) -> Observation:
        """Run the command to its end. Cancelled, it ends the command first; raises LinkFailed if the sandbox ends."""
        self.check()
        await self._sandbox.performer.delay(Phase.DISPATCH)
        begin_ns = now_ns()
        self._sandbox.left_behind.add(self._tasks)
        self._main = self._tasks.start(self._run())
        try:
            ends: set[asyncio.Future[Any]] = {self._main, self._sandbox.ended}
            await asyncio.wait(ends, timeout=self._action.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            timed_out = not self._main.done()
        finally:
            if not self._main.done():
                self._tasks.kill()
            self._output.close()
            if isinstance(self._stdin, Pipe):
                await self._stdin.end_reading()
            if not self._tasks.running:
                self._sandbox.left_behind.discard(self._tasks)
        if not self._sandbox.alive:
            self._sandbox.raise_end()
        execute_ns = now_ns() - begin_ns
        await self._sandbox.performer.delay(Phase.OBSERVE)
        return self._observation(execute_ns, timed_out)

    async def _run(self) -> int:
        action = self._action
        writers = {1: OutputWriter(self._output, "stdout"), 2: OutputWriter(self._output, "stderr")}
        env = self._sandbox.environment | dict(action.env)
        pid = next(self._sandbox.pids)
        shell = Shell(self._sandbox.tree, env, action.cwd or "/", self._stdin, dict(writers), self._tasks, pid)
        try:
            if isinstance(action.command, str):
                return await shell.line(action.command)
            return await shell.program(list(action.command))
        except Exit as leaving:
            return leaving.code
        except Killed as killed:
            self._killed_by = killed.signal
            return 0

    def _observation(self, execute_ns: int, timed_out: bool) -> Observation:
        assert self._main is not None
        signal = _SIGKILL if timed_out else self._killed_by
        timing = Timing(self._sandbox.id, self._start_ns, now_ns(), execute_ns)
        if self._on_span is not None:
            for span in timing.spans():
                self._on_span(span)
        output = self._output
        return Observation(
            exit_code=self._main.result() if signal is None else None,
            signal=signal,
            stdout=bytes(output.kept["stdout"]),
            stderr=bytes(output.kept["stderr"]),
            timed_out=timed_out,
            truncated=output.truncated,
            stdout_bytes=output.produced_bytes["stdout"],
            stderr_bytes=output.produced_bytes["stderr"],
            oom_killed=False,
            pids_limited=False,
            disk_full=False,
            cpu_ms=0.0,
            peak_memory_bytes=0,
            timing=timing,
        )


def empty_success(sandbox: str) -> Observation:
    """What a liar says: exit code 0, and nothing else."""
    instant_ns = now_ns()
    timing = Timing(sandbox, instant_ns, instant_ns, 0)
    return Observation(0, None, b"", b"", False, False, 0, 0, False, False, False, 0.0, 0, timing)
