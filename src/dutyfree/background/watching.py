"""A watched directory as the stream of a background process: its output is one line of JSON for each change."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from dutyfree.contract import ActionStream, Watch
from dutyfree.errors import InvalidRequest
from dutyfree.model import Chunk, FileEvent, Observation
from dutyfree.model.observation import Timing


class WatchStream(ActionStream):
    """Watches from the moment that its block is entered, which the first line says, until it is killed."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._start_ns = time.monotonic_ns()

    async def __aenter__(self) -> Self:
        await self._watch.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._watch.__aexit__(None, None, None)

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        yield Chunk("stdout", b'{"kind": "ready"}\n')
        async for event in self._watch:
            yield Chunk("stdout", encode_event(event))

    async def write(self, data: bytes) -> None:
        raise InvalidRequest("a watch takes no input")

    async def end_input(self) -> None:
        """A watch has no input."""

    async def signal(self, number: int) -> None:
        await self.kill()

    async def kill(self) -> None:
        await self._watch.__aexit__(None, None, None)

    async def wait(self) -> Observation:
        now_ns = time.monotonic_ns()
        return Observation(
            exit_code=0,
            signal=None,
            stdout=b"",
            stderr=b"",
            timed_out=False,
            truncated=False,
            stdout_bytes=0,
            stderr_bytes=0,
            oom_killed=False,
            pids_limited=False,
            disk_full=False,
            cpu_ms=0.0,
            peak_memory_bytes=0,
            timing=Timing("watch", self._start_ns, now_ns, now_ns - self._start_ns),
        )


def encode_event(event: FileEvent) -> bytes:
    """One line. Names that are no UTF-8 have lone surrogates in it, as in Python."""
    form: dict[str, object] = {"kind": str(event.kind), "path": event.path}
    if event.is_directory:
        form["is_directory"] = True
    if event.moved_from is not None:
        form["moved_from"] = event.moved_from
    return json.dumps(form).encode() + b"\n"
