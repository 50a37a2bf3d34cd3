"""Connections that are cut, nodes and clients that are killed: nothing runs twice, nothing is lost in silence."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import dutyfree
from dutyfree.errors import DutyfreeError, InfraFailed, LeaseLost, LinkFailed, SandboxGone, SubstrateFailed
from dutyfree.remote import connection as connections
from dutyfree.testing.leaks import snapshot
from support.cutting_proxy import cutting_proxy
from support.nodes import ServedNode
from support.repository import ROOT

NODE = ROOT / "tests" / "support" / "node_process.py"


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


class NodeProcess:
    """A node that can be killed, and started again with the same state and port."""

    def __init__(self, directory: Path, resume_s: float = 30.0) -> None:
        self._directory = directory
        self._resume_s = resume_s
        self.port = free_port()
        self.token = ""
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        words = (str(NODE), str(self._directory), str(self.port), str(self._resume_s))
        self.process = await asyncio.create_subprocess_exec(sys.executable, *words, **pipes)
        assert self.process.stdout is not None
        while (line := (await asyncio.wait_for(self.process.stdout.readline(), 60)).decode().strip()) != "ready":
            assert line.startswith("df_"), "the node did not start"
            self.token = line

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process._transport.get_pipe_transport(0).close()  # type: ignore[attr-defined]
            await asyncio.wait_for(self.process.wait(), 60)
        self.process._transport.close()  # type: ignore[attr-defined]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def node_process(directory: Path, resume_s: float = 30.0) -> AsyncIterator[NodeProcess]:
    node = NodeProcess(directory, resume_s)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_cuts_at_any_moment_lose_and_repeat_nothing(served: ServedNode, seed: int) -> None:
    dice = random.Random(seed)
    async with cutting_proxy(served.url, seed) as proxy:
        async with dutyfree.connect(proxy.url, token=served.token) as host, host.lease() as box:
            is_over = asyncio.Event()

            async def cut() -> None:
                while not is_over.is_set():
                    await asyncio.sleep(dice.uniform(0.01, 0.15))
                    await proxy.cut()

            async def act(number: int) -> None:
                size = dice.choice((0, 1, 5000, 300_000))
                given = dice.choice((b"", b"x" * 200_000))
                line = f"echo {number} >> /tmp/ran; cat | wc -c; head -c {size} /dev/zero; echo end {number} >&2"
                seen = await box.run(line, stdin=given, timeout_s=60)
                assert seen.stdout == b"%d\n" % len(given) + bytes(size)
                assert seen.stderr == b"end %d\n" % number

            async def call(number: int) -> None:
                await box.files.write(f"/tmp/file-{number}", b"y" * 50_000)
                assert await box.files.read(f"/tmp/file-{number}") == b"y" * 50_000
                process = await box.start(f"echo {number}; echo {number} >> /tmp/started")
                assert (await process.wait()).ok

            cutting = asyncio.ensure_future(cut())
            try:
                for begin in range(0, 50, 10):
                    numbers = range(begin, begin + 10)
                    await asyncio.gather(*map(act, numbers), *(call(each) for each in numbers if each % 5 == 0))
            finally:
                is_over.set()
                await cutting
            ran = sorted((await box.run("cat /tmp/ran")).text.split(), key=int)
            started = sorted((await box.run("cat /tmp/started")).text.split(), key=int)
        assert ran == [str(each) for each in range(50)]
        assert started == [str(each) for each in range(0, 50, 5)]
        assert proxy.cuts >= 3


async def test_a_paused_sandbox_stays_paused_over_a_cut(served: ServedNode) -> None:
    async with cutting_proxy(served.url) as proxy, dutyfree.connect(proxy.url, token=served.token) as host:
        box = await host.acquire()
        await box.pause()
        await proxy.cut()
        await box.metrics()  # it is back
        channel = box._sandbox._runner.channel  # type: ignore[attr-defined]
        assert channel.standing_still
        assert channel.refuses
        await box.resume()
        assert (await box.run("true")).ok


async def test_a_client_that_comes_back_too_late_has_lost_its_leases(
    served: ServedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node waits two seconds (`resume_s` of the fixture)."""
    async with cutting_proxy(served.url) as proxy, dutyfree.connect(proxy.url, token=served.token) as host:
        box = await host.acquire()
        kept = await host.acquire(ttl_s=60)
        running = asyncio.ensure_future(box.run("sleep 60"))
        await asyncio.sleep(0.2)
        proxy.refuses = True
        await proxy.cut()
        with pytest.raises(LinkFailed, match="could not be reached for 2 s"):
            await running
        with pytest.raises(LinkFailed):
            await host.acquire()
        await asyncio.sleep(1.0)
        proxy.refuses = False
        async with asyncio.timeout(20):
            while True:
                with suppress(LinkFailed):
                    again = await host.get(kept.lease.id)
                    break
                await asyncio.sleep(0.1)
        assert (await again.run("echo on")).text == "on\n"
        with pytest.raises(LeaseLost):
            await host.get(box.lease.id)
        for gone in (box, kept):
            with pytest.raises((SandboxGone, LeaseLost)):
                await gone.run("true")
            with pytest.raises((SandboxGone, LeaseLost)):
                await gone.set_env({"A": "1"})  # and not of the new box, which has the number of the old one
        assert "A" not in again.env
        await again.close()


