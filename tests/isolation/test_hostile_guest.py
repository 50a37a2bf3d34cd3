"""Whatever a guest says or does not say: a typed failure, soon, in bounded memory, and never an observation."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import socket
import struct
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from dutyfree.errors import (
    DeadlineExceeded,
    FileFailed,
    GuestMisbehaved,
    InfraFailed,
    LinkFailed,
    SandboxGone,
    SubstrateFailed,
)
from dutyfree.guest import GuestSandbox
from dutyfree.model import Action, SandboxSpec
from dutyfree.substrates import load
from dutyfree.testing.leaks import settle, snapshot
from dutyfree.wire.channel import Channel
from dutyfree.wire.fields import bytes_field, number_field
from dutyfree.wire.frames import (
    FROM_HOST,
    MAX_DATA_BYTES,
    MAX_PAYLOAD_BYTES,
    Frame,
    FrameDecoder,
    FrameKind,
    encode_frame,
)
from dutyfree.wire.messages import Exit, Fault, GuestHello, Output, Pong, Refused, Started

SOON_S = 5.0
MEMORY_BYTES = 32 * 1024 * 1024
MIB = 1024 * 1024


class HostileGuest:
    """The other end of a real socket: reads what the host says, and answers with any bytes."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._decoder = FrameDecoder(FROM_HOST)
        self._frames: list[Frame] = []

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def greet(self) -> None:
        await self.next(FrameKind.HOST_HELLO)
        await self.send(GuestHello(1, 1).encode())

    async def next(self, kind: FrameKind) -> Frame:
        """The next frame of this kind; others are skipped."""
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if frame.kind == kind:
                    return frame
            data = await asyncio.get_running_loop().sock_recv(self._sock, 65536)
            if not data:
                raise ConnectionResetError("the host hung up")
            self._frames += self._decoder.feed(data)

    def hang_up(self) -> None:
        self._sock.close()


Script = Callable[[HostileGuest], Awaitable[None]]


@contextlib.asynccontextmanager
async def sandbox_with(script: Script, *, handshake_timeout_s: float = SOON_S) -> AsyncIterator[GuestSandbox]:
    """A sandbox whose guest follows the script and then says nothing more."""
    given_back = 0

    async def destroy() -> None:
        nonlocal given_back
        given_back += 1

    async def play() -> None:
        with contextlib.suppress(ConnectionError):  # the host hangs up on it, as it should
            await script(guest)

    ours, theirs = socket.socketpair()
    channel = Channel.over_socket(ours, handshake_timeout_s=handshake_timeout_s)
    sandbox = GuestSandbox("hostile", channel, destroy=destroy, env={})
    guest = HostileGuest(theirs)
    playing = asyncio.create_task(play())
    try:
        yield sandbox
    finally:
        await sandbox.destroy()
        playing.cancel()
        await asyncio.wait([playing])
        guest.hang_up()
    assert given_back == 1


def at_once(data: bytes) -> Script:
    """Sends bytes without so much as a greeting."""

    async def script(guest: HostileGuest) -> None:
        await guest.send(data)

    return script


def answers(reply: Callable[[int], bytes]) -> Script:
    """Greets, waits for an action, and answers it with bytes made from its id."""

    async def script(guest: HostileGuest) -> None:
        await guest.greet()
        action = await guest.next(FrameKind.RUN)
        await guest.send(reply(action.id))

    return script


async def hangs_up(guest: HostileGuest) -> None:
    guest.hang_up()


async def hangs_up_on_an_action(guest: HostileGuest) -> None:
    await guest.greet()
    action = await guest.next(FrameKind.RUN)
    await guest.send(Exit(action.id, 0, None).encode()[:-1])
    guest.hang_up()


async def floods(guest: HostileGuest) -> None:
    await guest.greet()
    action = await guest.next(FrameKind.RUN)
    block = Output(action.id, 1, b"x" * MAX_DATA_BYTES).encode()
    for _ in range(16 * 1024):
        await guest.send(block)


def noise(size_bytes: int) -> bytes:
    return random.Random(2).randbytes(size_bytes)


def exit_with(payload: bytes) -> Callable[[int], bytes]:
    return lambda action_id: encode_frame(FrameKind.EXIT, action_id, payload)


NUMBERS = b"".join(number_field(tag, 0) for tag in range(3, 9))

