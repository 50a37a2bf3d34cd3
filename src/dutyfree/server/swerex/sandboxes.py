"""One sandbox for each token and name: found by its labels, acquired at the first call, released by `/close`.

Gateways share nothing, so that any of them finds the sandbox of another; what is kept here only saves the lookup.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from dutyfree.client.box import Box
from dutyfree.errors import DutyfreeError, InvalidRequest, LeaseLost, SandboxGone
from dutyfree.server.access import Access
from dutyfree.server.swerex.settings import Settings

NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}(@[A-Za-z0-9._:/-]{1,128})?")
FACE_LABEL: Final = "dutyfree.face"
NAME_LABEL: Final = "dutyfree.swerex.name"
FACE: Final = "swerex"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Who:
    """The owner of a token, and the sandbox that a request is about."""

    owner: str
    name: str
    """`NAME` or `NAME@TEMPLATE`; the same name with another template is another sandbox."""

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its lease."""
        return {FACE_LABEL: FACE, NAME_LABEL: self.name}

    @property
    def template(self) -> str:
        """The template's name; empty for the server's own image."""
        return self.name.partition("@")[2]


@dataclass(eq=False, slots=True)
class _Place:
    box: Box | None = None
    lost: LeaseLost | SandboxGone | None = None
    """How its sandbox was lost. Calls raise it until `/close`: a new sandbox in its place would be a silent loss."""
    renewed_s: float = 0.0
    """When this process last renewed the lease."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Sandboxes:
    """The sandboxes of all owners, as far as this process has seen them."""

    def __init__(self, access: Access, settings: Settings) -> None:
        self._access = access
        self._settings = settings
        self._places: OrderedDict[Who, _Place] = OrderedDict()

    async def call(self, who: Who, work: Callable[[Box], Awaitable[T]], needs_s: float = 0.0) -> T:
        """What `work` gives for the sandbox, which is acquired if there is none, and is kept while `work` goes on.

        `needs_s` is the longest that it may take.

        Raises LeaseLost or SandboxGone, again until `close`, once the sandbox was lost; and as `Host.acquire`.
        """
        place = self._place(who)
        if place.lost is not None:
            raise place.lost.with_traceback(None)
        box = await self._held(who, place)
        try:
            return await self._used(place, box, work, needs_s)
        except SandboxGone as error:
            place.lost = error
            raise
        except LeaseLost as error:
            place.box = None
            if not await self._was_released(box):
                place.lost = error
                raise
            if "in progress" in error.message:
                raise
        # It was closed through another gateway, or by an operator, before this call.
        return await self._used(place, await self._held(who, place), work, needs_s)

    async def lost(self, who: Who) -> str:
        """How the sandbox was lost; empty if it lives, was closed or was not acquired yet. Acquires nothing."""
        place = self._places.get(who)
        if place is None:
            return ""
        if place.lost is not None:
            return str(place.lost)
        if place.box is None or place.box.alive or await self._was_released(place.box):
            return ""
        return f"sandbox {place.box.id} is gone"

    async def close(self, who: Who) -> None:
        """Release the sandbox. The next call acquires another one. Does nothing if there is none."""
        place = self._place(who)
        async with place.turn:
            for lease in await self._access.leases(who.owner, who.labels):
                await self._access.host.release(lease.id)
            place.box = place.lost = None
        self._places.pop(who, None)

    def _place(self, who: Who) -> _Place:
        place = self._places.get(who)
        if place is None:
            place = self._places[who] = _Place()
            if len(self._places) > self._settings.max_sandboxes:
                self._places.popitem(last=False)
        else:
            self._places.move_to_end(who)
        return place

    async def _held(self, who: Who, place: _Place) -> Box:
        """The box of the sandbox, which is acquired if there is none."""
        if place.box is not None:
            return place.box
        async with place.turn:
            if place.box is None:
                try:
                    place.box = await self._found(who) or await self._acquired(who)
                except BaseException:
                    self._places.pop(who, None)
                    raise
                place.renewed_s = 0.0
        return place.box

    async def _found(self, who: Who) -> Box | None:
        for lease in await self._access.leases(who.owner, who.labels):
            with suppress(LeaseLost):  # it has ended meanwhile
                return await self._access.box(who.owner, lease.id)
        return None

    async def _acquired(self, who: Who) -> Box:
        """A new sandbox. If another gateway has acquired one at the same time, both take the older."""
        settings = self._settings
        image = settings.templates.get(who.template) if who.template else settings.image
        if who.template and image is None:
            raise InvalidRequest(f"there is no template {who.template!r}")
        box = await self._access.host.acquire(
            image,
            resources=settings.resources,
            network=settings.network,
            workdir=settings.workdir,
            owner=who.owner,
            labels=who.labels,
            timeout_s=settings.acquire_timeout_s,
            ttl_s=settings.ttl_s,
        )
        box.detach()
        oldest = await self._found(who)
        if oldest is None or oldest.lease.id == box.lease.id:
            return box
        await box.close()
        return oldest

    async def _was_released(self, box: Box) -> bool:
        """Whether the lease was released on purpose, and has not expired: the host's table remembers which."""
        try:
            await self._access.host.get(box.lease.id)
        except LeaseLost as why:
            return "was released" in why.message
        return False

    async def _used(self, place: _Place, box: Box, work: Callable[[Box], Awaitable[T]], needs_s: float) -> T:
        ttl_s = self._settings.ttl_s
        now_s = time.monotonic()
        if now_s - place.renewed_s > ttl_s / 4:
            await box.renew(ttl_s)
            place.renewed_s = now_s
        if needs_s < ttl_s / 4:
            return await work(box)
        keeping = asyncio.create_task(_keep(box, ttl_s))
        try:
            return await work(box)
        finally:
            keeping.cancel()


async def _keep(box: Box, ttl_s: float) -> None:
    """Renew the lease again and again. Not once for the whole time: the lease of a gateway that dies must expire."""
    with suppress(DutyfreeError):
        while True:
            await asyncio.sleep(ttl_s / 4)
            await box.renew(ttl_s)
