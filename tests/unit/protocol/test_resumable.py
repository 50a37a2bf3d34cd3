"""A stream that survives its connection: every frame is taken once and in order, wherever connections are cut."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import GuestMisbehaved
from dutyfree.protocol import resumable
from dutyfree.protocol.frames import FROM_CLIENT, FROM_NODE, NodeFrame
from dutyfree.protocol.resumable import ResumableStream
from dutyfree.wire.frames import HEADER, FrameKind, encode_frame


@dataclass
class Side:
    """One side, and the bytes that are on their way to the other."""

    stream: ResumableStream
    kind: int
    sent: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    on_the_way: bytearray = field(default_factory=bytearray)

    def send(self, sizes: list[int]) -> None:
        """Several frames in one chunk, as `start_all` sends them."""
        chunk = b""
        for size in sizes:
            self.sent.append(len(self.sent) + 1)
            stream = 1 if self.kind == FrameKind.OUTPUT else 0
            chunk += encode_frame(self.kind, len(self.sent), b"x" * size, stream)
        self.stream.send(chunk)

    def take(self, data: bytes) -> None:
        self.taken += [frame.id for frame in self.stream.feed(data)]


class Link:
    """Two sides and the connections between them."""

    def __init__(self) -> None:
        self.client = Side(ResumableStream(FROM_NODE, self.overflow), FrameKind.INPUT)
        self.node = Side(ResumableStream(FROM_CLIENT, self.overflow), FrameKind.OUTPUT)
        self.overflows = 0

    def overflow(self) -> None:
        self.overflows += 1

    def connect(self) -> None:
        """A new connection: each side is told what the other has received. What was on its way is lost."""
        for side in (self.client, self.node):
            side.stream.disconnect()
            side.on_the_way.clear()
        client_has, node_has = self.client.stream.received, self.node.stream.received
        self.node.stream.connect(self.node.on_the_way.extend, client_has)
        self.client.stream.connect(self.client.on_the_way.extend, node_has)

    def carry(self, side: Side, size: int) -> None:
        other = self.node if side is self.client else self.client
        data = bytes(side.on_the_way[:size])
        del side.on_the_way[:size]
        if data:
            other.take(data)

    def finish(self) -> None:
        self.connect()
        while self.client.on_the_way or self.node.on_the_way:
            self.carry(self.client, 1 << 20)
            self.carry(self.node, 1 << 20)


sides = st.sampled_from(["client", "node"])
sizes = st.lists(st.sampled_from([1, 2, 13, 300, 9000]), min_size=1, max_size=4)
steps = st.one_of(
    st.tuples(st.just("send"), sides, sizes),
    st.tuples(st.just("carry"), sides, st.integers(1, 20_000)),
    st.tuples(st.just("acknowledge"), sides, st.none()),
    st.tuples(st.just("cut"), sides, st.none()),
    st.tuples(st.just("lose"), sides, st.none()),
)


@given(st.lists(steps, max_size=60))
def test_every_frame_is_taken_once_and_in_order(plan: list[tuple[str, str, object]]) -> None:
    link = Link()
    link.connect()
    for what, name, value in plan:
        side = getattr(link, name)
        if what == "send":
            side.send(value)
        elif what == "carry":
            link.carry(side, value)
        elif what == "acknowledge":
            side.stream.acknowledge()
        elif what == "cut":
            link.connect()
        else:  # one side knows that the connection is lost, the other does not
            side.stream.disconnect()
        assert link.node.taken == link.client.sent[: len(link.node.taken)]
        assert link.client.taken == link.node.sent[: len(link.client.taken)]
    link.finish()
    assert link.node.taken == link.client.sent
    assert link.client.taken == link.node.sent
    link.client.stream.acknowledge()
    link.node.stream.acknowledge()
    link.carry(link.client, 1 << 20)
    link.carry(link.node, 1 << 20)
    assert (link.client.stream.kept_bytes, link.node.stream.kept_bytes, link.overflows) == (0, 0, 0)


@given(st.lists(sizes, min_size=1, max_size=5), st.data())
def test_a_cut_at_any_byte_sends_again_only_what_was_not_taken(chunks: list[list[int]], data: st.DataObject) -> None:
    link = Link()
    link.connect()
    for chunk in chunks:
        link.node.send(chunk)
    total = len(link.node.on_the_way)
    link.carry(link.node, data.draw(st.integers(0, total)))
    link.connect()
    assert len(link.node.on_the_way) == total - link.client.stream.received
    link.finish()
    assert link.client.taken == link.node.sent


def test_received_bytes_are_acknowledged_by_themselves() -> None:
    link = Link()
    link.connect()
    for _ in range(3):
        link.node.send([40_000])
    link.carry(link.node, 1 << 20)
    assert not link.client.stream.owes or link.client.stream.received < resumable.ACK_EVERY_BYTES
    link.carry(link.client, 1 << 20)
    assert link.node.stream.kept_bytes == 0


def test_more_than_may_be_kept_ends_the_stream() -> None:
    link = Link()
    big = encode_frame(FrameKind.OUTPUT, 1, b"x" * 65536, 1) * 64
    for _ in range(resumable.MAX_KEPT_BYTES // len(big) + 1):
        link.node.stream.send(big)
    assert link.overflows >= 1


@pytest.mark.parametrize("received", [13, 100, 2**63])
def test_a_peer_that_received_what_was_never_sent_is_refused(received: int) -> None:
    stream = ResumableStream(FROM_NODE, lambda: None)
    stream.send(encode_frame(FrameKind.INPUT_END, 1))
    with pytest.raises(GuestMisbehaved, match="the peer received"):
        stream.connect(lambda data: None, received)


def test_an_acknowledgement_cannot_go_back_or_ahead() -> None:
    stream = ResumableStream(FROM_NODE, lambda: None)
    stream.connect(lambda data: None, 0)
    stream.send(encode_frame(FrameKind.INPUT_END, 1))
    stream.send(encode_frame(FrameKind.INPUT_END, 2))

    def ack(count: int) -> None:
        stream.feed(encode_frame(NodeFrame.ACK, 0, count.to_bytes(8, "little")))

    ack(HEADER.size)
    assert stream.kept_bytes == HEADER.size
    for wrong in (0, 3 * HEADER.size):
        with pytest.raises(GuestMisbehaved):
            ack(wrong)
