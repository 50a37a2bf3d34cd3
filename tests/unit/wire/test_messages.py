"""Messages: each comes back from its own bytes, and an EXIT that cannot be is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import GuestMisbehaved
from dutyfree.wire.fields import bytes_field, number_field
from dutyfree.wire.frames import FROM_GUEST, FROM_HOST, Frame, FrameDecoder, FrameKind
from dutyfree.wire.messages import (
    Exit,
    Fault,
    GuestHello,
    GuestMessage,
    HostHello,
    HostMessage,
    Input,
    InputCredit,
    InputEnd,
    Output,
    OutputCredit,
    OutputEnd,
    Ping,
    Pong,
    Quit,
    Refused,
    Resize,
    Run,
    Signal,
    Started,
    StoodStill,
    decode_guest,
    decode_host,
)

ids = st.integers(1, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
blobs = st.binary(max_size=80)
data = st.binary(min_size=1, max_size=80)
lists = st.lists(blobs, max_size=5).map(tuple)

host_messages = st.one_of(
    st.builds(HostHello, u64, blobs, blobs, blobs, u64),
    st.builds(Run, ids, u64, lists, lists, blobs, u64, u64, st.none() | u64, u64, u64, u64, u64, blobs),
    st.builds(Input, ids, data),
    st.builds(InputEnd, ids),
    st.builds(OutputCredit, ids, st.integers(1, 2**63 - 1)),
    st.builds(Signal, ids, u64, st.booleans()),
    st.builds(Resize, ids, u64, u64),
    st.builds(Ping, st.binary(max_size=64)),
    st.builds(Quit),
    st.builds(StoodStill, duration_ms=st.integers(0, 2**64 - 1)),
)
guest_messages = st.one_of(
    st.builds(GuestHello, u64, u64, u64),
    st.builds(Started, ids, st.lists(st.tuples(st.binary(max_size=45), st.integers(0, 65535)), max_size=2).map(tuple)),
    st.builds(OutputEnd, ids),
    st.builds(Output, ids, st.sampled_from([1, 2]), data),
    st.builds(InputCredit, ids, st.integers(1, 2**18)),
    st.builds(Exit, ids, st.integers(0, 255), st.none(), u64, u64, u64, u64, u64, u64),
    st.builds(Exit, ids, st.none(), st.integers(1, 64), u64, u64, u64, u64, u64, u64),
    st.builds(Refused, ids, u64, blobs, u64),
    st.builds(Pong, st.binary(max_size=64)),
    st.builds(Fault, blobs),
)


@given(host_messages)
def test_what_the_host_says_comes_back(message: HostMessage) -> None:
    assert [decode_host(frame) for frame in FrameDecoder(FROM_HOST).feed(message.encode())] == [message]


@given(guest_messages)
def test_what_the_guest_says_comes_back(message: GuestMessage) -> None:
    assert [decode_guest(frame) for frame in FrameDecoder(FROM_GUEST).feed(message.encode())] == [message]


@pytest.mark.parametrize(
    ("exit_code", "signal"), [(None, None), (0, 9), (256, None), (None, 0), (None, 65), (2**64 - 1, None)]
)
def test_an_exit_that_cannot_be_is_refused(exit_code: int | None, signal: int | None) -> None:
    (frame,) = FrameDecoder(FROM_GUEST).feed(Exit(1, exit_code, signal).encode())
    with pytest.raises(GuestMisbehaved):
        decode_guest(frame)


def test_unknown_tags_are_skipped_and_the_last_of_a_repeated_tag_counts() -> None:
    payload = Exit(1, 3, None).encode()[12:] + bytes_field(200, b"from the future") + number_field(1, 4)
    end = decode_guest(Frame(FrameKind.EXIT, 0, 1, payload))
    assert isinstance(end, Exit)
    assert end.exit_code == 4


@pytest.mark.parametrize("size_bytes", [0, 2**18 + 1, 2**64 - 1])
def test_a_guest_gives_credit_for_no_more_than_the_window(size_bytes: int) -> None:
    (frame,) = FrameDecoder(FROM_GUEST).feed(InputCredit(1, size_bytes).encode())
    with pytest.raises(GuestMisbehaved, match="INPUT_CREDIT"):
        decode_guest(frame)


@pytest.mark.parametrize("size_bytes", [0, 2**63, 2**64 - 1])
def test_a_host_gives_credit_that_makes_sense(size_bytes: int) -> None:
    (frame,) = FrameDecoder(FROM_HOST).feed(OutputCredit(1, size_bytes).encode())
    with pytest.raises(GuestMisbehaved, match="OUTPUT_CREDIT"):
        decode_host(frame)
