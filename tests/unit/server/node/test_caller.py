"""A node against a client with a valid token that does not keep the rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dutyfree.errors import CapacityError, GuestMisbehaved, InvalidRequest, LeaseLost, SessionEnded, Unsupported
from dutyfree.protocol.frames import NodeFrame
from dutyfree.server.node import caller as callers
from dutyfree.wire.frames import FrameKind, encode_frame
from dutyfree.wire.messages import INPUT_WINDOW_BYTES, Mode, OutputCredit, Run, RunFlag, Signal, decode_guest
from support.nodes import ServedNode
from support.raw_client import RawClient, failure

CREDIT = 1 << 20


def command(line: str, **values: Any) -> Run:
    return Run(0, mode=Mode.SHELL, args=(line.encode(),), env=(), cwd=b"/tmp", credit=CREDIT, **values)


@pytest.fixture
async def client(served: ServedNode) -> AsyncIterator[RawClient]:
    client = await RawClient.welcomed(served.url, served.token)
    yield client
    client.close()


@pytest.fixture
async def box(client: RawClient) -> int:
    return int((await client.call("acquire"))["facts"]["box"])


async def output(client: RawClient, action_id: int) -> tuple[bytes, int | None]:
    """All output of an action, and its exit code."""
    data = b""
    while True:
        frame = await client.frame()
        assert frame.id == action_id, frame
        if frame.kind == FrameKind.OUTPUT:
            data += frame.payload
            client.send(OutputCredit(action_id, len(frame.payload)).encode())
        elif frame.kind == FrameKind.EXIT:
            return data, decode_guest(frame).exit_code  # type: ignore[union-attr]


async def ended(client: RawClient, served: ServedNode) -> str:
    """The node ends the client, and says why."""
    error = failure(await client.frame())
    assert isinstance(error, GuestMisbehaved)
    await client.closed()
    assert served.node.status()["clients"] == 0
    return error.message


async def test_an_action(client: RawClient, box: int) -> None:
    assert await output(client, client.run(box, command("echo hi; exit 3"))) == (b"hi\n", 3)


async def test_an_id_that_is_under_way_is_not_used_twice(client: RawClient, box: int, served: ServedNode) -> None:
    action = client.run(box, command("sleep 60"))
    client.run(box, command("true"), action)
    assert f"used id {action} twice" in await ended(client, served)


async def test_an_id_can_be_used_again_after_its_end(client: RawClient, box: int) -> None:
    action = client.run(box, command("echo 1"))
    assert await output(client, action) == (b"1\n", 0)
    client.run(box, command("echo 2"), action)
    assert await output(client, action) == (b"2\n", 0)


async def test_input_past_the_window_ends_the_client(client: RawClient, box: int, served: ServedNode) -> None:
    action = client.run(box, command("sleep 60", flags=RunFlag.STDIN))
    frame = encode_frame(FrameKind.INPUT, action, bytes(65536))
    for _ in range(INPUT_WINDOW_BYTES // 65536 + 2):
        client.send(frame)
    while (frame_ := await client.frame()).kind != NodeFrame.ENDED:
        assert frame_.kind == FrameKind.INPUT_CREDIT
    assert "more input than it has room for" in failure(frame_).message
    await client.closed()


async def test_frames_of_actions_that_have_ended_are_dropped(client: RawClient, box: int) -> None:
    action = client.run(box, command("true"))
    await output(client, action)
    client.send(Signal(action, 9, tree=True).encode())
    client.send(OutputCredit(action, 5).encode())
    client.send(encode_frame(FrameKind.INPUT, 77, b"x"))
    client.send(encode_frame(NodeFrame.CANCEL, 99))
    assert await output(client, client.run(box, command("echo on"))) == (b"on\n", 0)


async def test_unknown_boxes_and_calls_are_refused(client: RawClient, box: int) -> None:
    client.run(99, command("true"))
    assert isinstance(failure(await client.frame()), InvalidRequest)
    for arguments in ({"box": 99}, {"box": -1}, {"box": "1"}, {"box": True}, {"box": None}, {}):
        with pytest.raises(InvalidRequest):
            await client.call("box.metrics", **arguments)
    with pytest.raises(Unsupported, match="no call"):
        await client.call("teleport")
    client.send(encode_frame(NodeFrame.CALL, 1000, b"\x02\x00\x00\x00[]"))
    assert isinstance(failure(await client.frame()), InvalidRequest)
    for lease in ("x", "", "' OR 1=1", "é"):
        with pytest.raises(LeaseLost, match="there is no lease"):
            await client.call("attach", lease=lease)


async def test_only_the_operator_has_these_calls(client: RawClient) -> None:
    for op, arguments in (("bill", {}), ("status", {}), ("authenticate", {"token": "x"})):
        with pytest.raises(Unsupported):
            await client.call(op, **arguments)
    with pytest.raises(InvalidRequest, match="the owner of a lease is the token's"):
        await client.call("acquire", owner="another")
    assert (await client.call("leases", owner="another"))["leases"] == []


async def test_a_line_names_a_session_of_the_same_box(client: RawClient, box: int) -> None:
    other = int((await client.call("acquire"))["facts"]["box"])
    action = client.run(box, command("sleep 60"))
    session = client.run(box, Run(0, mode=Mode.SESSION, args=(), env=(), cwd=b"/tmp", credit=0))
    assert (await client.frame()).kind == FrameKind.STARTED
    for wrong in (0, 77, action):
        line = client.run(box, Run(0, mode=Mode.LINE, args=(b"true",), env=(), cwd=b"", credit=CREDIT, session=wrong))
        frame = await client.frame()
        assert (frame.id, type(failure(frame))) == (line, SessionEnded)
    client.run(other, Run(0, mode=Mode.LINE, args=(b"true",), env=(), cwd=b"", credit=CREDIT, session=session))
    assert isinstance(failure(await client.frame()), SessionEnded)
    line = client.run(box, Run(0, mode=Mode.LINE, args=(b"echo x",), env=(), cwd=b"", credit=CREDIT, session=session))
    assert await output(client, line) == (b"x\n", 0)


async def test_too_much_under_way_is_refused_and_the_rest_goes_on(
    client: RawClient, box: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "MAX_UNDER_WAY", 2)
    actions = [client.run(box, command("read x; echo $x", flags=RunFlag.STDIN)) for _ in range(2)]
    client.run(box, command("true"))
    assert isinstance(failure(await client.frame()), CapacityError)
    client.send(encode_frame(FrameKind.INPUT, actions[0], b"hi\n"))
    assert await output(client, actions[0]) == (b"hi\n", 0)
    monkeypatch.setattr(callers, "MAX_HELD_BYTES", 1000)
    with pytest.raises(CapacityError, match="1000 bytes already"):
        await client.call("host", bytes(2000))
    assert (await client.call("host"))["substrate"] == "process"
    monkeypatch.setattr(callers, "MAX_BOXES", 1)
    with pytest.raises(CapacityError, match="boxes already"):
        await client.call("acquire")
    assert len((await client.call("leases"))["leases"]) == 1  # nothing is left of the one that was refused


async def test_a_cancelled_call_is_answered_even_if_it_never_began(client: RawClient) -> None:
    call = client.start_call("host")
    client.send(encode_frame(NodeFrame.CANCEL, call))
    frame = await client.frame()  # in one read with the call, or after its answer
    if frame.kind == NodeFrame.FAILED:
        assert "cancelled" in failure(frame).message
    data = b"".join(
        (
            encode_frame(NodeFrame.CALL, 500, b"\x0d\x00\x00\x00" + b'{"op":"host"}'),
            encode_frame(NodeFrame.CANCEL, 500),
        )
    )
    client.send(data)
    frame = await client.frame()
    assert (frame.id, frame.kind) == (500, NodeFrame.FAILED)
    client.send(data)  # its id is free again
    assert (await client.frame()).kind == NodeFrame.FAILED


async def test_output_waits_for_the_clients_credit(client: RawClient, box: int) -> None:
    request = Run(0, mode=Mode.SHELL, args=(b"head -c 300000 /dev/zero",), env=(), cwd=b"/tmp", credit=1000)
    action = client.run(box, request)
    got = 0
    while got < 1000:
        frame = await client.frame()
        assert frame.kind == FrameKind.OUTPUT
        got += len(frame.payload)
    assert got == 1000
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.frame(), 0.3)
    client.send(OutputCredit(action, 1 << 20).encode())
    data, code = await output(client, action)
    assert (len(data), code) == (299_000, 0)


async def test_garbage_ends_the_client_and_its_lease(client: RawClient, box: int, served: ServedNode) -> None:
    assert served.node.status()["leases"] == 1
    client.send(b"\xff" * 64)
    await ended(client, served)
    for _ in range(200):
        if served.node.status()["leases"] == 0:
            break
        await asyncio.sleep(0.02)
    status = served.node.status()
    assert [status[name] for name in ("clients", "leases", "owners")] == [0, 0, 0]


async def test_a_client_that_does_not_read_holds_little_and_loses_nothing(
    client: RawClient, box: int, served: ServedNode
) -> None:
    """Hundreds of actions that write as much as they can, while their client reads nothing."""
    count, each = 300, 400_000
    ids = {client.run(box, command(f"head -c {each} /dev/zero")) for _ in range(count)}
    await asyncio.sleep(3)
    (caller,) = served.node._callers.values()
    assert caller.stream.kept_bytes < 64 * 1024 * 1024
    got = dict.fromkeys(ids, 0)
    while ids:
        frame = await client.frame()
        if frame.kind == FrameKind.EXIT:
            ids.discard(frame.id)
        else:
            got[frame.id] += len(frame.payload)
            client.send(OutputCredit(frame.id, len(frame.payload)).encode())
        client.received += 12 + len(frame.payload)
        client.send(encode_frame(NodeFrame.ACK, 0, client.received.to_bytes(8, "little")))
    assert set(got.values()) == {each}
