"""One sandbox for each token and name: found by its labels, acquired at the first call, released by `/close`.

Gateways share nothing, so that any of them finds the sandbox of another; what is kept here only saves the lookup.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from dutyfree.client.box import Box
from dutyfree.errors import CapacityError, InvalidRequest, LeaseLost, SandboxGone
from dutyfree.server.access import Access
from dutyfree.server.swerex.settings import Settings

NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}(@[A-Za-z0-9._:/-]{1,128})?")
FACE_LABEL: Final = "dutyfree.face"
NAME_LABEL: Final = "dutyfree.swerex.name"
FACE: Final = "swerex"
_MAX_CLOSED: Final = 256
"""How often a sandbox of one name can be closed within the ten minutes in which a host remembers keys."""
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
    until_s: float = 0.0
    """When the lease expires, by this process's clock."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Sandboxes:
    """The sandboxes of all owners, as far as this process has seen them."""

    def __init__(self, access: Access, settings: Settings) -> None:
        self._access = access
        self._settings = settings
        self._places: OrderedDict[Who, _Place] = OrderedDict()

    async def call(self, who: Who, work: Callable[[Box], Awaitable[T]], needs_s: float = 0.0) -> T:
        """What `work` gives for the sandbox, which is acquired if there is none, and stays for `needs_s` at least.

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
            if not _was_closed(error):
                place.lost = error
                raise
        # It was closed through another gateway, or by an operator, before this call.
        return await self._used(place, await self._held(who, place), work, needs_s)

    async def lost(self, who: Who) -> str:
        """How the sandbox was lost; empty if it lives, or was not acquired yet. Acquires nothing."""
        place = self._places.get(who)
        if place is None:
            return ""
        if place.lost is None and place.box is not None and not place.box.alive:
            await asyncio.sleep(0)
            return f"sandbox {place.box.id} is gone"
        return "" if place.lost is None else str(place.lost)

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
                place.box = await self._found(who) or await self._acquired(who)
                place.until_s = 0.0
        return place.box

    async def _found(self, who: Who) -> Box | None:
        for lease in await self._access.leases(who.owner, who.labels):
            return await self._access.box(who.owner, lease.id)
        return None

    async def _acquired(self, who: Who) -> Box:
        """A new sandbox. The key gives two gateways that are asked at once the same one.

        The host remembers the keys of ended leases for a while, so that the key counts how often it was closed.
        """
        settings = self._settings
        image = settings.templates.get(who.template) if who.template else settings.image
        if who.template and image is None:
            raise InvalidRequest(f"there is no template {who.template!r}")
        for number in range(_MAX_CLOSED):
            try:
                return await self._access.host.acquire(
                    image,
                    resources=settings.resources,
                    network=settings.network,
                    workdir=settings.workdir,
                    owner=who.owner,
                    key=f"{FACE}/{who.name}/{number}",
                    labels=who.labels,
                    timeout_s=settings.acquire_timeout_s,
                    ttl_s=settings.ttl_s,
                )
            except LeaseLost:
                continue
        raise CapacityError(f"this sandbox was closed {_MAX_CLOSED} times within minutes", hint="use another name")

    async def _used(self, place: _Place, box: Box, work: Callable[[Box], Awaitable[T]], needs_s: float) -> T:
        ttl_s = self._settings.ttl_s
        now_s = time.monotonic()
        if now_s + needs_s + ttl_s * 0.75 > place.until_s:
            await box.renew(ttl_s + needs_s)
            place.until_s = now_s + ttl_s + needs_s
        try:
            return await work(box)
        finally:
            if place.until_s - time.monotonic() > 2 * ttl_s:
                place.until_s = 0.0  # the next call sets the usual time again


def _was_closed(error: LeaseLost) -> bool:
    """Whether the lease was released before the call, which so did nothing."""
    return "was released" in error.message and "in progress" not in error.message
