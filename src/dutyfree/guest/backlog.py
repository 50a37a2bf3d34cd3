"""A queue of output that was not read yet, in little more memory than its own size."""

from __future__ import annotations

from array import array
from typing import Final

_KEPT_RUNS: Final = 4096
"""How many runs may have been taken before their entries are removed."""


class Backlog:
    """A queue of (stream, data). Neighbours of one stream are merged.

    One buffer and one list of lengths, not an object per frame: a guest that sends single bytes, now on one stream and
    now on the other, must not cost the host a hundred times what it sends.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        self._streams = bytearray()
        self._lengths = array("L")
        self._next = 0

    def __len__(self) -> int:
        return len(self._data)

    def put(self, stream: int, data: bytes) -> None:
        """Add to the end."""
        self._data += data
        if self._next < len(self._lengths) and self._streams[-1] == stream:
            self._lengths[-1] += len(data)
        else:
            self._streams.append(stream)
            self._lengths.append(len(data))

    def take(self) -> tuple[int, bytes]:
        """Remove the oldest run of one stream. The backlog must not be empty."""
        stream, length = self._streams[self._next], self._lengths[self._next]
        data = bytes(self._data[:length])
        del self._data[:length]
        self._next += 1
        if not self._data:
            self.clear()
        elif self._next >= _KEPT_RUNS and self._next * 2 > len(self._lengths):
            del self._lengths[: self._next], self._streams[: self._next]
            self._next = 0
        return stream, data

    def clear(self) -> None:
        """Remove everything."""
        self._data.clear()
        self._streams.clear()
        self._lengths = array("L")
        self._next = 0
