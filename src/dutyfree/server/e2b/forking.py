"""Forks and snapshots: both keep files. Where memory would be lost, they are refused unless the operator allows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from dutyfree.client.box import Box
from dutyfree.client.host import Host
from dutyfree.contract import Snapshot
from dutyfree.errors import DutyfreeError, InvalidRequest
from dutyfree.model import Egress, Network
from dutyfree.server.e2b import forms, identity
from dutyfree.server.e2b.connect import JsonObject
from dutyfree.server.e2b.create import Creation, read_timeout
from dutyfree.server.e2b.errors import not_implemented, to_http
from dutyfree.server.e2b.settings import Settings
from dutyfree.server.e2b.snapshots import snapshot_id

MAX_FORKS: Final = 20
_LOST: Final = "this would need a copy of the memory of running processes; this server keeps files alone"


async def fork(host: Host, box: Box, body: JsonObject, settings: Settings) -> list[JsonObject]:
    """Sandboxes with the files of this one, each with a lease of its own: `{"sandbox": ...}` or `{"error": ...}`."""
    count = body.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_FORKS:
        raise InvalidRequest(f"count is {count!r:.20}; it must be 1 to {MAX_FORKS}")
    timeout_s = read_timeout(body.get("timeout"), settings)
    await _check_nothing_runs(box, settings)
    lease = box.lease
    env = {name: value for name, value in box.env.items() if not name.startswith("DUTYFREE_")}
    network = _network(box)
    async with _taken(box) as snapshot:

        async def one() -> JsonObject:
            labels = {name: value for name, value in lease.labels.items() if name != identity.PAUSED}
            labels[identity.SECRET] = identity.new_secret()
            wanted = Creation(
                lease.labels.get(identity.TEMPLATE, ""),
                snapshot.image,
                timeout_s,
                env,
                network,
                labels,
            )
            try:
                made = await wanted.acquire(host, lease.owner, settings)
            except DutyfreeError as error:
                return {"error": to_http(error).body}
            return {"sandbox": forms.created(made.lease, settings)}

        return list(await asyncio.gather(*(one() for _ in range(count))))


async def take_snapshot(box: Box, body: JsonObject, settings: Settings) -> JsonObject:
    """Keep the files of a sandbox in the node's store, for `Sandbox.create(snapshot_id)`."""
    if body.get("name"):
        raise not_implemented("snapshots have no names yet; keep their ids")
    if body.get("memory") is not False:
        await _check_nothing_runs(box, settings)
    async with _taken(box) as snapshot:
        image = await snapshot.save()
    return {"snapshotID": snapshot_id(image), "names": []}


async def _check_nothing_runs(box: Box, settings: Settings) -> None:
    """Raise 501 if processes run whose memory would be lost."""
    if settings.files_only:
        return
    count = (await box.metrics()).processes
    if count is None or count > 1:  # the guest itself is one
        raise not_implemented(f"{_LOST} (end the processes first, or ask for a snapshot of files: mode='filesystem')")


@asynccontextmanager
async def _taken(box: Box) -> AsyncIterator[Snapshot]:
    """A snapshot of the files. A paused sandbox goes on for the moment that this takes."""
    was_paused = box.paused
    if was_paused:
        await box.resume()
    try:
        snapshot = await box.snapshot()
    finally:
        if was_paused:
            await box.pause()
    async with snapshot:
        yield snapshot


def _network(box: Box) -> Egress | Network:
    """The rules that hold for a sandbox now."""
    try:
        return box.egress.rules
    except InvalidRequest:
        return Network.NONE
