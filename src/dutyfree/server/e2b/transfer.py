"""Uploads and downloads: `GET` and `POST /files`. Large files go through a temporary file."""

from __future__ import annotations

import errno
import os
import posixpath
import tempfile
import zlib
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dutyfree.errors import FileFailed, InvalidRequest
from dutyfree.model.file import FileKind
from dutyfree.server.e2b.connect import JsonObject
from dutyfree.server.e2b.daemon import Call
from dutyfree.server.e2b.errors import HttpError, not_implemented
from dutyfree.server.e2b.http import Request
from dutyfree.server.e2b.multipart import Part, parts
from dutyfree.server.e2b.settings import Settings
from dutyfree.threads import in_thread

DEFAULT_MODE: Final = 0o644
_CHUNK_BYTES: Final = 256 * 1024
_OCTETS: Final = (b"content-type", b"application/octet-stream")


class Spool:
    """Bytes of unknown number: in memory up to a size, then in a temporary file, which the end of the block removes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._memory = bytearray()
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._descriptor = -1
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        if self._directory is not None:
            self._directory.cleanup()

    async def put(self, data: bytes) -> None:
        """Add to the end. Raises HttpError 413 past the limit, 507 when the server's disk is full."""
        self.size_bytes += len(data)
        if self.size_bytes > self._settings.max_upload_bytes:
            raise HttpError(413, f"the file is longer than {self._settings.max_upload_bytes} bytes")
        if self._descriptor < 0 and self.size_bytes <= self._settings.memory_file_bytes:
            self._memory += data
            return
        try:
            await in_thread(self._spill, data)
        except OSError as error:
            raise HttpError(507, f"the server cannot keep the upload: {error.strerror}") from error

    def _spill(self, data: bytes) -> None:
        if self._descriptor < 0:
            self._directory = tempfile.TemporaryDirectory(prefix="dutyfree-upload-")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(Path(self._directory.name, "file"), flags, 0o600)
            data, self._memory = bytes(self._memory) + data, bytearray()
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]

    async def store(self, call: Call, path: str) -> None:
        """Write it into the sandbox; a file that is there keeps its mode. Raises FileFailed."""
        mode = DEFAULT_MODE
        with suppress(FileFailed):
            found = await call.files.stat(path)
            if found.kind is FileKind.DIRECTORY:
                raise InvalidRequest(f"path is a directory: {path}")
            if found.kind is FileKind.FILE:
                mode = found.mode
        if self._directory is None:
            await call.files.write(path, bytes(self._memory), mode=mode)
            return
        os.fchmod(self._descriptor, mode & 0o777)
        self._close()
        await call.files.mkdir(posixpath.dirname(path))
        await call.files.upload(Path(self._directory.name, "file"), path)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -2


async def upload(request: Request, call: Call, path: str | None) -> None:
    """Store what a request brings: a single file as its body, or any number of files in a form."""
    if any(name.startswith(b"x-metadata-") for name, _ in request.headers):
        raise not_implemented("metadata of files is not kept by this server")
    content_type = request.header(b"content-type") or ""
    body = _decoded(request, call.settings)
    stored: list[JsonObject] = []
    if content_type.partition(";")[0].strip().lower() == "multipart/form-data":
        async for part in parts(body, content_type):
            stored.append(await _store_part(call, part, path))
    else:
        if not path:
            raise InvalidRequest("path is missing")
        place = await call.path(path)
        with Spool(call.settings) as spool:
            async for data in body:
                await spool.put(data)
            await spool.store(call, place)
        stored.append(_stored(place))
    await request.answer_json(stored)


async def _store_part(call: Call, part: Part, path: str | None) -> JsonObject:
    name = path or part.filename
    if not name:
        raise InvalidRequest("a file without a path")
    place = await call.path(name)
    with Spool(call.settings) as spool:
        async for data in part.data:
            await spool.put(data)
        await spool.store(call, place)
    return _stored(place)


def _stored(path: str) -> JsonObject:
    return {"name": posixpath.basename(path), "path": path, "type": "file"}


async def _decoded(request: Request, settings: Settings) -> AsyncIterator[bytes]:
    """The body, unpacked if it is compressed; the limit holds for what comes out, too."""
    encoding = (request.header(b"content-encoding") or "identity").strip().lower()
    chunks = request.chunks(settings.max_upload_bytes + settings.max_json_bytes)
    if encoding == "identity":
        async for data in chunks:
            yield data
        return
    if encoding != "gzip":
        raise HttpError(415, f"Content-Encoding {encoding[:40]!r} is not supported; gzip is")
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        async for data in chunks:
            while data:
                yield unpacker.decompress(data, _CHUNK_BYTES)
                data = unpacker.unconsumed_tail
        yield unpacker.flush()
    except zlib.error:
        raise InvalidRequest("the body is no gzip") from None
    if not unpacker.eof or unpacker.unused_data:
        raise InvalidRequest("the body is no whole gzip")


async def download(request: Request, call: Call, path: str | None) -> None:
    """Send a file."""
    if not path:
        raise InvalidRequest("path is missing")
    place = await call.path(path)
    settings = call.settings
    try:
        content = await call.files.read(place, limit_bytes=settings.memory_file_bytes)
    except FileFailed as error:
        if error.errno == errno.EISDIR:
            raise InvalidRequest(f"path is a directory: {place}") from None
        if error.errno != errno.EFBIG:
            raise
    else:
        await request.answer(200, content, [_OCTETS])
        return
    with tempfile.TemporaryDirectory(prefix="dutyfree-download-") as directory:
        copy = Path(directory, "file")
        await call.files.download(place, copy, limit_bytes=settings.max_download_bytes)
        if not await in_thread(copy.is_file):
            raise InvalidRequest(f"path is no file: {place}")
        async with request.while_connected():
            await _send_file(request, copy)


async def _send_file(request: Request, copy: Path) -> None:
    with copy.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        await request.start(200, [_OCTETS, (b"content-length", str(size).encode())])
        while data := await in_thread(file.read, _CHUNK_BYTES):
            await request.write(data)
    await request.write(b"", more=False)
