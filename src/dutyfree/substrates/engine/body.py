"""The body of a sandbox: the container or machine that it has at the moment."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dutyfree.errors import Unsupported
from dutyfree.guest import LimitWatch
from dutyfree.model import Metrics, Phase, Span, Unenforced, Usage
from dutyfree.wire.channel import Channel

if TYPE_CHECKING:
    from dutyfree.contract import Snapshot


class Marks:
    """Timed steps of one creation. They become spans once the sandbox has its id."""

    def __init__(self) -> None:
        self._spans: list[tuple[Phase, str, int, int]] = []

    @contextmanager
    def step(self, phase: Phase, name: str) -> Iterator[None]:
        """Time one step: `create`/"pull", `create`/"start", `ready`/"handshake" ... A step that raises is left out."""
        start_ns = time.monotonic_ns()
        yield
        self._spans.append((phase, name, start_ns, time.monotonic_ns()))

    def spans(self, sandbox: str) -> list[Span]:
        """A span for each step, and one for each phase that has several steps."""
        steps = [Span(phase, start_ns, end_ns, sandbox, name) for phase, name, start_ns, end_ns in self._spans]
        spans: list[Span] = []
        for phase, group in itertools.groupby(steps, key=lambda step: step.phase):
            inner = list(group)
            spans += inner if len(inner) > 1 else []
            name = inner[0].name if len(inner) == 1 else ""
            spans.append(Span(phase, inner[0].start_ns, inner[-1].end_ns, sandbox, name))
        return spans


class Body(ABC):
    """A container, or a machine, with our guest in it."""

    channel: Channel
    """The stream of the guest that was started with it; the handshake is done."""
    env: dict[str, str]
    """The environment of actions: the image's, and over it the spec's."""
    cwd: str
    """Where actions run unless they say otherwise."""
    limits: LimitWatch | None = None
    unenforced: tuple[Unenforced, ...] = ()
    clock_stops: bool = False
    """Whether the clock of the guest's deadlines stands still while the body is paused, too."""
    pid: int | None = None
    """A process of this machine that the body cannot live without; None where there is none."""

    @abstractmethod
    async def connect(self) -> Channel:
        """A guest of its own for one action, started by a call of the engine's control plane; after its handshake.

        Started with `--leave`, so that what an action leaves in the background goes on; it ends when its channel is
        closed. Raises SandboxGone, SubstrateFailed, LinkFailed, DeadlineExceeded.
        """

    async def pause(self) -> None:
        """Stop all processes. Raises as `Sandbox.pause` does; `resume` is called after an error, too."""
        raise Unsupported("this substrate cannot pause its sandboxes")

    async def resume(self) -> None:
        """Let all processes go on."""
        raise Unsupported("this substrate cannot pause its sandboxes")

    def usage(self) -> Usage | None:
        """What it takes of this machine now, by a few reads of files; None where that cannot be measured."""
        return None

    def metrics(self) -> Metrics:
        """What it uses, without its limits. Blocks."""
        return Metrics(time.time())

    @abstractmethod
    async def end(self) -> None:
        """Kill it and free all its resources. The channel is closed already. Idempotent; raises SubstrateFailed."""

    async def snapshot(self) -> Snapshot:
        """Freeze the files as they are now; `make_body` takes its image. Raises as `Sandbox.snapshot` does."""
        raise Unsupported("this substrate cannot take snapshots")
