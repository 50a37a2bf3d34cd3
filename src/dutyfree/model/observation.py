"""The result of an action."""

from __future__ import annotations

from typing import Final, Literal, Self

from dutyfree.errors import ActionFailed
from dutyfree.model.phase import Phase
from dutyfree.model.span import Span
from dutyfree.values import dataclass

TIMED_OUT_CODE: Final = 124
"""The exit code of a command that ran out of time, as `timeout` of coreutils has it."""
SIGNALLED_CODE: Final = 128
"""The exit code of a command that a signal ended is this, plus the signal's number, as shells have it."""
_QUOTED_BYTES: Final = 2000


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of output, in the order in which the guest read it."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class Timing:
    """The host's two timestamps around an action and, between them, what the guest measured."""

    sandbox: str
    start_ns: int
    end_ns: int
    execute_ns: int

    def spans(self) -> tuple[Span, ...]:
        """Dispatch, execute and observe, which add up to the action's wall time.

        The guest's clock is not the host's, so that only the *length* of `execute` is known: the rest, which is the
        tax of the action, is split evenly between dispatch and observe.
        """
        wall_ns = self.end_ns - self.start_ns
        execute_ns = min(max(self.execute_ns, 0), wall_ns)
        begin_ns = self.start_ns + (wall_ns - execute_ns) // 2
        finish_ns = begin_ns + execute_ns
        return (
            Span(Phase.DISPATCH, self.start_ns, begin_ns, self.sandbox),
            Span(Phase.EXECUTE, begin_ns, finish_ns, self.sandbox),
            Span(Phase.OBSERVE, finish_ns, self.end_ns, self.sandbox),
        )


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of an action: exactly one of `exit_code` and `signal` is set."""

    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool
    truncated: bool
    """The output passed the action's limit; `stdout_bytes` and `stderr_bytes` say how much there was."""
    stdout_bytes: int
    stderr_bytes: int
    oom_killed: bool
    """The action failed, and while it ran the sandbox's memory limit made the kernel kill something."""
    pids_limited: bool
    """The action failed, and while it ran the sandbox's process limit refused a fork."""
    disk_full: bool
    """The action failed, and at its end the sandbox's writable space, or its inodes, were used up."""
    cpu_ms: float
    peak_memory_bytes: int
    timing: Timing

    @property
    def text(self) -> str:
        """The standard output, decoded; bytes that are not UTF-8 become replacement characters."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """The standard error, decoded in the same way."""
        return self.stderr.decode("utf-8", "replace")

    @property
    def shell_code(self) -> int:
        """One number for how it ended, as shells give it: 124 for a timeout, 128 + N for signal N, or the exit code."""
        if self.timed_out:
            return TIMED_OUT_CODE
        return self.exit_code if self.exit_code is not None else SIGNALLED_CODE + (self.signal or 0)

    @property
    def ok(self) -> bool:
        """Whether the command exited with code 0."""
        return self.exit_code == 0

    @property
    def execute_ms(self) -> float:
        """How long the command itself ran, as measured inside the sandbox."""
        return self.timing.execute_ns / 1e6

    @property
    def spans(self) -> tuple[Span, ...]:
        """Where the action's wall time went."""
        return self.timing.spans()

    def check(self) -> Self:
        """The observation itself. Raises ActionFailed, which carries it, unless the command exited with code 0."""
        if self.ok:
            return self
        raise ActionFailed(f"the command {self._ending()}{self._last_words()}", observation=self)

    def _ending(self) -> str:
        if self.timed_out:
            return "ran out of time"
        limits = {"memory": self.oom_killed, "process": self.pids_limited, "disk": self.disk_full}
        met = "".join(f" (the {name} limit was reached)" for name, reached in limits.items() if reached)
        return (
            f"was ended by signal {self.signal}" if self.exit_code is None else f"exited with {self.exit_code}"
        ) + met

    def _last_words(self) -> str:
        """The last line that it printed, which usually has the reason: on stderr, or else on stdout."""
        for output in (self.stderr, self.stdout):
            lines = output[-_QUOTED_BYTES:].decode("utf-8", "replace").split("\n")
            said = [line.strip() for line in lines if line.strip()]
            if said:
                return f": {said[-1]!r:.200}"
        return ""
