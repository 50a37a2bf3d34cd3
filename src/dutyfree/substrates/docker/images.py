"""Images for an engine: its own, by reference, and those of our store, which it is given once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from dutyfree.errors import InvalidRequest, SubstrateFailed, Unsupported
from dutyfree.images.oci.exporting import export_image
from dutyfree.images.oci.importing import import_source
from dutyfree.images.store import Store
from dutyfree.model import Image
from dutyfree.substrates.docker import plan
from dutyfree.substrates.docker.client import Engine
from dutyfree.threads import exit_in_thread, in_thread

REPOSITORY = "dutyfree"
_OWN_ID = "sha256:"


@dataclass(frozen=True, slots=True)
class EngineImage:
    """An image that the engine has."""

    id: str
    env: dict[str, str]
    cwd: str


class EngineImages:
    """Gets images to where containers can start from them."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store
        self._turns: dict[str, asyncio.Lock] = {}

    async def ready(self, image: Image) -> EngineImage:
        """The engine's own copy of an image; pulled, or put there from the store, if it has none.

        Raises InvalidRequest, Unsupported, CapacityError, SubstrateFailed, DeadlineExceeded.
        """
        reference = image.reference or self._loaded_name(image)
        known = await self._engine.image(reference)
        if known is None:
            # However many sandboxes wait for it, it is fetched once.
            async with self._turns.setdefault(reference, asyncio.Lock()):
                known = await self._engine.image(reference) or await self._fetched(image, reference)
        try:
            config = known.get("Config") or {}
            return EngineImage(str(known["Id"]), plan.environment(config, image), plan.directory(config, image))
        except (KeyError, AttributeError) as error:
            raise SubstrateFailed(f"what the engine says of the image {reference!r} is not understood") from error

    async def keep(self, reference: str, image: Image) -> Image:
        """Put an image of the engine's into the store; what it is there, with what `image` says of it."""
        async with exit_in_thread(self._store.staging()) as directory:
            archive = directory / "image.tar"
            await self._engine.save(reference, archive)
            kept = await in_thread(import_source, self._store, f"docker-archive:{archive}")
        return Image(kept.layers, over_host=False, env=image.env, cwd=image.cwd)

    def _loaded_name(self, image: Image) -> str:
        """What the engine calls an image of the store. Raises InvalidRequest, naming a layer that is not there."""
        for layer in image.layers:
            if layer.startswith("live:") or not self._store.has(layer):
                raise InvalidRequest(f"there is no layer {layer} in the store", hint="build or import the image again")
        if image.over_host:
            hint = "build it from another base: dir:, tar:, oci: or debian:"
            raise Unsupported("an engine cannot start from an image over this machine's own root", hint=hint)
        return f"{REPOSITORY}/{image.digest.removeprefix('sha256:')}:latest"

    async def _fetched(self, image: Image, reference: str) -> dict[str, Any]:
        if not image.reference:
            await self._load(image, reference)
        elif reference.startswith(_OWN_ID):
            raise InvalidRequest(f"the engine has no image {reference} (a snapshot that was discarded?)")
        else:
            await self._engine.pull(reference)
        known = await self._engine.image(reference)
        if known is None:
            raise SubstrateFailed(f"the engine was given the image {reference!r}, and does not have it")
        return known

    async def _load(self, image: Image, reference: str) -> None:
        async with exit_in_thread(self._store.staging()) as directory:
            archive = directory / "image.tar"
            await in_thread(export_image, self._store, image, archive, reference)
            await self._engine.load(archive)
