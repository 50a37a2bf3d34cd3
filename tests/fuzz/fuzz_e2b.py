"""Fuzzes everything of the E2B face that reads a client's bytes without I/O: envelopes, names, ids, lists, forms.

    python tests/fuzz/fuzz_e2b.py -max_total_time=120 [CORPUS...]

Nothing but InvalidRequest (and HttpError, for what is understood and not kept) may come out, and where a stream is cut
must make no difference. Needs `atheris` (the extra `fuzz`); without it the exit code is 2.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

try:
    import atheris
except ImportError:
    print("fuzz_e2b: atheris is not installed\nhint: pip install 'dutyfree[fuzz]'", file=sys.stderr)
    sys.exit(2)

with atheris.instrument_imports():
    from dutyfree.errors import InvalidRequest
    from dutyfree.model import Capability
    from dutyfree.server.e2b import connect, listing, multipart, routing, snapshots
    from dutyfree.server.e2b.create import read_creation
    from dutyfree.server.e2b.errors import HttpError
    from dutyfree.server.e2b.settings import Settings

SETTINGS = Settings()
ALL = frozenset(Capability)


def envelopes(data: bytes, cut: int) -> None:
    """A stream, whole and in pieces."""

    def fed(piece_bytes: int) -> tuple[list[connect.JsonObject], bool]:
        decoder, seen = connect.Decoder(4096), []
        try:
            for at in range(0, len(data), piece_bytes):
                seen += decoder.feed(data[at : at + piece_bytes])
            decoder.finish()
        except InvalidRequest:
            return seen, False
        return seen, True

    whole, parts = fed(len(data) or 1), fed(cut)
    assert whole[1] == parts[1]
    if whole[1]:
        assert whole == parts


def names(data: bytes, cut: int) -> None:
    """Headers that name a sandbox."""
    value = data[:300]
    for name in (b"host", b"e2b-sandbox-id", b"x-access-token"):
        with suppress(InvalidRequest):
            found = routing.find_target([(name, value), (b"e2b-sandbox-port", b"80")], "d.test")
            assert found is None or routing.check_id(found.sandbox_id)


def bodies(data: bytes, cut: int) -> None:
    """A creation, a list and an id of a snapshot."""
    with suppress(InvalidRequest, HttpError):
        read_creation(connect.load(data), None, SETTINGS, ALL)
    text = data.decode("latin-1")
    for field in ("metadata", "nextToken", "startedAfter", "limit", "state"):
        with suppress(InvalidRequest):
            listing.read_query({field: text})
    with suppress(InvalidRequest):
        snapshots.read_snapshot_id(f"snapshot-{text}")


def forms(data: bytes, cut: int) -> None:
    """A form, in pieces."""

    async def read() -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(data), cut):
                yield data[at : at + cut]

        async for part in multipart.parts(pieces(), "multipart/form-data; boundary=b"):
            async for _ in part.data:
                pass

    with suppress(InvalidRequest):
        asyncio.run(read())


TARGETS = (envelopes, names, bodies, forms)


def one_input(data: bytes) -> None:
    """The first two bytes say what is fuzzed, and where it is cut."""
    if len(data) > 2:
        TARGETS[data[0] % len(TARGETS)](data[2:], data[1] + 1)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
