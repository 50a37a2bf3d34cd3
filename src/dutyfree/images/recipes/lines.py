"""Runs the lines of a stage in a sandbox, and reports which line failed and how."""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Mapping
from typing import Final

from dutyfree.contract import Sandbox
from dutyfree.errors import BuildFailed
from dutyfree.images.recipes.progress import EventKind, StageProgress
from dutyfree.model import Action, Chunk, Network, Observation
from dutyfree.model.action import MAX_TIMEOUT_S
from dutyfree.model.limits import GIB
from dutyfree.model.recipe import Stage

LOG_TAIL_BYTES: Final = 64 * 1024
MAX_OUTPUT_BYTES: Final = 1024 * GIB
"""The output limit of a line. It may be large, because only the end of the output is kept."""
_SHOWN_CHARACTERS: Final = 200
_NO_NETWORK: Final = re.compile(r"resolve host|name resolution|Name or service not known|Network is unreachable", re.I)


class Lines:
    """The lines of one stage, and the end of their output."""

    def __init__(self, stage: Stage, report: StageProgress) -> None:
        self._stage = stage
        self._report = report
        self._log = _Log(report)

    async def run(self, sandbox: Sandbox, cwd: str | None, env: Mapping[str, str] | None = None) -> None:
        """Run the lines in order; `env` is added to the sandbox's. Raises BuildFailed, and as `Sandbox.run` does."""
        end_s = time.monotonic() + self._stage.timeout_s
        for number, line in enumerate(self._stage.run, start=1):
            self._report(EventKind.LINE, line)
            left_s = end_s - time.monotonic()
            seen = await self._run_line(sandbox, line, cwd, env or {}, left_s) if left_s > 0 else None
            if seen is None or not seen.ok:
                raise self.failure(f"line {number} ({_shortened(line)!r}) {self._outcome(seen)}")

    def failure(self, what: str) -> BuildFailed:
        """The error of this stage: what failed, and the end of the output."""
        tail = self._log.tail
        offline = self._stage.network is Network.NONE and _NO_NETWORK.search(tail)
        hint = 'this stage has no network; network = "host" gives it one' if offline else None
        return BuildFailed(f"stage {self._stage.name!r}: {what}", stage=self._stage.name, log=tail, hint=hint)

    async def _run_line(
        self, sandbox: Sandbox, line: str, cwd: str | None, env: Mapping[str, str], left_s: float
    ) -> Observation:
        action = Action(
            f"set -e\n{line}",
            cwd=cwd,
            env=env,
            stdin=b"",
            timeout_s=min(left_s, MAX_TIMEOUT_S),
            output_limit_bytes=MAX_OUTPUT_BYTES,
        )
        async with sandbox.stream(action) as stream:
            async for chunk in stream:
                self._log.add(chunk)
            return await stream.wait()

    def _outcome(self, seen: Observation | None) -> str:
        if seen is None or seen.timed_out:
            return f"did not finish within the stage's {self._stage.timeout_s:g} s"
        for happened, words in (
            (seen.oom_killed, "memory"),
            (seen.disk_full, "disk"),
            (seen.pids_limited, "processes"),
        ):
            if happened:
                return f"ran out of {words}"
        return f"was killed by signal {seen.signal}" if seen.exit_code is None else f"gave exit code {seen.exit_code}"


class _Log:
    """The output of a stage: reports it at once, and keeps its end."""

    def __init__(self, report: StageProgress) -> None:
        self._report = report
        self._kept = b""
        # One decoder per stream: a chunk may end in the middle of a character, and the next may be the other stream's.
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": decoder("replace"), "stderr": decoder("replace")}

    def add(self, chunk: Chunk) -> None:
        self._kept = (self._kept + chunk.data)[-LOG_TAIL_BYTES:]
        text = self._decoders[chunk.stream].decode(chunk.data)
        if text:
            self._report(EventKind.LOG, text)

    @property
    def tail(self) -> str:
        return self._kept.decode("utf-8", "replace")


def _shortened(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "..."
