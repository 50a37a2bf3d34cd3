"""Records as the guest's applets send them: directory entries of `list` and `stat`, and listening ports."""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

from dutyfree.errors import GuestMisbehaved
from dutyfree.model import FileInfo, FileKind, ListeningPort
from dutyfree.model.port import MAX_PORT
from dutyfree.wire.fields import Fields, decode_text

_LENGTH: Final = struct.Struct("<I")
_KINDS: Final = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.DIRECTORY, stat.S_IFLNK: FileKind.SYMLINK}
_MAX_NAME_BYTES: Final = 4096


def decode_records(data: bytes) -> list[FileInfo]:
    """Every entry of an applet's output. Raises GuestMisbehaved for anything but whole records."""
    return [_entry(fields) for fields in _records(data)]


def decode_ports(data: bytes) -> list[ListeningPort]:
    """Every port of the `ports` applet's output. Raises GuestMisbehaved for anything but whole records."""
    return [_port(fields) for fields in _records(data)]


def _records(data: bytes) -> Iterator[Fields]:
    at, size = 0, len(data)
    while at < size:
        if size - at < _LENGTH.size:
            raise GuestMisbehaved("a record ended inside its length")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length > size - at:
            raise GuestMisbehaved(f"a record claims {length} bytes where {size - at} are left")
        yield Fields(data[at : at + length])
        at += length


def _port(fields: Fields) -> ListeningPort:
    port = fields.number(2)
    try:
        address = str(ip_address(fields.blob(1).decode("ascii")))
    except ValueError:
        raise GuestMisbehaved("a port record with an address that is none") from None
    if not 1 <= port <= MAX_PORT:
        raise GuestMisbehaved(f"a port record with port {port}")
    return ListeningPort(address, port)


def _entry(fields: Fields) -> FileInfo:
    name, target = fields.blob(1), fields.blob(8, b"")
    if not 0 < len(name) <= _MAX_NAME_BYTES or b"\0" in name or len(target) > _MAX_NAME_BYTES:
        raise GuestMisbehaved("a file record with a name that no file can have")
    mode = fields.number(3)
    if mode > 0o7777:
        raise GuestMisbehaved(f"a file record with permission bits {mode:o}")
    kind = _KINDS.get(fields.number(2), FileKind.OTHER)
    mtime_ns = fields.number(5)
    return FileInfo(
        name=decode_text(name),
        kind=kind,
        mode=mode,
        size_bytes=fields.number(4),
        mtime_ns=mtime_ns if mtime_ns < 2**63 else mtime_ns - 2**64,
        uid=fields.number(6),
        gid=fields.number(7),
        link_target=decode_text(target) if kind is FileKind.SYMLINK else None,
    )