BEFORE_GREETING = {
    "noise": (at_once(noise(MIB)), GuestMisbehaved),
    "zeroes": (at_once(bytes(MIB)), GuestMisbehaved),
    "http": (at_once(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), GuestMisbehaved),
    "greatest-length": (at_once(struct.pack("<IBBHI", 0xFFFFFFFF, FrameKind.GUEST_HELLO, 0, 0, 0)), GuestMisbehaved),
    "unknown-kind": (at_once(encode_frame(200, 0)), GuestMisbehaved),
    "version-0": (at_once(GuestHello(0, 1).encode()), GuestMisbehaved),
    "version-99": (at_once(GuestHello(99, 1).encode()), GuestMisbehaved),
    "greeting-without-fields": (at_once(encode_frame(FrameKind.GUEST_HELLO, 0)), GuestMisbehaved),
    "short-integer": (at_once(encode_frame(FrameKind.GUEST_HELLO, 0, bytes_field(1, b"\1"))), GuestMisbehaved),
    "field-past-the-end": (
        at_once(encode_frame(FrameKind.GUEST_HELLO, 0, struct.pack("<BI", 1, 1 << 31))),
        GuestMisbehaved,
    ),
    "greeting-twice": (at_once(GuestHello(1, 1).encode() * 2), GuestMisbehaved),
    "result-before-greeting": (at_once(Exit(1, 0, None).encode()), GuestMisbehaved),
    "gives-up": (at_once(Fault(b"x" * 1000).encode()), SubstrateFailed),
    "half-a-farewell": (at_once(Fault(b"x" * 1000).encode()[:500]), DeadlineExceeded),
    "half-a-header": (at_once(b"\x00\x00"), DeadlineExceeded),
    "nothing": (at_once(b""), DeadlineExceeded),
    "hangs-up": (hangs_up, LinkFailed),
}

DURING_ACTION = {
    "noise": (answers(lambda _: noise(MIB)), GuestMisbehaved),
    "unknown-kind": (answers(lambda i: encode_frame(99, i)), GuestMisbehaved),
    "kind-of-the-host": (answers(lambda i: encode_frame(FrameKind.RUN, i)), GuestMisbehaved),
    "reserved-bits": (
        answers(lambda i: struct.pack("<IBBHI", 1, FrameKind.OUTPUT, 1, 7, i) + b"x"),
        GuestMisbehaved,
    ),
    "result-nobody-asked-for": (answers(lambda i: Exit(i + 1000, 0, None).encode()), GuestMisbehaved),
    "output-nobody-asked-for": (answers(lambda i: Output(i + 1, 1, b"x").encode()), GuestMisbehaved),
    "action-0": (answers(lambda _: encode_frame(FrameKind.EXIT, 0, number_field(1, 0) + NUMBERS)), GuestMisbehaved),
    "no-code-no-signal": (answers(exit_with(NUMBERS)), GuestMisbehaved),
    "code-and-signal": (answers(exit_with(number_field(1, 0) + number_field(2, 9) + NUMBERS)), GuestMisbehaved),
    "code-256": (answers(exit_with(number_field(1, 256) + NUMBERS)), GuestMisbehaved),
    "greatest-code": (answers(exit_with(number_field(1, 2**64 - 1) + NUMBERS)), GuestMisbehaved),
    "signal-0": (answers(exit_with(number_field(2, 0) + NUMBERS)), GuestMisbehaved),
    "signal-65": (answers(exit_with(number_field(2, 65) + NUMBERS)), GuestMisbehaved),
    "empty-result": (answers(exit_with(b"")), GuestMisbehaved),
    "result-of-noise": (answers(exit_with(noise(4096))), GuestMisbehaved),
    "short-code": (answers(exit_with(bytes_field(1, b"\0" * 4) + NUMBERS)), GuestMisbehaved),
    "field-past-the-end": (answers(exit_with(number_field(1, 0) + b"\x03\xff\xff\xff\xff")), GuestMisbehaved),
    "output-on-stdin": (answers(lambda i: encode_frame(FrameKind.OUTPUT, i, b"x", 0)), GuestMisbehaved),
    "output-on-stream-3": (answers(lambda i: encode_frame(FrameKind.OUTPUT, i, b"x", 3)), GuestMisbehaved),
    "empty-output": (answers(lambda i: encode_frame(FrameKind.OUTPUT, i, b"", 1)), GuestMisbehaved),
    "output-too-long": (
        answers(lambda i: encode_frame(FrameKind.OUTPUT, i, b"x" * (MAX_DATA_BYTES + 1), 1)),
        GuestMisbehaved,
    ),
    "frame-too-long": (
        answers(lambda i: struct.pack("<IBBHI", MAX_PAYLOAD_BYTES + 1, FrameKind.EXIT, 0, 0, i)),
        GuestMisbehaved,
    ),
    "started-nobody-asked": (answers(lambda i: Started(i).encode()), GuestMisbehaved),
    "pong-nobody-asked": (answers(lambda _: Pong(b"x").encode()), GuestMisbehaved),
    "second-greeting": (answers(lambda _: GuestHello(1, 1).encode()), GuestMisbehaved),
    "refusal-without-fields": (answers(lambda i: encode_frame(FrameKind.REFUSED, i)), GuestMisbehaved),
    "refusal-for-another": (answers(lambda i: Refused(i + 1, 1, b"", 1).encode()), GuestMisbehaved),
    "gives-up": (answers(lambda _: Fault(b"\xff" * 1000).encode()), SubstrateFailed),
    "more-output-than-allowed": (floods, GuestMisbehaved),
    "half-a-result-then-gone": (hangs_up_on_an_action, LinkFailed),
}


