"""Building one stage in a sandbox."""

from __future__ import annotations

import codecs
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from dutyfree.contract import Sandbox, Substrate
from dutyfree.errors import BuildFailed, FileFailed, InvalidRequest, Unsupported
from dutyfree.images.blocking import in_thread, staged
from dutyfree.images.recipes import inputs
from dutyfree.images.recipes.progress import Kind, Teller
from dutyfree.images.store import Store
from dutyfree.model import Action, Capability, Chunk, Image, Network, Observation, SandboxSpec, Upper
from dutyfree.model.action import MAX_TIMEOUT_S
from dutyfree.model.limits import GIB, Resources
from dutyfree.model.recipe import Stage

LOG_TAIL_BYTES: Final = 64 * 1024
MAX_OUTPUT_BYTES: Final = 1024 * GIB
"""A line may print much, as nothing of it is kept but the end."""
_SHOWN_CHARACTERS: Final = 200
_NO_NETWORK: Final = re.compile(r"resolve host|name resolution|Name or service not known|Network is unreachable", re.I)


class StageWork:
    """One stage: its inputs, then its lines, then what has become of the sandbox."""

    def __init__(
        self,
        substrate: Substrate,
        store: Store,
        resources: Resources,
        stage: Stage,
        fingerprints: list[str],
        told: Teller,
    ) -> None:
        self._substrate = substrate
        self._store = store
        self._resources = resources
        self._stage = stage
        self._fingerprints = fingerprints
        self._told = told
        self._log = _Log(told)

    async def build(self, parent: Image | None) -> Image:
        """The image of the stage over `parent`, in the store. Raises as `builder.build` does."""
        assert parent is not None, "only a base has nothing below it"
        stage = self._stage
        if not {Capability.IMAGES, Capability.SNAPSHOT} <= self._substrate.capabilities:
            hint = "build on cells; images can be exported for other substrates"
            raise Unsupported(f"substrate {self._substrate.name!r} cannot build images", hint=hint)
        image = replace(parent, env={**parent.env, **stage.env}, cwd=stage.cwd or parent.cwd)
        spec = SandboxSpec(resources=self._resources, network=stage.network, upper=Upper.DISK, image=image)
        async with await self._substrate.create(spec) as sandbox:
            try:
                await self._put_inputs(sandbox)
                await self._run_lines(sandbox, image.cwd)
            except FileFailed as error:
                raise self._failure(error.message) from error
            self._told(Kind.LINE, "saving")
            async with await sandbox.snapshot() as snapshot:
                return replace(await snapshot.save(), env=image.env, cwd=image.cwd)

    async def _put_inputs(self, sandbox: Sandbox) -> None:
        stage = self._stage
        for given, before in zip(stage.files, self._fingerprints, strict=True):
            self._told(Kind.LINE, f"copying {given.source} to {given.target}")
            await sandbox.files.upload(await in_thread(Path(given.source).resolve), given.target)
            if await in_thread(inputs.fingerprint, Path(given.source)) != before:
                hint = "build again when it is at rest"
                raise InvalidRequest(f"{given.source!r} has changed while it was read", hint=hint)
        for wanted in stage.git:
            self._told(Kind.LINE, f"fetching commit {wanted.commit} to {wanted.target}")
            async with staged(self._store) as directory:
                tree = await inputs.checkout(wanted, directory)
                await sandbox.files.upload(tree, wanted.target)
        if stage.cwd is not None:
            await sandbox.files.mkdir(stage.cwd)

    async def _run_lines(self, sandbox: Sandbox, cwd: str) -> None:
        end_s = time.monotonic() + self._stage.timeout_s
        for number, line in enumerate(self._stage.run, start=1):
            self._told(Kind.LINE, line)
            left_s = end_s - time.monotonic()
            seen = await self._run_line(sandbox, line, cwd, left_s) if left_s > 0 else None
            if seen is None or not seen.ok:
                raise self._failure(f"line {number} ({_shortened(line)!r}) {self._outcome(seen)}")

    async def _run_line(self, sandbox: Sandbox, line: str, cwd: str, left_s: float) -> Observation:
        action = Action(
            f"set -e\n{line}",
            cwd=cwd,
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
            return f"was not done when the stage's {self._stage.timeout_s:g} s were over"
        for happened, words in (
            (seen.oom_killed, "memory"),
            (seen.disk_full, "disk"),
            (seen.pids_limited, "processes"),
        ):
            if happened:
                return f"ran out of {words}"
        return f"was killed by signal {seen.signal}" if seen.exit_code is None else f"gave exit code {seen.exit_code}"

    def _failure(self, what: str) -> BuildFailed:
        tail = self._log.tail
        offline = self._stage.network is Network.NONE and _NO_NETWORK.search(tail)
        hint = 'this stage has no network; network = "host" gives it one' if offline else None
        return BuildFailed(f"stage {self._stage.name!r}: {what}", stage=self._stage.name, log=tail, hint=hint)


class _Log:
    """What a stage prints: passed on at once, and its end kept."""

    def __init__(self, told: Teller) -> None:
        self._told = told
        self._kept = b""
        # Each of the two streams may be cut in the middle of a character, with some of the other one following.
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": decoder("replace"), "stderr": decoder("replace")}

    def add(self, chunk: Chunk) -> None:
        self._kept = (self._kept + chunk.data)[-LOG_TAIL_BYTES:]
        text = self._decoders[chunk.stream].decode(chunk.data)
        if text:
            self._told(Kind.LOG, text)

    @property
    def tail(self) -> str:
        return self._kept.decode("utf-8", "replace")


def _shortened(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "..."
