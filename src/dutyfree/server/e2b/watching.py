"""Watched directories: as a stream, and as watchers that are asked. A watcher is a background process of the lease."""

from __future__ import annotations

import json
import posixpath
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

from dutyfree.client.process import Process
from dutyfree.errors import FileFailed, InvalidRequest
from dutyfree.server.e2b import connect
from dutyfree.server.e2b.connect import JsonObject
from dutyfree.server.e2b.daemon import Call
from dutyfree.server.e2b.errors import RpcError
from dutyfree.server.e2b.filesystem import entry

_OFFSET: Final = "e2b:watch:"
"""Labels of watchers: the offset up to which events were given out, whether they have entries, the directory."""
_READY_S: Final = 30.0
_MAX_EVENT_BYTES: Final = 1024 * 1024
_KINDS: Final = {
    "created": "EVENT_TYPE_CREATE",
    "changed": "EVENT_TYPE_WRITE",
    "removed": "EVENT_TYPE_REMOVE",
    "attributes": "EVENT_TYPE_CHMOD",
}


async def watch_dir(call: Call, body: JsonObject) -> AsyncIterator[bytes]:
    """Send the changes of a directory as they happen, until the client goes or its time is over."""
    process, root, offset = await _begin(call, body)
    try:
        yield connect.encode({"start": {}})
        rest = b""
        while True:
            try:
                chunk = await process.read(offset, timeout_s=call.wait_s(call.keepalive_s))
            except TimeoutError:
                call.check_deadline()
                yield connect.encode({"keepalive": {}})
                continue
            if chunk is None:
                return
            if chunk.lost_bytes:
                raise _lost(chunk.lost_bytes)
            offset = chunk.end
            *lines, rest = (rest + chunk.data).split(b"\n")
            events = [each for line in lines for each in read_events(line, root)]
            if body.get("includeEntry") is True:
                await _add_entries(call, root, events)
            if events:
                yield b"".join(connect.encode({"filesystem": each}) for each in events)
    finally:
        await process.kill()


async def create_watcher(call: Call, body: JsonObject) -> JsonObject:
    """Begin to watch a directory; `get_events` tells what has happened."""
    process, root, offset = await _begin(call, body)
    await _note(call, process.id, offset, body.get("includeEntry") is True, root)
    return {"watcherId": process.id}


async def get_events(call: Call, body: JsonObject) -> JsonObject:
    """What has happened since the last call."""
    process, offset, with_entries, root = await _watcher(call, body)
    there = max((each.output_bytes for each in await call.box.processes() if each.id == process.id), default=0)
    data = b""
    while offset + len(data) < there and len(data) < _MAX_EVENT_BYTES:
        chunk = await process.read(offset + len(data))
        if chunk is None:
            break
        if chunk.lost_bytes:
            await _note(call, process.id, chunk.offset, with_entries, root)
            raise _lost(chunk.lost_bytes)
        data += chunk.data
    whole = data[: data.rfind(b"\n") + 1]
    if whole:
        await _note(call, process.id, offset + len(whole), with_entries, root)
    events = [each for line in whole.splitlines() for each in read_events(line, root)]
    if with_entries:
        await _add_entries(call, root, events)
    return {"events": events}


async def remove_watcher(call: Call, body: JsonObject) -> JsonObject:
    """Stop watching."""
    process, *_ = await _watcher(call, body)
    await process.kill()
    await call.box.set_labels(_without(call, process.id))
    return {}


def read_events(line: bytes, root: str) -> list[JsonObject]:
    """The events of a line of a watch, with names relative to `root`. Raises RpcError if events were lost."""
    event: dict[str, Any] = json.loads(line)
    kind, path = event["kind"], event["path"]
    if kind == "overflow":
        raise RpcError("data_loss", "more has changed than could be recorded; look at the directory again")
    name = _relative(path, root)
    if kind == "moved":
        return [
            {"name": _relative(event["moved_from"], root), "type": "EVENT_TYPE_RENAME"},
            {"name": name, "type": "EVENT_TYPE_CREATE"},
        ]
    return [{"name": name, "type": _KINDS[kind]}] if kind in _KINDS else []


def _relative(path: str, root: str) -> str:
    name = path.removeprefix(root.rstrip("/")).lstrip("/")
    return name.encode("utf-8", "replace").decode()


async def _begin(call: Call, body: JsonObject) -> tuple[Process, str, int]:
    path = body.get("path", "")
    if not isinstance(path, str):
        raise InvalidRequest("path must be a text")
    root = await call.path(path)
    process = await call.box.start_watch(root, recursive=body.get("recursive") is True, user=call.user)
    try:
        ready = await process.read(0, timeout_s=_READY_S)
    except TimeoutError:
        await process.kill()
        raise RpcError("deadline_exceeded", "the directory could not be watched in time") from None
    if ready is None:
        raise RpcError("internal", "the watch ended at once")
    return process, root, ready.data.index(b"\n") + 1


async def _watcher(call: Call, body: JsonObject) -> tuple[Process, int, bool, str]:
    watcher = body.get("watcherId")
    note = call.box.lease.labels.get(f"{_OFFSET}{watcher}")
    if not isinstance(watcher, str) or note is None:
        raise RpcError("not_found", f"watcher with id {watcher!r:.40} not found")
    offset, with_entries, root = note.split(" ", 2)
    return call.box.process(watcher), int(offset), with_entries == "True", root


async def _note(call: Call, watcher: str, offset: int, with_entries: bool, root: str) -> None:
    note = f"{offset} {with_entries} {root}"
    await call.box.set_labels({**_without(call, watcher), f"{_OFFSET}{watcher}": note})


def _without(call: Call, watcher: str) -> dict[str, str]:
    return {name: value for name, value in call.box.lease.labels.items() if name != f"{_OFFSET}{watcher}"}


async def _add_entries(call: Call, root: str, events: list[JsonObject]) -> None:
    for event in events:
        if event["type"] in ("EVENT_TYPE_REMOVE", "EVENT_TYPE_RENAME"):
            continue
        with suppress(FileFailed):  # it may be gone already
            event["entry"] = await entry(call, posixpath.join(root, event["name"]))


def _lost(size_bytes: int) -> RpcError:
    return RpcError("data_loss", f"the reader was too slow: {size_bytes} bytes of events are lost")
