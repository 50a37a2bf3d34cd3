"""The null substrate: sandboxes that do nothing and return the expected observation at once.

A study measures the instrument's own time on it: the floor, which is shown and never subtracted.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Self, TypeVar, cast

from dutyfree.checked import FilePath
from dutyfree.contract import (
    DEFAULT_FILE_TIMEOUT_S,
    DEFAULT_READ_LIMIT_BYTES,
    ActionStream,
    Files,
    Sandbox,
    Session,
    SpanListener,
    Substrate,
    Terminal,
)
from dutyfree.errors import SandboxGone, Unsupported
from dutyfree.measure.design.plan import NULL
from dutyfree.measure.workloads.workload import Expectation, ScriptedAction
from dutyfree.model import (
    Action,
    Capability,
    Chunk,
    Command,
    FileInfo,
    FileKind,
    Image,
    Isolation,
    Observation,
    SandboxSpec,
    Timing,
    Unenforced,
    User,
)
from dutyfree.substrates.forwarding import ForwardingFiles

Result = TypeVar("Result")
_INSTANT: Final = Timing(NULL, 0, 0, 0)
_NOTHING: Final = Observation(0, None, b"/", b"", False, False, 1, 0, False, False, False, 0.0, 0, _INSTANT)
"""Success. Its output is a directory, because that is the only output that set-up reads (`recipes.readiness`)."""


@dataclass(frozen=True, slots=True)
class ForetoldAction(Action):
    """An action that carries its observation."""

    observation: Observation = _NOTHING


def foretold(trajectory: tuple[ScriptedAction, ...]) -> tuple[ScriptedAction, ...]:
    """The trajectory for null sandboxes. If only the digest of an output is known, the digest is not checked."""
    return tuple(
        replace(each, action=_foretold(each.action, each.expect), expect=replace(each.expect, sha256=""))
        for each in trajectory
    )


def _foretold(action: Action, expect: Expectation) -> ForetoldAction:
    stdout = "\n".join(expect.contains).encode()
    seen = replace(_NOTHING, exit_code=expect.exit_code or 0, stdout=stdout, stdout_bytes=len(stdout))
    return ForetoldAction(
        action.command,
        action.cwd,
        action.env,
        action.stdin,
        action.timeout_s,
        action.output_limit_bytes,
        action.user,
        action.merge,
        seen,
    )


class NullSubstrate(Substrate):
    """Accepts every spec; its sandboxes do nothing."""

    name = NULL
    isolation = Isolation.NONE

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.FILES, Capability.PRIVATE_FILES})

    async def open(self) -> None:
        """Nothing to do."""

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        return NullSandbox(f"{NULL}-{next(self._numbers)}")

    def named_image(self, name: str) -> Image:
        return Image()

    async def close(self) -> None:
        """Nothing to do."""


class NullSandbox(Sandbox):
    """A sandbox that consists of an id."""

    def __init__(self, name: str) -> None:
        self.id = name
        self.files = NullFiles()
        self._alive = True

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        return ()

    @property
    def alive(self) -> bool:
        return self._alive

    async def run(self, action: Action) -> Observation:
        if not self._alive:
            raise SandboxGone(f"sandbox {self.id} is gone")
        return action.observation if isinstance(action, ForetoldAction) else _NOTHING

    def stream(self, action: Action) -> ActionStream:
        return NullStream()

    async def session(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: User | None = None
    ) -> Session:
        raise Unsupported("a null sandbox has no sessions")

    async def terminal(
        self,
        command: Command,
        *,
        rows: int = 24,
        cols: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: User | None = None,
    ) -> Terminal:
        raise Unsupported("a null sandbox has no terminals")

    async def destroy(self) -> None:
        self._alive = False


class NullStream(ActionStream):
    """The stream of an action that has already ended."""

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        chunks: tuple[Chunk, ...] = ()
        for chunk in chunks:
            yield chunk

    async def write(self, data: bytes) -> None:
        """The input is dropped."""

    async def end_input(self) -> None:
        """Nothing to do."""

    async def signal(self, number: int) -> None:
        """Nothing to do: the action has ended."""

    async def kill(self) -> None:
        """Nothing to do: the action has ended."""

    async def wait(self) -> Observation:
        return _NOTHING

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to do: the action has ended."""


class NullFiles(ForwardingFiles):
    """Accepts every write and keeps nothing."""

    async def _call(self, operation: Callable[[Files], Awaitable[Result]]) -> Result:
        return cast(Result, None)  # of all calls except those below

    async def read(
        self, path: FilePath, *, limit_bytes: int = DEFAULT_READ_LIMIT_BYTES, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> bytes:
        return b""

    async def list(self, path: FilePath, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> list[FileInfo]:
        return []

    async def stat(self, path: FilePath, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> FileInfo:
        return FileInfo(str(path), FileKind.FILE, 0o644, 0, 0, 0, 0)