async def test_a_killed_node_is_told_as_such_and_the_next_one_is_used(tmp_path: Path) -> None:
    before = snapshot()
    async with node_process(tmp_path) as node:
        async with dutyfree.connect(node.url, token=node.token) as host:
            boxes = [await host.acquire(ttl_s=600) for _ in range(3)]
            ended = await host.acquire()
            await ended.close()
            running = [asyncio.ensure_future(box.run("sleep 60")) for box in boxes]
            await asyncio.sleep(0.3)
            first = node.process
            await node.kill()
            await asyncio.sleep(0.2)
            await node.start()
            for each in running:
                with pytest.raises(SubstrateFailed, match="the lease is lost"):
                    await each
            async with host.lease() as box:  # the same host
                assert (await box.run("echo on")).text == "on\n"
                with pytest.raises(SandboxGone):
                    await boxes[0].processes()
            for lost in boxes:
                assert not lost.alive
                with pytest.raises(SandboxGone):
                    await lost.run("true")
                with pytest.raises(SubstrateFailed, match="was lost: its node ended unexpectedly"):
                    await host.get(lost.lease.id)
            with pytest.raises(LeaseLost, match="has ended"):
                await host.get(ended.lease.id)
            with pytest.raises(LeaseLost, match="there is no lease"):
                await host.get("never-was")
            assert await host.find_leases() == []
        assert first is not None
        hosts = [first.pid]
    after = snapshot(hosts=hosts)
    left = {key: words for key, words in after.things.items() if key not in before.things}
    for _ in range(100):
        if not left:
            break
        await asyncio.sleep(0.1)
        left = {key: words for key, words in snapshot(hosts=hosts).things.items() if key not in before.things}
    assert not left


CLIENT = """
import asyncio, sys
import dutyfree

async def main():
    async with dutyfree.connect(sys.argv[1], token=sys.argv[2]) as host:
        bound, kept = await host.acquire(), await host.acquire(ttl_s=600)
        await kept.run("echo mine > /tmp/x")
        await kept.start("sleep 600; true")
        print(bound.lease.id, kept.lease.id, flush=True)
        await bound.run("sleep 600")

asyncio.run(main())
"""


async def test_leases_of_a_killed_client(served: ServedNode) -> None:
    pipes = {"stdout": asyncio.subprocess.PIPE}
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, served.url, served.token, **pipes)
    assert client.stdout is not None
    bound, kept = (await asyncio.wait_for(client.stdout.readline(), 60)).decode().split()
    os.kill(client.pid, signal.SIGKILL)
    await client.wait()
    async with served.host() as host:
        for _ in range(400):
            if {each.id for each in await host.find_leases()} == {kept}:
                break
            await asyncio.sleep(0.05)
        with pytest.raises(LeaseLost):
            await host.get(bound)
        box = await host.get(kept)
        assert (await box.run("cat /tmp/x")).text == "mine\n"
        assert [each.running for each in await box.processes()] == [True]
        await box.close()
    client._transport.close()  # type: ignore[attr-defined]


async def test_a_server_that_says_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has gone without a word: no bytes, and no end of the connection either."""
    monkeypatch.setattr(connections, "CONNECT_S", 0.3)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(LinkFailed, match="no answer in time"):
        async with dutyfree.connect(f"http://127.0.0.1:{port}", token="x"):
            pass
    server.close()


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\n\r\n", b"garbage\r\n\r\n", b"x" * 100_000, b"", b"SSH-2.0-x\r\n"]
)
async def test_what_is_no_server_is_told_as_such(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECT_S", 0.5)

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        with suppress(OSError):
            await writer.drain()
        if not answer:
            writer.close()
            return
        with suppress(OSError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(other, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(DutyfreeError) as caught:
        async with dutyfree.connect(f"http://127.0.0.1:{port}", token="x"):
            pass
    assert isinstance(caught.value, InfraFailed)
    server.close()
