"""Images that leases name: from the store or else, for a registry's names, from the registry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING

from dutyfree.errors import CapacityError, DutyfreeError, ImageNotFound, SubstrateFailed
from dutyfree.images.store import Store
from dutyfree.model import Image, Recipe
from dutyfree.substrates.guarded import GuardedSubstrate
from dutyfree.values import dataclass

if TYPE_CHECKING:
    from dutyfree.images.recipes.progress import Event, Progress


@dataclass(slots=True)
class _Fetch:
    listeners: list[Progress] = field(default_factory=list)
    task: asyncio.Task[Image] | None = None

    def report(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)


class NamedImages:
    """Finds images by name for one host. An image that many leases wait for is fetched once."""

    def __init__(self, substrate: GuardedSubstrate) -> None:
        self._substrate = substrate
        self._fetches: dict[str, _Fetch] = {}

    async def find(self, name: str, *, on_progress: Progress | None = None, timeout_s: float | None = None) -> Image:
        """The image of this name. One with a tag, a digest or a slash that the store lacks is fetched and named so.

        Raises ImageNotFound for another name that the store lacks; InvalidRequest for an image that the registry lacks
        or refuses; Unsupported without images; SubstrateUnavailable without skopeo; InfraFailed and DeadlineExceeded
        for a registry that fails; CapacityError after `timeout_s`, while the fetch goes on.
        """
        try:
            return self._substrate.named_image(name)
        except ImageNotFound as error:
            from dutyfree.images.oci.references import address_of  # most leases find their image

            address, store = address_of(name), self._substrate.store
            if address is None or store is None:
                _add_command(error, name)
                raise
        return await self._fetched(name, address, store, on_progress, timeout_s)

    async def _fetched(
        self, name: str, address: str, store: Store, on_progress: Progress | None, timeout_s: float | None
    ) -> Image:
        fetch = self._fetches.get(name)
        if fetch is None:
            fetch = self._fetches[name] = _Fetch()
            fetch.task = asyncio.create_task(self._fetch(name, address, store, fetch.report))
            fetch.task.add_done_callback(lambda task: self._ended(name, task))
        assert fetch.task is not None
        if on_progress is not None:
            fetch.listeners.append(on_progress)
        try:
            done, _ = await asyncio.wait({fetch.task}, timeout=timeout_s)
        finally:
            if on_progress is not None:
                fetch.listeners.remove(on_progress)
        if not done:
            hint = "the fetch goes on: try again later, or give it more time: timeout_s="
            raise CapacityError(f"the image {name!r} was not fetched within {timeout_s:g} s", hint=hint)
        if fetch.task.cancelled():
            raise SubstrateFailed(f"the host was closed while the image {name!r} was fetched")
        return fetch.task.result()

    async def _fetch(self, name: str, address: str, store: Store, report: Callable[[Event], None]) -> Image:
        from dutyfree.images.recipes import builder

        try:
            # A recipe without stages: builders of one base wait for each other, and share what one of them fetched.
            recipe = Recipe(base=f"oci:{address}")
            return (await builder.build(recipe, self._substrate, store, name=name, on_progress=report)).image
        except DutyfreeError as error:
            _add_command(error, name)
            raise

    def _ended(self, name: str, task: asyncio.Task[Image]) -> None:
        del self._fetches[name]
        if not task.cancelled():
            task.exception()  # the leases that waited for it may have given up: then no one else reads it

    async def close(self) -> None:
        """Stop all fetches."""
        tasks = [fetch.task for fetch in self._fetches.values() if fetch.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _add_command(error: DutyfreeError, name: str) -> None:
    """Add the command that imports the image to the hint of an error."""
    from dutyfree.images.oci.references import import_command

    command = import_command(name)
    if command is not None:
        error.hint = f"{error.hint}; to fetch it: {command}" if error.hint else f"to fetch it: {command}"
