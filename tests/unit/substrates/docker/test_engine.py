"""Finding an engine, understanding its refusals, and taking over its connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from dutyfree.errors import (
    CapacityError,
    DutyfreeError,
    GuestMisbehaved,
    InvalidRequest,
    SubstrateFailed,
    SubstrateUnavailable,
    Unsupported,
)
from dutyfree.substrates.docker import DockerSubstrate, GVisorDockerSubstrate
from dutyfree.substrates.docker.address import Address, candidates, parse
from dutyfree.substrates.docker.failures import EngineRefused, failure
from dutyfree.substrates.docker.hijack import MAX_HEAD_BYTES, hijack


def test_addresses() -> None:
    assert parse("unix:///run/docker.sock") == Address(path="/run/docker.sock")
    assert parse("tcp://127.0.0.1", {}) == Address(host="127.0.0.1", port=2375)
    assert parse("tcp://[::1]:99", {}).url == "tcp://[::1]:99"


@pytest.mark.parametrize(
    "url", ["ssh://host", "https://host", "npipe:////./pipe/docker", "docker.sock", "tcp://host:port", "unix://", ""]
)
def test_addresses_that_cannot_be_used(url: str) -> None:
    with pytest.raises(SubstrateUnavailable):
        parse(url, {})


def test_an_engine_behind_tls_is_refused_with_a_way_out() -> None:
    with pytest.raises(SubstrateUnavailable, match=r"TLS.*ssh -L"):
        parse("tcp://host:2376", {"DOCKER_TLS_VERIFY": "1"})


def test_where_to_look() -> None:
    assert candidates({"DOCKER_HOST": "unix:///a"}) == [Address(path="/a")]
    places = [each.path for each in candidates({"XDG_RUNTIME_DIR": "/run/user/7"})]
    assert places == ["/var/run/docker.sock", "/run/user/7/podman/podman.sock", "/run/podman/podman.sock"]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("write /var/lib/docker/x: no space left on device", CapacityError),
        ("fork/exec /proc/self/exe: resource temporarily unavailable", CapacityError),
        ("No such image: nowhere:latest", InvalidRequest),
        ("manifest for app:9 not found: manifest unknown", InvalidRequest),
        ("pull access denied for x, repository does not exist or may require 'docker login'", InvalidRequest),
        ("Get https://registry-1.docker.io/v2/: dial tcp: lookup registry-1.docker.io: no such host", SubstrateFailed),
        ("invalid reference format", InvalidRequest),
        ("exec /.dutyfree/guest: exec format error", InvalidRequest),
        ("max depth exceeded", InvalidRequest),
        ("unable to find user nobody: no matching entries in passwd file", InvalidRequest),
        ("Unknown runtime specified runsc", SubstrateUnavailable),
        ("network bridge not found", Unsupported),
        ('Conflict. The container name "/a" is already in use by container "b"', SubstrateFailed),
        ("something else entirely", SubstrateFailed),
        ("", SubstrateFailed),
    ],
)
def test_what_engines_say_names_the_party(said: str, kind: type[DutyfreeError]) -> None:
    error = failure("do it", said)
    assert type(error) is kind
    assert str(error).startswith("the engine did not do it")


def test_an_engines_words_are_quoted_as_far_as_they_print_and_no_further() -> None:
    error = failure("do it", "\x1b[2J" + "x" * 5000)
    assert "\x1b" not in str(error)
    assert len(str(error)) < 600


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@asynccontextmanager
async def answering(path: Path, answer: bytes, *, hangs_up: bool = True) -> AsyncIterator[Address]:
    """An engine that gives this answer to whatever it is asked."""

    talks: set[asyncio.Task[None] | None] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in (answer[at : at + 7] for at in range(0, len(answer), 7)):
                writer.write(piece)
                await writer.drain()
            if not hangs_up:
                await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_unix_server(talk, path)
    async with server:
        yield Address(path=str(path))
        await asyncio.sleep(0)
        await asyncio.gather(*(each for each in talks if each is not None))


@pytest.mark.parametrize("status", ["101 UPGRADED", "200 OK"])
async def test_a_connection_that_is_taken_over_begins_with_the_streams_first_byte(
    socket_path: Path, status: str
) -> None:
    answer = f"HTTP/1.1 {status}\r\nConnection: Upgrade\r\n\r\nfirst bytes".encode()
    async with answering(socket_path, answer) as address:
        stream = await hijack(address, "/containers/x/attach?stream=1")
        with stream:
            stream.settimeout(5)
            loop = asyncio.get_running_loop()
            stream.setblocking(False)
            said = b""
            while data := await loop.sock_recv(stream, 100):
                said += data
    assert said == b"first bytes"


async def test_a_refusal_gives_the_engines_words(socket_path: Path) -> None:
    body = json.dumps({"message": "No such container: x"}).encode()
    answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    async with answering(socket_path, answer, hangs_up=False) as address:
        with pytest.raises(EngineRefused, match=r"^No such container: x$") as caught:
            await hijack(address, "/exec/x/start", {"Tty": False})
    assert caught.value.status == 404


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"x" * 2 * MAX_HEAD_BYTES])
async def test_what_is_no_answer(socket_path: Path, answer: bytes) -> None:
    async with answering(socket_path, answer) as address:
        with pytest.raises(GuestMisbehaved):
            await hijack(address, "/")


async def test_an_engine_that_hangs_up(socket_path: Path) -> None:
    async with answering(socket_path, b"HTTP/1.1 101 UPGR") as address:
        with pytest.raises(ConnectionResetError):
            await hijack(address, "/")


async def test_no_engine(socket_path: Path) -> None:
    pytest.importorskip("aiodocker")
    with pytest.raises(SubstrateUnavailable, match=r"no engine answers.*hint: start dockerd"):
        await DockerSubstrate(host=f"unix://{socket_path}").open()


@pytest.mark.parametrize("substrate", [DockerSubstrate, GVisorDockerSubstrate])
@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"220 mail ready\r\n", b""])
async def test_something_else_listens_there(socket_path: Path, substrate: type[DockerSubstrate], answer: bytes) -> None:
    pytest.importorskip("aiodocker")
    async with answering(socket_path, answer) as address:
        with pytest.raises(SubstrateUnavailable, match="not a Docker engine"):
            await substrate(host=address.url).open()


async def test_an_engine_that_is_too_old_is_told_so(socket_path: Path) -> None:
    pytest.importorskip("aiodocker")
    body = b'{"ApiVersion": "1.24", "Version": "1.12"}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with answering(socket_path, head + body) as address:
        with pytest.raises(SubstrateUnavailable, match="too old"):
            await DockerSubstrate(host=address.url).open()


def test_a_name_that_our_store_does_not_have_is_the_engines(tmp_path: Path) -> None:
    substrate = DockerSubstrate(store=tmp_path)
    substrate.store.open()
    assert substrate.named_image("debian:12").reference == "debian:12"
    with pytest.raises(InvalidRequest):
        substrate.named_image("not a name")
    assert substrate.has_default_image
