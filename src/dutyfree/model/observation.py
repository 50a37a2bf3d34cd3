"""The result of an action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dutyfree.model.phase import Phase
from dutyfree.model.span import Span


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
