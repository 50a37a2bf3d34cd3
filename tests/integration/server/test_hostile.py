"""A whole server and clients that mean harm: clear errors, bounded memory, and it serves all others meanwhile."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import pytest

import dutyfree
from dutyfree.protocol.frames import UPGRADE_PATH, VERSION, NodeFrame, encode_plain
from dutyfree.wire.frames import encode_frame
from support.e2b_client import Raw
from support.serving import Serving, serving

MIB = 1024 * 1024
GROWTH_BYTES = 48 * MIB
"""How much more memory a process of the server may take under abuse than before."""
UPGRADE = f"GET {UPGRADE_PATH} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: dutyfree\r\n\r\n".encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("server") / "state") as server:
        yield server


@pytest.fixture(autouse=True)
def bounded(server: Serving) -> Iterator[None]:
    """Memory does not grow past a bound, no process ends, and the server serves afterwards."""
    pids, before = (server.pids("node"), server.pids("gateway")), server.rss_bytes()
    yield
    assert (server.pids("node"), server.pids("gateway")) == pids
    for what, size_bytes in server.rss_bytes().items():
        assert size_bytes - before[what] < GROWTH_BYTES, what
    assert server.raw.send("GET", "/health").body == b"ok\n"
    assert '"level": "error"' not in server.log, server.log


def native_socket(server: Serving) -> socket.socket:
    address = urlsplit(server.native)
    return socket.create_connection((address.hostname, address.port), timeout=20)


def rest_of(connection: socket.socket) -> bytes:
    """All that the server says until it closes the connection."""
    said = b""
    with suppress(ConnectionError):
        while data := connection.recv(65536):
            said += data
    return said


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 0\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding : chunked",
        "Content-Length: 0\r\nContent-Length: 35",
        "Content-Length: +0",
        "Content-Length: 0x0",
        "Content-Length: 18446744073709551617",
        "A: b\r\n continued: c",
        "A: b\r\n\tTransfer-Encoding: chunked",
        "A\x00B: c",
        "A: b\nB: c",
        "A: b\r\rB: c",
    ],
)
def test_one_request_is_never_two(server: Serving, head: str) -> None:
    request = f"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode("latin-1")
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        with suppress(ConnectionError):
            connection.sendall(request + b"0\r\n\r\n" + SMUGGLED)
            connection.shutdown(socket.SHUT_WR)
        answer = rest_of(connection)
    assert answer.count(b"HTTP/1.1 ") <= 1, answer
    assert status_of(answer) in (0, 400, 401), answer
    assert b"smuggled" not in answer


@pytest.mark.parametrize(
    "headers",
    [
        ("Host: x", "Host: 49983-y.sandbox"),
        ("Host: x", "E2b-Sandbox-Id: a", "E2b-Sandbox-Id: b"),
        ("Host: x", "E2b-Sandbox-Id: ../../etc"),
        ("Host: x", "E2b-Sandbox-Id: a", "E2b-Sandbox-Port: 0"),
        ("Host: x", "E2b-Sandbox-Id: a", "E2b-Sandbox-Port: 99999999999999999999"),
        ("Host: x", "X-API-Key: a", "X-API-Key: b"),
        ("Host: " + "x" * 70_000,),
    ],
)
def test_names_that_could_mean_two_sandboxes_are_refused(server: Serving, headers: tuple[str, ...]) -> None:
    request = "\r\n".join(("GET /sandboxes HTTP/1.1", *headers, "Connection: close", "", "")).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        with suppress(ConnectionError):
            connection.sendall(request)
        assert status_of(rest_of(connection)) in (0, 400)


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "//sandboxes//",
        "/sandboxes/%2e%2e/%2e%2e/metrics",
        "/sandboxes/..%2f..%2fmetrics",
        "/sandboxes/%00",
        "/sandboxes/%ff%fe",
        "/%73andboxes/x/%2e%2e",
        "/metrics/../sandboxes",
        "/metrics%2f",
        "/openapi.json/..",
        "/sandboxes/" + "x" * 30_000,
        "http://elsewhere/sandboxes",
        "*",
    ],
)
def test_paths_that_pretend(server: Serving, path: str) -> None:
    for token, refusals in ((None, (400, 401)), (server.token, (400, 404, 405))):
        answer = Raw(server.port, token).send("GET", path)
        is_list = path in ("//sandboxes//", "http://elsewhere/sandboxes") and token is not None
        assert answer.status in ((200, *refusals) if is_list else refusals), (path, answer)
        assert b"root:" not in answer.body


def test_bodies_of_strangers_are_not_read(server: Serving) -> None:
    """A hundred MiB for nobody: refused before the body is there, and not kept."""
    head = b"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 104857600\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(head)
        assert status_of(connection.recv(4096)) == 401
        with suppress(ConnectionError, TimeoutError):
            connection.settimeout(2)
            for _ in range(100):
                connection.sendall(bytes(MIB))


def test_bodies_past_the_limit_are_cut_off(server: Serving) -> None:
    raw = server.raw
    made = raw.create(timeout=60)
    of_sandbox = f"E2b-Sandbox-Id: {made['sandboxID']}\r\nX-Access-Token: {made['envdAccessToken']}\r\n"
    of_sandbox += "Content-Type: application/connect+json\r\n"
    for path, headers in (("/v2/sandboxes", ""), ("/process.Process/Start", of_sandbox)):
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {server.token}\r\n{headers}"
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            with suppress(ConnectionError):
                for _ in range(64):
                    connection.sendall(b"100000\r\n" + b" " * MIB + b"\r\n")
            assert status_of(connection.recv(4096)) in (400, 413)
    raw.send("DELETE", f"/sandboxes/{made['sandboxID']}")


def test_many_half_open_connections_stop_nobody(server: Serving) -> None:
    """Strangers who connect and say nothing, or half of something, on both ports."""
    beginnings = [b"", b"GET / HT", b"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1"]
    of_native = [b"", b"GET /dut", UPGRADE, UPGRADE + encode_plain(NodeFrame.HELLO, {"version": VERSION})[:9]]
    with ExitStack() as stack:
        for number in range(600):
            http = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            http.sendall(beginnings[number % len(beginnings)])
            native = stack.enter_context(native_socket(server))
            native.sendall(of_native[number % len(of_native)])
        begun_s = time.monotonic()
        assert server.raw.send("GET", "/v2/sandboxes").status == 200
        asyncio.run(_work(server))
        assert time.monotonic() - begun_s < 5


async def _work(server: Serving) -> None:
    async with dutyfree.connect(server.native, token=server.token) as host, host.lease() as box:
        assert (await box.run(["true"])).ok


def hello(token: str, **fields: object) -> bytes:
    return encode_plain(NodeFrame.HELLO, {"version": VERSION, "token": token, "caller": None, "received": 0, **fields})


def test_strangers_at_the_native_port_learn_one_thing(server: Serving) -> None:
    """All wrong tokens are refused in the same words, whatever else they say."""
    answers = set()
    for greeting in (
        hello("df_wrong"),
        hello(""),
        hello("ü" * 1000),
        hello("df_wrong", caller="0" * 32, received=12),
    ):
        with native_socket(server) as connection:
            connection.sendall(UPGRADE)
            assert b" 101 " in connection.recv(4096)
            connection.sendall(greeting)
            answers.add(rest_of(connection))
    assert len(answers) == 1
    assert b"the token is not valid" in answers.pop()


@pytest.mark.parametrize("seed", range(4))
def test_noise_at_the_native_port(server: Serving, seed: int) -> None:
    rng = random.Random(seed)
    good = hello(server.token)
    for _ in range(60):
        with native_socket(server) as connection, suppress(ConnectionError):
            connection.settimeout(0.2)
            kind = rng.randrange(5)
            if kind == 0:
                connection.sendall(rng.randbytes(rng.randrange(20_000)))
            elif kind == 1:
                connection.sendall(UPGRADE + good)  # it does not wait for the upgrade
            else:
                connection.sendall(UPGRADE)
                connection.recv(4096)
                if kind == 2:
                    connection.sendall(struct.pack("<I", 2**32 - 1) + rng.randbytes(2000))
                elif kind == 3:
                    connection.sendall(encode_plain(NodeFrame.HELLO, rng.choice([[], {}, {"version": 99}])))
                else:
                    connection.sendall(good)
                    connection.recv(4096)
                    frame = encode_frame(rng.choice(list(NodeFrame)), rng.randrange(2**31), rng.randbytes(100))
                    connection.sendall(frame + rng.randbytes(500))
            with suppress(TimeoutError):
                while connection.recv(65536):
                    pass
    asyncio.run(_work(server))


def test_websockets_that_lead_nowhere_or_say_nothing(server: Serving) -> None:
    made = server.raw.create(timeout=60)
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA\r\n"
    names = f"E2b-Sandbox-Id: {made['sandboxID']}\r\nE2b-Sandbox-Port: 8080\r\n"
    with ExitStack() as stack:
        for extra in ("", names, names + "E2b-Sandbox-Id: x\r\n", names + f"A: {'b' * 100_000}\r\n"):
            for _ in range(50):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
                with suppress(ConnectionError):
                    connection.sendall(f"GET / HTTP/1.1\r\nHost: x\r\n{upgrade}{extra}\r\n".encode() + bytes(1000))
                    answer = connection.recv(4096)
                    assert status_of(answer) in (0, 400, 404, 431, 502), answer
    server.raw.send("DELETE", f"/sandboxes/{made['sandboxID']}")


def test_two_requests_are_two(server: Serving) -> None:
    """What `test_one_request_is_never_two` would see if a server took the rest for another request."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        head = b"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
        connection.sendall(head + b"0\r\n\r\n" + SMUGGLED)
        connection.shutdown(socket.SHUT_WR)
        assert rest_of(connection).count(b"HTTP/1.1 ") == 2
