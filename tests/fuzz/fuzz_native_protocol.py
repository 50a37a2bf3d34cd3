"""Fuzzes the native protocol: what a node reads of its clients, and what a client reads of its node.

    python tests/fuzz/fuzz_native_protocol.py -max_total_time=120 [CORPUS...]

Nothing but GuestMisbehaved may come out of a stream, and nothing but InvalidRequest of a document's forms; where the
stream is cut must make no difference, and each side holds no more than one frame.
Needs `atheris` (the extra `fuzz`); without it the exit code is 2.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

try:
    import atheris
except ImportError:
    print("fuzz_native_protocol: atheris is not installed\nhint: pip install 'dutyfree[fuzz]'", file=sys.stderr)
    sys.exit(2)

with atheris.instrument_imports():
    from dutyfree.codec import ERROR
    from dutyfree.codec.document import loads
    from dutyfree.errors import GuestMisbehaved, InvalidRequest
    from dutyfree.protocol.forms import BOX_FACTS, BOX_STATE, EGRESS, EGRESS_RECORD, HOST_FACTS, LEASE, METRICS, PROCESS
    from dutyfree.protocol.frames import (
        FROM_CLIENT,
        FROM_NODE,
        HELLO_ONLY,
        WELCOME_ONLY,
        NodeFrame,
        decode_document,
        decode_plain,
    )
    from dutyfree.protocol.results import read_chunk, read_files, read_observation
    from dutyfree.protocol.resumable import ResumableStream
    from dutyfree.tables import Table
    from dutyfree.wire.frames import Frame, FrameDecoder, FrameKind, encode_frame
    from dutyfree.wire.messages import decode_guest, decode_host

FORMS = (BOX_FACTS, BOX_STATE, EGRESS, EGRESS_RECORD, ERROR, HOST_FACTS, LEASE, METRICS, PROCESS)
OF_GUESTS = {int(each) for each in FrameKind}
DOCUMENTS = (NodeFrame.CALL, NodeFrame.REPLY)
PLAIN = (NodeFrame.FAILED, NodeFrame.ENDED)


def read_forms(document: Any, body: bytes) -> None:
    """Read a document as everything that it could be."""
    for form in FORMS:
        with suppress(InvalidRequest):
            form.decode_inner(document)
    with suppress(InvalidRequest):
        read_files(document, memoryview(body))
    if isinstance(document, dict):
        table = Table(document, "it")
        for read in (read_chunk, read_observation):
            with suppress(InvalidRequest):
                read(table, body)


def take(frame: Frame, from_client: bool) -> None:
    """Do with a frame what its receiver does first. Raises GuestMisbehaved."""
    if frame.kind in OF_GUESTS:
        (decode_host if from_client else decode_guest)(frame)
    elif frame.kind in DOCUMENTS:
        read_forms(*decode_document(frame))
    elif frame.kind in PLAIN:
        with suppress(InvalidRequest):
            ERROR.decode_inner(decode_plain(frame))


def taken(data: bytes, from_client: bool, piece_bytes: int) -> tuple[list[Frame], bool]:
    """The frames before the first misbehaviour, and whether there was one."""
    stream = ResumableStream(FROM_CLIENT if from_client else FROM_NODE, lambda: None)
    stream.connect(lambda data: None, 0)
    stream.send(encode_frame(FrameKind.INPUT_END, 1))  # so that an acknowledgement can be right
    frames: list[Frame] = []
    try:
        for at in range(0, len(data), piece_bytes):
            for frame in stream.feed(data[at : at + piece_bytes]):
                take(frame, from_client)
                frames.append(frame)
    except GuestMisbehaved:
        return frames, True
    return frames, False


def one_input(data: bytes) -> None:
    """The first byte chooses what is fuzzed, the second how the stream is cut."""
    if len(data) < 2:
        return
    what, cut, rest = data[0] % 5, data[1] + 1, data[2:]
    if what == 4:
        with suppress(InvalidRequest):
            read_forms(loads(rest), rest)
        return
    if what >= 2:
        with suppress(GuestMisbehaved):
            for frame in FrameDecoder(HELLO_ONLY if what == 2 else WELCOME_ONLY).feed(rest):
                decode_plain(frame)
        return
    whole, whole_broke = taken(rest, what == 0, len(rest) or 1)
    pieces, pieces_broke = taken(rest, what == 0, cut)
    if whole_broke != pieces_broke or (not whole_broke and whole != pieces):
        raise AssertionError("the same bytes, cut differently, gave something else")


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