@contextlib.contextmanager
def bounded(within_s: float) -> Iterator[None]:
    """The block ends soon and leaves this process no larger than it may be."""
    before, start = resident_bytes(), time.monotonic()
    yield
    assert time.monotonic() - start < within_s
    assert resident_bytes() - before < MEMORY_BYTES


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize(("script", "error"), BEFORE_GREETING.values(), ids=BEFORE_GREETING)
async def test_before_the_greeting(script: Script, error: type[InfraFailed]) -> None:
    with bounded(SOON_S):
        async with sandbox_with(script, handshake_timeout_s=0.3) as sandbox:
            with pytest.raises(error):
                await sandbox.run(Action(["true"], timeout_s=2))
            await is_gone(sandbox)


@pytest.mark.parametrize(("script", "error"), DURING_ACTION.values(), ids=DURING_ACTION)
async def test_during_an_action(script: Script, error: type[InfraFailed]) -> None:
    with bounded(SOON_S):
        async with sandbox_with(script) as sandbox:
            with pytest.raises(error):
                await sandbox.run(Action(["true"], timeout_s=2, output_limit_bytes=MIB))
            await is_gone(sandbox)


async def is_gone(sandbox: GuestSandbox) -> None:
    assert not sandbox.alive
    with pytest.raises(SandboxGone):
        await sandbox.run(Action(["true"]))


