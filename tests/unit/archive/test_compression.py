"""Compressed archives: recognised, undone within bounds, and refused when they are broken or bombs."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
from collections.abc import Callable
from typing import BinaryIO

import pytest

from dutyfree.archive.compression import decompressed
from dutyfree.errors import ArchiveRefused

LIMIT_BYTES = 1024**3
TEXT = b"".join(b"line %d of a text that repeats itself\n" % number for number in range(40_000))


def in_two(compress: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda data: compress(data[:700]) + compress(data[700:])


WAYS = {
    "plain": bytes,
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
    "two gzips": in_two(gzip.compress),
    "two xzs": in_two(lzma.compress),
    "two bzip2s": in_two(bz2.compress),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("data", [b"", b"x", b"BZh9 is a name", TEXT, random.Random(1).randbytes(700_000)], ids=len)
def test_compression_is_recognised_and_bounded(way: str, data: bytes) -> None:
    packed = WAYS[way](data)
    assert decompressed(io.BytesIO(packed), LIMIT_BYTES).read() == data
    if way != "plain":
        assert decompressed(io.BytesIO(packed + bytes(1000)), LIMIT_BYTES).read() == data
    if data:
        with pytest.raises(ArchiveRefused, match="larger"):
            decompressed(io.BytesIO(packed), len(data) - 1).read()


@pytest.mark.parametrize("way", [way for way in WAYS if way != "plain"])
def test_broken_compression_is_refused(way: str) -> None:
    packed = WAYS[way](TEXT)
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 0xFF
    for broken in (packed[: len(packed) // 2], packed[:-3], packed + b"garbage", bytes(damaged)):
        with pytest.raises(ArchiveRefused):
            decompressed(io.BytesIO(broken), LIMIT_BYTES).read()


def test_zstd_is_refused_with_a_way_out() -> None:
    with pytest.raises(ArchiveRefused) as caught:
        decompressed(io.BytesIO(b"\x28\xb5\x2f\xfd" + bytes(100)), LIMIT_BYTES)
    assert "zstd" in (caught.value.hint or "")


class Repeating(io.RawIOBase):
    """One part, again and again."""

    def __init__(self, part: bytes) -> None:
        self._part = part
        self.taken_bytes = 0

    def read(self, size: int = -1, /) -> bytes:
        whole = self._part * (size // len(self._part) + 1)
        at = self.taken_bytes % len(self._part)
        data = (whole + self._part)[at : at + size]
        self.taken_bytes += len(data)
        return data


def exhaust(stream: BinaryIO) -> None:
    while stream.read(1 << 20):
        pass


def test_bombs_are_stopped_while_they_go_off() -> None:
    bomb = Repeating(bz2.compress(bytes(20_000_000)))
    stream = decompressed(bomb, 10**12)  # type: ignore[arg-type]
    with pytest.raises(ArchiveRefused, match="fold"):
        exhaust(stream)
    assert bomb.taken_bytes < 2_000_000
