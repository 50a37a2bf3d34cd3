"""Changes of files as the guest's `watch` applet sends them: hostile input, checked and bounded."""

from __future__ import annotations

import struct
from typing import Final

from dutyfree.errors import GuestMisbehaved
from dutyfree.model.file_event import FileEvent, FileEventKind
from dutyfree.wire.fields import Fields, decode_text

_LENGTH: Final = struct.Struct("<I")
_MAX_RECORD_BYTES: Final = 16 * 1024
_MAX_PATH_BYTES: Final = 4096
_READY: Final = 7
_KINDS: Final = {
    1: FileEventKind.CREATED,
    2: FileEventKind.CHANGED,
    3: FileEventKind.REMOVED,
    4: FileEventKind.MOVED,
    5: FileEventKind.ATTRIBUTES,
    6: FileEventKind.OVERFLOW,
}


class WatchDecoder:
    """Takes the applet's output in any pieces. `root` is the directory that is watched."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        self._rest = b""
        self.ready = False
        """Whether the applet has said that it watches."""

    def feed(self, data: bytes) -> list[FileEvent]:
        """The events that are complete now. Raises GuestMisbehaved for anything else than records."""
        data = self._rest + data
        events, at = [], 0
        while len(data) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, at)
            if length > _MAX_RECORD_BYTES:
                raise GuestMisbehaved(f"a record of a watch claims {length} bytes")
            if len(data) - at - _LENGTH.size < length:
                break
            at += _LENGTH.size
            event = self._event(Fields(data[at : at + length]))
            if event is not None:
                events.append(event)
            at += length
        self._rest = data[at:]
        return events

    def _event(self, fields: Fields) -> FileEvent | None:
        number = fields.number(1)
        if number == _READY and not self.ready:
            self.ready = True
            return None
        kind = _KINDS.get(number)
        if kind is FileEventKind.OVERFLOW:  # also before it is ready: there may be too much from the beginning
            return FileEvent(kind, self._root or "/")
        if kind is None or not self.ready:
            raise GuestMisbehaved(f"a record {number} that a watch does not send here")
        former = self._path(fields, 4) if kind is FileEventKind.MOVED else None
        is_directory = fields.number(3)
        if is_directory > 1:
            raise GuestMisbehaved("a record of a watch that is neither of a directory nor of another file")
        return FileEvent(kind, self._path(fields, 2), bool(is_directory), former)

    def _path(self, fields: Fields, tag: int) -> str:
        name = fields.blob(tag)
        parts = name.split(b"/")
        if len(name) > _MAX_PATH_BYTES or b"\0" in name or any(part in (b"", b".", b"..") for part in parts):
            raise GuestMisbehaved("a record of a watch with a path that cannot be in it")
        return f"{self._root}/{decode_text(name)}"
