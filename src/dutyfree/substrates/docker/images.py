"""Images for an engine: its own images, by reference, and images of our store, which are loaded into it once."""

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
    """Provides images to one engine."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store
        self._locks: dict[str, asyncio.Lock] = {}

    async def provide(self, image: Image) -> EngineImage:
        """The engine's copy of an image. If it has none, the engine pulls it, or it is loaded from the store.

        Raises InvalidRequest, Unsupported, CapacityError, SubstrateFailed, DeadlineExceeded.
        """
        reference = image.reference or self._name_in_engine(image)
        known = await self._engine.image(reference)
        if known is None:
            # The lock makes sure that the image is fetched once, however many sandboxes wait for it.
            async with self._locks.setdefault(reference, asyncio.Lock()):
                known = await self._engine.image(reference) or await self._fetch(image, reference)
        try:
            config = known.get("Config") or {}
            return EngineImage(str(known["Id"]), plan.environment(config, image), plan.directory(config, image))
        except (KeyError, AttributeError) as error:
            raise SubstrateFailed(f"the engine's description of the image {reference!r} is invalid") from error

    async def save_to_store(self, reference: str, image: Image) -> Image:
        """Import an image of the engine into the store. The result has the environment and directory of `image`."""
        async with exit_in_thread(self._store.staging()) as directory:
            archive = directory / "image.tar"
            await self._engine.save(reference, archive)
            kept = await in_thread(import_source, self._store, f"docker-archive:{archive}")
        return Image(kept.layers, over_host=False, env=image.env, cwd=image.cwd)

    def _name_in_engine(self, image: Image) -> str:
        """The engine's name for an image of the store. Raises InvalidRequest if a layer is missing."""
        for layer in image.layers:
            if layer.startswith("live:") or not self._store.has(layer):
                raise InvalidRequest(f"there is no layer {layer} in the store", hint="build or import the image again")
        if image.over_host:
            hint = "build it from another base: dir:, tar:, oci: or debian:"
            raise Unsupported("an engine cannot start from an image over this machine's own root", hint=hint)
        return f"{REPOSITORY}/{image.digest.removeprefix('sha256:')}:latest"

    async def _fetch(self, image: Image, reference: str) -> dict[str, Any]:
        if not image.reference:
            await self._load(image, reference)
        elif reference.startswith(_OWN_ID):
            raise InvalidRequest(f"the engine has no image {reference} (a snapshot that was discarded?)")
        else:
            await self._engine.pull(reference)
        known = await self._engine.image(reference)
        if known is None:
            raise SubstrateFailed(f"the engine loaded the image {reference!r}, but does not list it")
        return known

    async def _load(self, image: Image, reference: str) -> None:
        async with exit_in_thread(self._store.staging()) as directory:
            archive = directory / "image.tar"
            await in_thread(export_image, self._store, image, archive, reference)
            await self._engine.load(archive)
