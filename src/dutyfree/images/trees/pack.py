"""From a layer's tree to its archive: the one that names it, the same bytes wherever and whenever it is made."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from dutyfree.archive import headers
from dutyfree.archive.entries import OPAQUE_NAME, WHITEOUT_PREFIX
from dutyfree.archive.headers import Header
from dutyfree.archive.limits import DEFAULT_LIMITS, ArchiveLimits
from dutyfree.errors import InvalidRequest, SubstrateFailed
from dutyfree.formatting import quoted
from dutyfree.images.ownership import Ownership
from dutyfree.images.trees.alone import alone
from dutyfree.images.trees.attributes import (
    CAPABILITY,
    belongs_in_layer,
    is_opaque,
    is_whiteout,
    kept_xattrs,
    shown_capability,
)
from dutyfree.images.trees.descent import Descent, Visit, open_file, walk
from dutyfree.images.trees.disk import disk_errors
from dutyfree.images.trees.holes import stretches
from dutyfree.images.trees.links import FirstNames

_PIECE_BYTES: Final = 256 * 1024
_END: Final = bytes(2 * headers.BLOCK_BYTES)
_ZEROS: Final = bytes(_PIECE_BYTES)


def pack(
    tree: Path,
    out: BinaryIO | None,
    ownership: Ownership,
    on_bytes: Callable[[int], None] | None = None,
    limits: ArchiveLimits = DEFAULT_LIMITS,
) -> str:
    """Write the OCI layer archive of a tree, uncompressed, to `out`; returns its digest, `sha256:...`.

    Without `out` only the digest is made. `on_bytes` hears of every piece. Sockets are left out, and device nodes below
    /dev. Raises InvalidRequest for what no layer can hold or what is past the limits, CapacityError, and
    SubstrateFailed, also for a tree that changes meanwhile; what was written until then is of no use.
    """
    doing = f"cannot pack the layer in {str(tree)!r}"
    with disk_errors(doing), alone([tree], on_bytes), Descent.at(tree) as descent:
        packing = _Packing(descent, _Sink(out, on_bytes), ownership, limits)
        return packing.run()


class _Sink:
    """Gathers small pieces; counts, digests and passes on."""

    def __init__(self, out: BinaryIO | None, on_bytes: Callable[[int], None] | None) -> None:
        self._out = out
        self._on_bytes = on_bytes
        self._digest = hashlib.sha256()
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0

    def write(self, data: bytes) -> None:
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= _PIECE_BYTES:
            self._flush()

    def finish(self) -> str:
        self._flush()
        return f"sha256:{self._digest.hexdigest()}"

    def _flush(self) -> None:
        data = b"".join(self._gathered)
        self._gathered.clear()
        self._gathered_bytes = 0
        self._digest.update(data)
        if self._out is not None:
            self._out.write(data)
        if self._on_bytes is not None and data:
            self._on_bytes(len(data))


class _Packing:
    def __init__(self, descent: Descent, sink: _Sink, ownership: Ownership, limits: ArchiveLimits) -> None:
        self._descent = descent
        self._sink = sink
        self._ownership = ownership
        self._limits = limits
        self._left_bytes = limits.bytes
        self._left_entries = limits.entries
        self._first_names = FirstNames(limits.remembered_bytes)

    def run(self) -> str:
        for visit in walk(self._descent):
            if not visit.leaving and belongs_in_layer(visit.path, visit.info):
                self._left_entries -= 1
                if self._left_entries < 0:
                    raise _too_much(f"a layer of more than {self._limits.entries} entries", visit)
                self._add(visit)
        self._sink.write(_END)
        return self._sink.finish()

    def _add(self, visit: Visit) -> None:
        mode = visit.info.st_mode
        if is_whiteout(visit.info):
            self._write(visit, Header(_beside(visit, WHITEOUT_PREFIX + visit.name), headers.FILE))
        elif visit.name.startswith(WHITEOUT_PREFIX):
            hint = "names that begin with '.wh.' mean deletions in images: remove or rename it"
            raise InvalidRequest(f"{quoted(visit.path)} cannot be part of a layer", hint=hint)
        elif stat.S_ISDIR(mode):
            self._add_directory(visit)
        elif stat.S_ISREG(mode):
            self._add_file(visit)
        elif stat.S_ISLNK(mode):
            target = os.readlink(visit.name, dir_fd=self._descent.fd)
            self._write(visit, self._header(visit, headers.SYMLINK, target=target))
        elif stat.S_ISFIFO(mode):
            self._write(visit, self._header(visit, headers.FIFO))

    def _add_directory(self, visit: Visit) -> None:
        fd = self._descent.fd
        name = visit.path + b"/" if visit.path else b"./"
        self._write(visit, self._header(visit, headers.DIRECTORY, name=name, xattrs=self._xattrs(fd)))
        if is_opaque(fd, self._ownership):
            name = visit.path + b"/" + OPAQUE_NAME if visit.path else OPAQUE_NAME
            self._write(visit, Header(name, headers.FILE))

    def _add_file(self, visit: Visit) -> None:
        identity = (visit.info.st_dev, visit.info.st_ino)
        first = self._first_names.find(identity)
        if first is not None:
            self._write(visit, self._header(visit, headers.HARD_LINK, target=first))
            return
        if visit.info.st_nlink > 1 and not self._first_names.remember(identity, visit.path):
            raise _too_much("a layer of too many files with several names", visit)
        fd = open_file(visit, self._descent)
        try:
            size = visit.info.st_size
            xattrs = self._xattrs(fd)
            self._write(visit, self._header(visit, headers.FILE, size_bytes=size, xattrs=xattrs))
            self._spend(visit, size + len(headers.padding(size)))
            at = 0
            for start, end in stretches(fd, visit.info):
                self._write_zeros(start - at)
                self._write_data(visit, fd, start, end)
                at = end
            if at < size and os.fstat(fd).st_size < size:
                raise _shorter(visit)
            self._write_zeros(size - at)
            self._sink.write(headers.padding(size))
        finally:
            os.close(fd)

    def _write_data(self, visit: Visit, fd: int, start: int, end: int) -> None:
        while start < end:
            data = os.pread(fd, min(end - start, _PIECE_BYTES), start)
            if not data:
                raise _shorter(visit)
            self._sink.write(data)
            start += len(data)

    def _write_zeros(self, count: int) -> None:
        """A hole, which is not read: that would fill the machine's page cache with zeros."""
        while count:
            piece = _ZEROS[: min(count, _PIECE_BYTES)]
            self._sink.write(piece)
            count -= len(piece)

    def _write(self, visit: Visit, header: Header) -> None:
        if len(header.name) > self._limits.path_bytes:
            hint = "nobody could unpack it: remove it, or move it up"
            raise _too_much(f"a path of more than {self._limits.path_bytes} bytes", visit, hint)
        data = header.encoded()
        self._spend(visit, len(data))
        self._sink.write(data)

    def _spend(self, visit: Visit, size_bytes: int) -> None:
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise _too_much(f"a layer of more than {self._limits.bytes} bytes", visit)

    def _header(
        self,
        visit: Visit,
        kind: bytes,
        *,
        name: bytes | None = None,
        size_bytes: int = 0,
        target: bytes = b"",
        xattrs: dict[str, bytes] | None = None,
    ) -> Header:
        info = visit.info
        return Header(
            name=visit.path if name is None else name,
            kind=kind,
            mode=0o777 if kind == headers.SYMLINK else stat.S_IMODE(info.st_mode),
            uid=self._ownership.shown(info.st_uid),
            gid=self._ownership.shown(info.st_gid),
            size_bytes=size_bytes,
            mtime_ns=info.st_mtime_ns,
            target=target,
            xattrs=xattrs or {},
        )

    def _xattrs(self, fd: int) -> dict[str, bytes]:
        kept = kept_xattrs(fd, self._ownership)
        if CAPABILITY in kept:
            kept[CAPABILITY] = shown_capability(kept[CAPABILITY], self._ownership)
        return kept


def _shorter(visit: Visit) -> SubstrateFailed:
    return SubstrateFailed(f"{quoted(visit.path)} became shorter while it was read")


def _too_much(what: str, visit: Visit, hint: str | None = None) -> InvalidRequest:
    return InvalidRequest(f"{what}, at {quoted(visit.path)}", hint=hint)


def _beside(visit: Visit, name: bytes) -> bytes:
    return visit.path[: len(visit.path) - len(visit.name)] + name
