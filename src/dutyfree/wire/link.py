"""The byte stream under a channel: two descriptors (the same one twice for a socket) on an asyncio loop.

The loop's own transports are not used: registering a descriptor is synchronous, so that a sandbox is ready without a
turn of the loop, and a read or write costs one system call.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Callable
from typing import Final

from dutyfree import fork_safety

READ_BYTES: Final = 96 * 1024
"""Enough for the largest OUTPUT frame, and below the size from which each allocation needs an mmap (10 us)."""
FLUSH_BYTES: Final = 256 * 1024
CONGESTED_BYTES: Final = 1024 * 1024


class Link:
    """Owns its descriptors and closes them. To be used from its loop's thread only."""

    def __init__(
        self,
        read_fd: int,
        write_fd: int,
        *,
        on_bytes: Callable[[bytes], None],
        on_end: Callable[[str], None],
        on_drained: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._read_fd, self._write_fd = read_fd, write_fd
        self._on_bytes, self._on_end, self._on_drained = on_bytes, on_end, on_drained
        self._backlog = bytearray()
        self._open = True
        self._writable = True
        self._paused = False
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        fork_safety.keep_from_children(*{read_fd, write_fd})
        self._loop.add_reader(read_fd, self._read)

    @property
    def congested(self) -> bool:
        """Whether so much is waiting to be sent that the caller should send no more until `on_drained`."""
        return len(self._backlog) > CONGESTED_BYTES

    def write(self, data: bytes) -> None:
        """Send `data`, now or when the other side has room. A closed link drops it."""
        if not self._open or not self._writable:
            return
        if self._backlog or self._paused:
            self._backlog += data
            return
        sent = self._send(data)
        if sent < len(data) and self._writable:
            self._backlog += memoryview(data)[sent:]
            self._loop.add_writer(self._write_fd, self._flush)

    def write_parts(self, head: bytes, body: memoryview) -> None:
        """As `write` of the two after each other, without a copy of what can be sent at once."""
        if not self._open or not self._writable:
            return
        if self._backlog or self._paused:
            self._backlog += head
            self._backlog += body
            return
        sent = self._send(head, body)
        if sent < len(head) + len(body) and self._writable:
            self._backlog += head[sent:]
            self._backlog += body[max(0, sent - len(head)) :]
            self._loop.add_writer(self._write_fd, self._flush)

    @property
    def untaken_bytes(self) -> int:
        """Bytes that the other side has not read, as the kernel counts them (whole blocks); 0 once closed."""
        if not self._open:
            return 0
        return int(struct.unpack("i", fcntl.ioctl(self._write_fd, termios.TIOCOUTQ, bytes(4)))[0])

    def pause(self) -> None:
        """Neither read nor write until `resume`; data to be written waits. Idempotent."""
        if not self._open or self._paused:
            return
        self._paused = True
        self._loop.remove_reader(self._read_fd)
        self._loop.remove_writer(self._write_fd)

    def resume(self) -> None:
        """Read and write again. Idempotent."""
        if not self._open or not self._paused:
            return
        self._paused = False
        self._loop.add_reader(self._read_fd, self._read)
        if self._backlog:
            self._loop.add_writer(self._write_fd, self._flush)
        if not self._writable:
            self._loop.call_soon(self._read_rest)

    def close(self) -> None:
        """Close the descriptors; no callback is called after this. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._read_fd)
        if self._backlog:
            self._loop.remove_writer(self._write_fd)
            self._backlog.clear()
        for fd in {self._read_fd, self._write_fd}:
            fork_safety.close(fd)
        # They belong to the owner of the link, which has the link: a reference cycle, and work for the collector.
        self._on_bytes = self._on_end = self._on_drained = _ignore

    def _read(self) -> None:
        if not self._open or self._paused:
            return
        try:
            data = os.read(self._read_fd, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._on_end(f"cannot read from the guest: {error.strerror}")
            return
        if data:
            self._on_bytes(data)
        else:
            self._on_end("the guest's end of the stream was closed")

    def _send(self, *parts: bytes | memoryview) -> int:
        try:
            return os.writev(self._write_fd, parts)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            # The guest may have sent a FAULT before it exited: that is still to be read, and says more than this error.
            self._writable = False
            self._loop.call_soon(self._read_rest)
            return 0

    def _read_rest(self) -> None:
        self._read()
        if self._open and not self._paused:
            self._on_end("the guest no longer reads")

    def _flush(self) -> None:
        if self._paused:  # after the loop has scheduled this call
            return
        with memoryview(self._backlog) as waiting:
            sent = self._send(waiting[:FLUSH_BYTES])
        del self._backlog[:sent]
        if not self._writable:
            self._backlog.clear()
        if not self._backlog:
            self._loop.remove_writer(self._write_fd)
            self._on_drained()


def _ignore(*_: object) -> None:
    """Takes the place of the callbacks of a closed link."""
