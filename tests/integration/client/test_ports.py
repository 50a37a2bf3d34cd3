"""The ports of a box, in cells."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.request import urlopen

import pytest

import dutyfree
from dutyfree import Box, CapacityError, LeaseLost, ListeningPort, Network, PortFailed, Unsupported
from dutyfree.client.ports import MAX_FORWARDED
from dutyfree.testing.checks.ports import _SERVE, ECHO, script
from support.shell import DUTYFREE

SERVER = script(ECHO + _SERVE)


@pytest.fixture(scope="module", autouse=True)
def _cells() -> None:
    try:
        with dutyfree.sync.local("cell"):
            pass
    except dutyfree.SubstrateUnavailable as error:
        pytest.skip(f"ports of cells: {error}")


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with dutyfree.local("cell") as host, host.lease() as box:
        yield box


@asynccontextmanager
async def echoing(box: Box) -> AsyncIterator[None]:
    async with box.stream(SERVER, timeout_s=60):
        await box.wait_for_port(8000)
        yield


async def talk(address: tuple[str, int], data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


async def answer(address: tuple[str, int], data: bytes) -> bytes:
    """What comes back; nothing from a connection that is reset."""
    try:
        return await talk(address, data)
    except ConnectionResetError:
        return b""


async def test_a_port_is_waited_for_listed_and_dialled(box: Box) -> None:
    async with box.stream(["sh", "-c", 'sleep 0.3; exec "$@"', "sh", *SERVER], timeout_s=60):
        assert await box.ports() == []
        await box.wait_for_port(8000)
        assert await box.ports() == [ListeningPort("127.0.0.1", 8000)]
        async with await box.dial(8000) as connection:
            await connection.write(b"hello")
            assert await connection.read() == b"hello"


async def test_a_port_that_stays_closed_is_the_callers_failure(box: Box) -> None:
    began_s = time.monotonic()
    with pytest.raises(PortFailed, match=r"nothing listens on port 8000 after 0\.5 s") as caught:
        await box.wait_for_port(8000, timeout_s=0.5)
    assert (caught.value.errno, caught.value.party) == (errno.ETIMEDOUT, "caller")
    assert 0.4 < time.monotonic() - began_s < 5
    assert (await box.run("true")).ok


async def test_a_forward_leads_there_and_ends_with_its_block(box: Box) -> None:
    async with echoing(box):
        async with box.forward(8000) as there:
            assert there.port == 8000
            big = bytes(range(256)) * 8192
            assert await asyncio.gather(*(talk(there.address, big) for _ in range(20))) == [big] * 20
            held = socket.create_connection(there.address)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(there.address)
        held.settimeout(5)
        with held, suppress(ConnectionResetError):
            assert held.recv(1) == b""
        assert (await box.run("true")).ok


async def test_a_forward_to_nothing_closes_its_connections(box: Box) -> None:
    async with box.forward(8000) as there:
        assert await answer(there.address, b"anyone?") == b""
        assert (await box.run("true")).ok


async def test_a_forward_has_a_bounded_number_of_connections(box: Box) -> None:
    async with echoing(box), box.forward(8000) as there:
        held = [await asyncio.open_connection(*there.address) for _ in range(MAX_FORWARDED)]
        for _, writer in held:
            writer.write(b"x")
        assert [await reader.read(1) for reader, _ in held] == [b"x"] * MAX_FORWARDED
        assert await answer(there.address, b"one more") == b""
        for _, writer in held:
            writer.close()


async def test_a_local_port_that_is_taken_is_named(box: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(CapacityError, match="is in use"):
        async with box.forward(8000, local_port=taken.getsockname()[1]):
            pass


async def test_with_the_lease_connections_and_forwards_are_over() -> None:
    async with dutyfree.local("cell") as host, host.lease() as box, echoing(box), box.forward(8000) as there:
        connection = await box.dial(8000)
        await box.close()
        for call in (connection.read(), connection.write(b"x"), box.dial(8000), box.ports()):
            with pytest.raises(LeaseLost):
                await call
        await connection.close()
        assert await answer(there.address, b"x") == b""


async def test_the_ports_of_the_host_are_not_those_of_a_box() -> None:
    async with dutyfree.local("cell") as host, host.lease(network=Network.HOST) as box:
        for call in (box.dial(80), box.ports()):
            with pytest.raises(Unsupported, match="the host's"):
                await call


def test_without_await() -> None:
    with dutyfree.sync.local("cell") as host, host.lease() as box, box.stream(SERVER, timeout_s=60):
        box.wait_for_port(8000)
        with box.dial(8000) as connection:
            connection.write(b"hello")
            connection.end_input()
            assert (connection.read(), connection.read()) == (b"hello", b"")
        with box.forward(8000) as there, socket.create_connection(there.address, timeout=10) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"


def test_the_command_line_forwards_until_it_is_interrupted() -> None:
    command = [*DUTYFREE, "forward", "8000", "--json", "--", "python3", "-m", "http.server", "8000", "-b", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert (said["address"], said["sandbox_port"]) == ("127.0.0.1", 8000)
        with urlopen(f"http://127.0.0.1:{said['port']}/", timeout=10) as page:
            assert b"Directory listing" in page.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0  # as http.server exits when it is interrupted
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", said["port"]))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["8000", "--", "sh", "-c", "exit 7", "--"], 7, "never listened on port 8000"),
        (["--wait", "0.5s", "8000", "--", "sleep", "20"], 2, "nothing listens on port 8000"),
        (["99999", "--", "true"], 2, "is not [LOCAL:]PORT"),
        (["a:80", "--", "true"], 2, "is not [LOCAL:]PORT"),
        (["8000"], 2, "no command"),
    ],
)
def test_the_command_line_says_what_is_wrong(arguments: list[str], code: int, words: str) -> None:
    done = subprocess.run([*DUTYFREE, "forward", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert words in done.stderr
