"""E2B's `filesystem.Filesystem` calls, over the box's files."""

from __future__ import annotations

import asyncio
import errno
import posixpath
from collections.abc import Mapping
from typing import Final

from dutyfree.errors import FileFailed, InvalidRequest
from dutyfree.model import FileInfo
from dutyfree.model.file import FileKind
from dutyfree.server.e2b import forms
from dutyfree.server.e2b.connect import JsonObject
from dutyfree.server.e2b.daemon import Call
from dutyfree.server.e2b.errors import RpcError

MAX_ENTRIES: Final = 10_000
"""The most entries of one list; more are an error, not a part of the list."""
MAX_DEPTH: Final = 64
_MAX_LINKS: Final = 8
_AT_ONCE: Final = 16

Names = Mapping[str, Mapping[int, str]]


async def stat(call: Call, body: JsonObject) -> JsonObject:
    """What is at a path."""
    path = await _path(call, body, "path")
    return {"entry": await entry(call, path)}


async def make_dir(call: Call, body: JsonObject) -> JsonObject:
    """Make a directory and those above it. Raises `already_exists` where there is one."""
    path = await _path(call, body, "path")
    try:
        await call.files.mkdir(path, parents=False)
    except FileFailed as error:
        if error.errno == errno.EEXIST:
            found = await call.files.stat(path)
            if (
                found.kind is not FileKind.DIRECTORY
                and (await _followed(call, path, found)).kind is not FileKind.DIRECTORY
            ):
                raise InvalidRequest(f"path exists but is no directory: {path}") from None
            raise RpcError("already_exists", f"directory already exists: {path}") from None
        if error.errno != errno.ENOENT:
            raise
        await call.files.mkdir(path, parents=True)
    return {"entry": await entry(call, path)}


async def move(call: Call, body: JsonObject) -> JsonObject:
    """Rename; directories above the new path are made."""
    source, target = await _path(call, body, "source"), await _path(call, body, "destination")
    await call.files.stat(source)
    await call.files.mkdir(posixpath.dirname(target))
    await call.files.move(source, target)
    return {"entry": await entry(call, target)}


async def remove(call: Call, body: JsonObject) -> JsonObject:
    """Remove a file or a tree; one that is not there is fine."""
    path = await _path(call, body, "path")
    if path == "/":
        raise InvalidRequest("the root cannot be removed")
    try:
        await call.files.remove(path, recursive=True)
    except FileFailed as error:
        if error.errno != errno.ENOENT:
            raise
    return {}


async def list_dir(call: Call, body: JsonObject) -> JsonObject:
    """The entries of a directory, down to a depth: each directory before what is in it."""
    path = await _path(call, body, "path")
    depth = body.get("depth") or 1
    if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= MAX_DEPTH:
        raise InvalidRequest(f"depth is {depth!r:.20}; it must be 1 to {MAX_DEPTH}")
    names = (await call.accounts.table(call.box)).names
    found: list[tuple[str, FileInfo]] = []
    await _walk(call, path, depth, found)
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(place: str, info: FileInfo) -> JsonObject:
        if info.kind is not FileKind.SYMLINK:
            return forms.entry(info, place, names)
        async with limit:
            return forms.entry(info, place, names, await _followed(call, place, info))

    return {"entries": await asyncio.gather(*(one(*each) for each in found))}


async def entry(call: Call, path: str) -> JsonObject:
    """The form of what is at a path. Raises FileFailed."""
    info = await call.files.stat(path)
    names = (await call.accounts.table(call.box)).names
    return forms.entry(info, path, names, await _followed(call, path, info))


async def _walk(call: Call, path: str, depth: int, found: list[tuple[str, FileInfo]]) -> None:
    for info in await call.files.list(path):
        place = posixpath.join(path, info.name)
        found.append((place, info))
        if len(found) > MAX_ENTRIES:
            raise RpcError("resource_exhausted", f"more than {MAX_ENTRIES} entries; list a part of it, or less deep")
        if depth > 1 and info.kind is FileKind.DIRECTORY:
            await _walk(call, place, depth - 1, found)


async def _followed(call: Call, path: str, info: FileInfo) -> FileInfo:
    """What a symlink leads to; the link itself where it leads nowhere."""
    found = info
    for _ in range(_MAX_LINKS):
        if found.kind is not FileKind.SYMLINK or not found.link_target:
            return found
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), found.link_target))
        try:
            found = await call.files.stat(path)
        except FileFailed:
            return info
    return info


async def _path(call: Call, body: JsonObject, name: str) -> str:
    path = body.get(name, "")
    if not isinstance(path, str):
        raise InvalidRequest(f"{name} must be a text")
    return await call.path(path)
