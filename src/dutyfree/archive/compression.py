"""Archives as they come: plain or compressed, told apart by their first bytes."""

from __future__ import annotations

import bz2
import io
import lzma
import re
import zlib
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, cast

from dutyfree.errors import ArchiveRefused

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_PIECE_BYTES: Final = 256 * 1024
_XZ_MEMORY_BYTES: Final = 512 * 1024 * 1024
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_MAGIC_BYTES: Final = 10
# No honest archive shrinks that much, but one of zeros may: small ones pass.
_MAX_RATIO: Final = 2000
_ALWAYS_PASSES_BYTES: Final = 256 * 1024 * 1024
_BROKEN: Final = (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError)


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes: ...


class _Gzip:
    """zlib's own object, in the shape of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


_KINDS: Final[tuple[tuple[re.Pattern[bytes], str, Callable[[], _Decompressor]], ...]] = (
    (re.compile(rb"\x1f\x8b\x08"), "gzip", _Gzip),
    (re.compile(rb"\xfd7zXZ\0"), "xz", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)),
    # All of its magic: a plain archive may well begin with a file called BZh.
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), "bzip2", bz2.BZ2Decompressor),
)


def decompressed(stream: BinaryIO, limit_bytes: int) -> BinaryIO:
    """The content of a stream that may be compressed with gzip, xz or bzip2. The stream itself stays the caller's.

    Reading raises ArchiveRefused for what is broken or cut off, past `limit_bytes`, or compressed beyond reason; this
    call itself does for zstd, which needs a program of its own.
    """
    start = _first_bytes(stream)
    if start.startswith(_ZSTD):
        hint = (
            "decompress it first (zstd -d), or pull the image with gzip layers: skopeo copy --dest-compress-format gzip"
        )
        raise ArchiveRefused("the archive is compressed with zstd", hint=hint)
    for magic, kind, make in _KINDS:
        if magic.match(start):
            raw: io.RawIOBase = _Decompressed(stream, start, kind, magic, make, limit_bytes)
            break
    else:
        raw = _Plain(stream, start, limit_bytes)
    return cast("BinaryIO", io.BufferedReader(raw, _PIECE_BYTES))


def _first_bytes(stream: BinaryIO) -> bytes:
    start = b""
    while len(start) < _MAGIC_BYTES and (piece := stream.read(_MAGIC_BYTES - len(start))):
        start += piece
    return start


class _Bounded(io.RawIOBase):
    """Gives pieces on as they are made, and no more than the limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._given_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        data = self._produce(len(view))
        self._given_bytes += len(data)
        if self._given_bytes > self._limit_bytes:
            raise ArchiveRefused(f"the archive is larger than {self._limit_bytes} bytes when decompressed")
        view[: len(data)] = data
        return len(data)

    @abstractmethod
    def _produce(self, most: int) -> bytes:
        """Up to `most` bytes; none at the end."""


class _Plain(_Bounded):
    def __init__(self, stream: BinaryIO, start: bytes, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._stream = stream
        self._start = start

    def _produce(self, most: int) -> bytes:
        if not self._start:
            return self._stream.read(most)
        piece, self._start = self._start[:most], self._start[most:]
        return piece


class _Decompressed(_Bounded):
    def __init__(
        self,
        stream: BinaryIO,
        start: bytes,
        kind: str,
        magic: re.Pattern[bytes],
        make: Callable[[], _Decompressor],
        limit_bytes: int,
    ) -> None:
        super().__init__(limit_bytes)
        self._stream = stream
        self._pending = start
        self._taken_bytes = len(start)
        self._kind = kind
        self._magic = magic
        self._make = make
        self._inner: _Decompressor | None = make()

    def _produce(self, most: int) -> bytes:
        while self._inner is not None:
            data = self._step(self._inner, most)
            if self._inner.eof:
                self._inner = self._following(self._inner.unused_data)
            if data:
                self._check_ratio(len(data))
                return data
        return b""

    def _step(self, inner: _Decompressor, most: int) -> bytes:
        """Feed what is pending; where the decompressor has enough inside, it goes on with that."""
        given, self._pending = self._pending, b""
        try:
            data = inner.decompress(given, most)
        except _BROKEN as error:
            raise ArchiveRefused(f"the archive's {self._kind} compression is broken: {error}") from error
        if not data and not inner.eof:
            self._pending = self._read()
            if not self._pending:
                raise ArchiveRefused(f"the archive's {self._kind} compression is cut off")
        return data

    def _following(self, rest: bytes) -> _Decompressor | None:
        """Compressed files may be put one behind another, and padded with zeros."""
        rest = rest.lstrip(b"\0")
        while len(rest) < _MAGIC_BYTES and (piece := self._read()):
            rest = (rest + piece).lstrip(b"\0")
        if not rest:
            return None
        if not self._magic.match(rest):
            raise ArchiveRefused(f"the archive has data behind the end of its {self._kind} compression")
        self._pending = rest
        return self._make()

    def _check_ratio(self, made_bytes: int) -> None:
        made = self._given_bytes + made_bytes
        if made > max(_ALWAYS_PASSES_BYTES, self._taken_bytes * _MAX_RATIO):
            raise ArchiveRefused(f"the archive is compressed more than {_MAX_RATIO}-fold, as only bombs are")

    def _read(self) -> bytes:
        data = self._stream.read(_PIECE_BYTES)
        self._taken_bytes += len(data)
        return data
