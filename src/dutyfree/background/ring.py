"""A ring that keeps the end of a process's output. Pure: no I/O, no clock."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final, Literal

from dutyfree.model.process import OutputChunk

BYTES_PER_SWITCH: Final = 16
"""A ring keeps one switch between the streams for so many bytes that it may hold."""
LEAST_SWITCHES: Final = 16
ALWAYS_KEPT_BYTES: Final = 4096
"""What a ring may hold although the budget is spent."""
_REMOVED_AT_ONCE: Final = 1024

_NAMES: Final[tuple[Literal["stdout", "stderr"], ...]] = ("stdout", "stderr")


class Budget:
    """Memory that several rings share."""

    __slots__ = ("free_bytes",)

    def __init__(self, size_bytes: int) -> None:
        self.free_bytes = size_bytes

    def take(self, wanted_bytes: int) -> int:
        """Take up to `wanted_bytes`; returns how much it is."""
        taken = min(wanted_bytes, self.free_bytes)
        self.free_bytes -= taken
        return taken

    def give_back(self, size_bytes: int) -> None:
        """Return what was taken."""
        self.free_bytes += size_bytes


class Ring:
    """The last bytes of two streams in their common order, by offset.

    The byte at offset `o` is at `o % capacity`, so that nothing moves once the ring is full. Until then it is only as
    large as what was put in. Of the streams it holds the offsets at which one takes over from the other. Their number
    is limited, too, so that output of single bytes, now on one stream and now on the other, costs no more than text.
    """

    __slots__ = (
        *("_budget", "_capacity_bytes", "_data", "_first", "_max_switches", "_past", "_switches", "_taken_bytes"),
        *("end", "start"),
    )

    def __init__(self, keep_bytes: int, budget: Budget) -> None:
        self._capacity_bytes = keep_bytes
        self._budget = budget
        self._taken_bytes = 0
        self._data = bytearray()
        self._first = 0
        """The stream before the first of `_switches`; at each of them the other one takes over."""
        self._switches = array("Q")
        self._past = 0
        """How many of `_switches` lie at or before `start`. They are removed many at a time."""
        self._max_switches = max(LEAST_SWITCHES, keep_bytes // BYTES_PER_SWITCH)
        self.start = 0
        """The offset of the first byte that is kept."""
        self.end = 0
        """The offset of the next byte: how many were put in."""

    @property
    def capacity_bytes(self) -> int:
        """How much it can keep; less once the budget is spent."""
        return self._capacity_bytes

    def put(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        """Add output to the end; the oldest output makes room."""
        if not data:
            return
        self._switch_to(_NAMES.index(stream))
        self._grow(len(data))
        self.end += len(data)
        kept = data[-self._capacity_bytes :]
        position = (self.end - len(kept)) % self._capacity_bytes
        head = min(len(kept), self._capacity_bytes - position)
        self._data[position : position + head] = kept[:head]
        self._data[: len(kept) - head] = kept[head:]
        self._drop(self.end - self._capacity_bytes)
        if len(self._switches) - self._past > self._max_switches:
            self._drop(self._switches[-self._max_switches - 1])

    def read(self, offset: int, limit_bytes: int) -> OutputChunk | None:
        """What is kept from `offset` on, of one stream and up to the limit; None if there is nothing yet."""
        begin = max(offset, self.start)
        if begin >= self.end:
            return None
        switch = bisect_right(self._switches, begin, self._past)
        until = self._switches[switch] if switch < len(self._switches) else self.end
        size = min(until - begin, limit_bytes)
        position = begin % self._capacity_bytes
        data = bytes(self._data[position : position + size])
        data += self._data[: size - len(data)]
        return OutputChunk(_NAMES[(self._first + switch) % 2], data, begin, begin - offset)

    def clear(self) -> None:
        """Drop all output, and give its memory back."""
        self._budget.give_back(self._taken_bytes)
        self._taken_bytes = 0
        self._data = bytearray()
        self._switches = array("Q")
        self._past = 0
        self.start = self.end

    def _switch_to(self, stream: int) -> None:
        if self.start == self.end:
            self._first, self._past = stream, 0
            self._switches = array("Q")
        elif (self._first + len(self._switches)) % 2 != stream:
            self._switches.append(self.end)

    def _grow(self, more_bytes: int) -> None:
        """Make room for `more_bytes` while the ring is not full; without budget, it stays as small as it is."""
        size = len(self._data)
        wanted = min(size + more_bytes, self._capacity_bytes)
        if wanted <= size:
            return
        granted = self._budget.take(wanted - size)
        self._taken_bytes += granted
        if granted < wanted - size:
            self._capacity_bytes = wanted = max(size + granted, min(ALWAYS_KEPT_BYTES, self._capacity_bytes))
        self._data.extend(bytes(wanted - size))

    def _drop(self, until: int) -> None:
        """Forget what is before the offset `until`."""
        if until <= self.start:
            return
        self.start = until
        self._past = past = bisect_right(self._switches, until, self._past)
        if past >= _REMOVED_AT_ONCE and past * 2 > len(self._switches):
            del self._switches[:past]
            self._first = (self._first + past) % 2
            self._past = 0
