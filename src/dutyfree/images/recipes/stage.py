"""Builds one stage in a sandbox."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from dutyfree.contract import Sandbox, Substrate
from dutyfree.errors import FileFailed, InvalidRequest, Unsupported
from dutyfree.images.recipes import inputs
from dutyfree.images.recipes.lines import Lines
from dutyfree.images.recipes.progress import EventKind, StageProgress
from dutyfree.images.store import Store
from dutyfree.model import Capability, Image, SandboxSpec, Writes
from dutyfree.model.limits import GIB, Resources
from dutyfree.model.recipe import Stage
from dutyfree.threads import exit_in_thread, in_thread

RESOURCES: Final = Resources(memory_bytes=8 * GIB, pids=4096, disk_bytes=32 * GIB)
"""The limits for the lines of a stage."""


class StageWork:
    """The build of one stage: puts its inputs, runs its lines, and saves a snapshot of the sandbox."""

    def __init__(
        self,
        substrate: Substrate,
        store: Store,
        stage: Stage,
        fingerprints: list[str],
        report: StageProgress,
    ) -> None:
        self._substrate = substrate
        self._store = store
        self._stage = stage
        self._fingerprints = fingerprints
        self._report = report
        self._lines = Lines(stage, report)

    async def build(self, parent: Image | None) -> Image:
        """Build the stage over `parent`, and put its image into the store. Raises as `builder.build` does."""
        assert parent is not None, "only a base has no parent"
        stage = self._stage
        if not {Capability.IMAGES, Capability.SNAPSHOT} <= self._substrate.capabilities:
            hint = "build on cells, and export the image for other substrates"
            raise Unsupported(f"substrate {self._substrate.name!r} cannot build images", hint=hint)
        image = replace(parent, env={**parent.env, **stage.env}, cwd=stage.cwd or parent.cwd)
        spec = SandboxSpec(resources=RESOURCES, network=stage.network, writes=Writes.DISK, image=image)
        async with await self._substrate.create(spec) as sandbox:
            try:
                await self._put_inputs(sandbox)
                await self._lines.run(sandbox, image.cwd)
            except FileFailed as error:
                raise self._lines.failure(error.message) from error
            self._report(EventKind.LINE, "saving")
            async with await sandbox.snapshot() as snapshot:
                saved = await snapshot.save()
                return replace(image, layers=saved.layers, over_host=saved.over_host, reference=saved.reference)

    async def _put_inputs(self, sandbox: Sandbox) -> None:
        stage = self._stage
        for given, before in zip(stage.files, self._fingerprints, strict=True):
            self._report(EventKind.LINE, f"copying {given.source} to {given.target}")
            await sandbox.files.upload(await in_thread(Path(given.source).resolve), given.target)
            if await in_thread(inputs.fingerprint, Path(given.source)) != before:
                hint = "build again when it no longer changes"
                raise InvalidRequest(f"{given.source!r} changed while it was read", hint=hint)
        for wanted in stage.git:
            self._report(EventKind.LINE, f"fetching commit {wanted.commit} to {wanted.target}")
            async with exit_in_thread(self._store.staging()) as directory:
                tree = await inputs.checkout(wanted, directory)
                await sandbox.files.upload(tree, wanted.target)
        if stage.cwd is not None:
            await sandbox.files.mkdir(stage.cwd)