async def test_one_bad_answer_fails_everything_that_is_under_way() -> None:
    async def script(guest: HostileGuest) -> None:
        await guest.greet()
        for _ in range(20):
            await guest.next(FrameKind.RUN)
        await guest.send(noise(100))

    async with sandbox_with(script) as sandbox:
        actions = [sandbox.run(Action(["true"], timeout_s=2)) for _ in range(20)]
        outcomes = await asyncio.gather(*actions, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [GuestMisbehaved] * 20


async def test_silence_after_the_greeting_is_a_missed_deadline() -> None:
    async with sandbox_with(HostileGuest.greet) as sandbox:
        with bounded(10), pytest.raises(DeadlineExceeded):
            await sandbox.run(Action(["true"], timeout_s=0.1))
        await is_gone(sandbox)


async def test_a_guest_that_reads_nothing_costs_no_memory() -> None:
    data = bytes(64 * MIB)
    async with sandbox_with(HostileGuest.greet) as sandbox:
        with bounded(10), pytest.raises(DeadlineExceeded):
            await sandbox.run(Action(["cat"], stdin=data, timeout_s=0.1))


async def test_a_second_result_ends_the_sandbox() -> None:
    async with sandbox_with(answers(lambda i: Exit(i, 3, None).encode() * 2)) as sandbox:
        with contextlib.suppress(GuestMisbehaved):
            assert (await sandbox.run(Action(["true"], timeout_s=2))).exit_code == 3
        await asyncio.sleep(0.05)
        await is_gone(sandbox)


async def test_a_frame_in_tiny_pieces_costs_no_more_than_itself() -> None:
    decoder = FrameDecoder(FROM_HOST)
    frame = encode_frame(FrameKind.RUN, 1, bytes(MAX_PAYLOAD_BYTES))
    with bounded(SOON_S):
        assert sum(len(decoder.feed(frame[at : at + 2])) for at in range(0, len(frame), 2)) == 1


def tar_of(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for entry, content in entries:
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, 0o644
    return made


TREES = {
    "absolute": tar_of((entry("/tmp/escaped"), b"x")),
    "parent": tar_of((entry("../escaped"), b"x")),
    "inner-parent": tar_of((entry("./a/../../escaped"), b"x")),
    "through-a-link": tar_of((entry("./l", tarfile.SYMTYPE, ".."), b""), (entry("./l/escaped"), b"x")),
    "absolute-link": tar_of((entry("./l", tarfile.SYMTYPE, "/etc"), b"")),
    "chain-of-links": tar_of(
        (entry("./a", tarfile.SYMTYPE, "."), b""),
        (entry("./b", tarfile.SYMTYPE, "a/../.."), b""),
        (entry("./b/escaped"), b"x"),
    ),
    "hard-link": tar_of((entry("./passwd", tarfile.LNKTYPE, "/etc/passwd"), b"")),
    "device": tar_of((entry("./null", tarfile.CHRTYPE), b"")),
    "noise": noise(64 * 1024),
    "endless-name": tar_of((entry("./" + "n" * 5_000), b"x")),
    "false-size": tar_of((entry("./f"), b"x" * 600))[:700],
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
async def test_no_downloaded_tree_leaves_its_directory(tree: bytes, tmp_path: Path) -> None:
    async def script(guest: HostileGuest) -> None:
        await guest.greet()
        while True:
            action = await guest.next(FrameKind.RUN)
            if b"pack" not in action.payload:
                await guest.send(Exit(action.id, 21, None).encode())  # EISDIR: ask for the tree
                continue
            for at in range(0, len(tree), MAX_DATA_BYTES):
                await guest.send(Output(action.id, 1, tree[at : at + MAX_DATA_BYTES]).encode())
            await guest.send(Exit(action.id, 0, None, stdout_bytes=len(tree)).encode())

    (tmp_path / "in").mkdir()
    async with sandbox_with(script) as sandbox:
        with bounded(SOON_S), contextlib.suppress(FileFailed, GuestMisbehaved):
            await sandbox.files.download("/x", tmp_path / "in" / "tree", limit_bytes=MIB)
    assert escaped(tmp_path, tmp_path / "in") == []


def escaped(around: Path, allowed: Path) -> list[Path]:
    """What lies outside `allowed`, or leads there."""
    found = [path for path in around.rglob("*") if not path.resolve().is_relative_to(allowed)]
    return found + [path for path in [Path("/tmp/escaped")] if path.exists()]


HOSTILE_PROGRAMS = {
    "nothing": "time.sleep(60)",
    "exits": "pass",
    "noise": "s.sendall(os.urandom(65536)); linger()",
    "host-spoken-back": "s.sendall(s.recv(4096)); linger()",
    "lies-about-an-action": "s.sendall(HELLO); await_action(); s.sendall(bytes(4096)); linger()",
}


@pytest.mark.parametrize("body", HOSTILE_PROGRAMS.values(), ids=HOSTILE_PROGRAMS)
async def test_a_hostile_program_in_place_of_the_guest(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "dutyfree-guest"
    program.write_text(
        "#!/usr/bin/python3 -S\n"
        "import os, socket, sys, time\n"
        f"HELLO = {GuestHello(1, 1).encode()!r}\n"
        "s = socket.socket(fileno=int(sys.argv[2]))\n"
        "def linger():\n"
        "    while s.recv(65536): pass\n"
        "def await_action():\n"
        "    while b'true' not in s.recv(65536): pass\n"
        f"{body}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("DUTYFREE_NATIVE_DIR", str(tmp_path))
    monkeypatch.setitem(vars(Channel)["over_socket"].__func__.__kwdefaults__, "handshake_timeout_s", 1.0)
    before = snapshot()
    async with load("process") as substrate:
        with bounded(25), pytest.raises(InfraFailed):
            async with await substrate.create(SandboxSpec()) as sandbox:
                await sandbox.run(Action(["true"], timeout_s=1))
    left = [line for line in await settle(before) if str(tmp_path) in line or line.startswith("file descriptor")]
    assert not left
