"""Fuzzes everything that reads a guest's bytes on the host: frames, messages and file records.

    python tests/fuzz/fuzz_python_codec.py -max_total_time=120 [CORPUS...]

Nothing but GuestMisbehaved may come out, whatever goes in; and where the stream is cut must make no difference.
Needs `atheris` (the extra `fuzz`); without it the exit code is 2.
"""

from __future__ import annotations

import sys
from contextlib import suppress

try:
    import atheris
except ImportError:
    print("fuzz_python_codec: atheris is not installed\nhint: pip install 'dutyfree[fuzz]'", file=sys.stderr)
    sys.exit(2)

with atheris.instrument_imports():
    from dutyfree.errors import GuestMisbehaved
    from dutyfree.wire.frames import FROM_GUEST, FROM_HOST, FrameDecoder
    from dutyfree.wire.messages import (
        SOCKET_WINDOW_BYTES,
        GuestMessage,
        HostMessage,
        InputCredit,
        decode_guest,
        decode_host,
    )
    from dutyfree.wire.records import decode_ports, decode_records

Outcome = tuple[list[GuestMessage | HostMessage], bool]


def decoded(data: bytes, from_guest: bool, piece_bytes: int) -> Outcome:
    """The messages before the first misbehaviour, and whether there was one."""
    decoder = FrameDecoder(FROM_GUEST if from_guest else FROM_HOST)
    decode = decode_guest if from_guest else decode_host
    messages: list[GuestMessage | HostMessage] = []
    try:
        for at in range(0, len(data), piece_bytes):
            messages += map(decode, decoder.feed(data[at : at + piece_bytes]))
    except GuestMisbehaved:
        return messages, True
    return messages, False


def one_input(data: bytes) -> None:
    """The first byte chooses what is fuzzed, the second how the stream is cut."""
    if len(data) < 2:
        return
    what, cut, rest = data[0] % 3, data[1] + 1, data[2:]
    if what == 2:
        for decode in (decode_records, decode_ports):
            with suppress(GuestMisbehaved):
                decode(rest)
        return
    whole, whole_broke = decoded(rest, what == 0, len(rest) or 1)
    pieces, pieces_broke = decoded(rest, what == 0, cut)
    if any(isinstance(each, InputCredit) and not 1 <= each.size_bytes <= SOCKET_WINDOW_BYTES for each in whole):
        raise AssertionError("a guest gave credit that it cannot give")
    if whole_broke != pieces_broke or (not whole_broke and whole != pieces):
        raise AssertionError("the same bytes, cut differently, gave something else")


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
