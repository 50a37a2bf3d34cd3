"""Bodies, envelopes, paths and headers that mean harm: clear errors, and the server goes on."""

from __future__ import annotations

import gzip
import json
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import dutyfree
from dutyfree.server import listening
from dutyfree.server.e2b import Settings
from support.e2b_client import Raw
from support.e2b_server import ANN, e2b_server

STREAM = {"Content_Type": "application/connect+json"}
START = "/process.Process/Start"


def envelope(data: bytes, flags: int = 0, length: int | None = None) -> bytes:
    return bytes([flags]) + struct.pack(">I", len(data) if length is None else length) + data


@pytest.fixture(scope="module")
def small() -> Iterator[Raw]:
    """A server with small limits, and a pool with places for two."""
    settings = Settings(
        max_json_bytes=10_000,
        max_upload_bytes=100_000,
        memory_file_bytes=10_000,
        idle_timeout_s=0.5,
        acquire_timeout_s=0.3,
        max_streams=3,
        max_timeout_s=600,
        relay_idle_timeout_s=1.0,
    )
    with e2b_server(settings, pool=dutyfree.PoolOptions(sandboxes=2)) as server:
        yield Raw(server.ports[0])


@pytest.fixture
def one(small: Raw) -> Iterator[dict[str, Any]]:
    created = small.create()
    yield created
    small.send("DELETE", f"/sandboxes/{created['sandboxID']}")


def test_a_full_server_says_when_to_come_back(small: Raw, one: dict[str, Any]) -> None:
    other = small.create()
    answer = small.send("POST", "/v2/sandboxes", {"templateID": "base"})
    assert answer.status == 429
    assert answer.headers["should-retry"] == "true"
    assert int(answer.headers["retry-after"]) >= 1
    small.send("DELETE", f"/sandboxes/{other['sandboxID']}")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0",
        envelope(b"{}", flags=1),
        envelope(b"{}", flags=0x40),
        envelope(b"{}", length=2**32 - 1),
        envelope(b"{}", length=3),
        envelope(b"[]"),
        envelope(b"{}") * 2,
        envelope(b"{}"),
        envelope(b'{"process":{}}'),
        envelope(b'{"process":{"cmd":7}}'),
        envelope(b'{"process":{"cmd":"x","args":"y"}}'),
        envelope(b'{"process":{"cmd":"x","envs":{"A":1}}}'),
        envelope(b'{"process":{"cmd":"x","cwd":[]}}'),
        envelope(b'{"process":{"cmd":"x"},"pty":{"size":{"rows":0}}}'),
        envelope(b'{"process":{"cmd":"x"},"pty":7}'),
        envelope(b'{"process":{"cmd":"x"},"tag":"t"}'),
        envelope(b'{"process":{"cmd":"a\\u0000b"}}'),
    ],
)
def test_envelopes(body: bytes, small: Raw, one: dict[str, Any]) -> None:
    answer = small.daemon(one, START, body, **STREAM)
    if answer.status == 200:
        assert answer.body[0] == 2
        assert json.loads(answer.body[5:])["error"]["code"] in ("invalid_argument", "unimplemented")
    else:
        assert answer.status == 400, answer


def test_bodies_past_the_limits(small: Raw, one: dict[str, Any]) -> None:
    assert small.send("POST", "/v2/sandboxes", {"x": "y" * 20_000}).status == 413
    assert small.daemon(one, START, envelope(b"{}", length=9_000) + b" " * 20_000, **STREAM).status == 413
    assert (
        small.daemon(one, "/files?path=/tmp/a", b"x" * 200_000, Content_Type="application/octet-stream").status == 413
    )
    octets = {"Content_Type": "application/octet-stream"}
    bomb = gzip.compress(b"\0" * 5_000_000)
    packed = {**octets, "Content_Encoding": "gzip"}
    assert small.daemon(one, "/files?path=/tmp/a", bomb, **packed).status == 413
    assert small.daemon(one, "/files?path=/tmp/a", b"no gzip", **packed).status == 400
    assert small.daemon(one, "/files?path=/tmp/a", b"", **{**packed, "Content_Encoding": "br"}).status == 415
    assert small.daemon(one, "/files?path=/tmp/a", b"x" * 50_000, **octets).status == 200
    assert len(small.daemon(one, "/files?path=/tmp/a", method="GET").body) == 50_000


def test_a_client_that_stalls_is_cut_off(small: Raw, one: dict[str, Any]) -> None:
    with small.connect() as connection:
        head = f"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: {ANN}\r\nContent-Length: 100\r\n\r\nx"
        connection.sendall(head.encode())
        begun_s = time.monotonic()
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")
        assert time.monotonic() - begun_s < 10


def test_streams_are_bounded_and_free_their_places(small: Raw, one: dict[str, Any]) -> None:
    body = envelope(json.dumps({"process": {"cmd": "/bin/sleep", "args": ["100"]}, "stdin": False}).encode())
    head = f"POST {START} HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: {one['sandboxID']}\r\nE2b-Sandbox-Port: 49983\r\n"
    head += f"X-Access-Token: {one['envdAccessToken']}\r\nContent-Type: application/connect+json\r\n"
    head += f"Keepalive-Ping-Interval: 1\r\nContent-Length: {len(body)}\r\n\r\n"
    connections = [small.connect() for _ in range(3)]
    for each in connections:
        each.sendall(head.encode() + body)
        assert b"200 OK" in each.recv(1000)
    refused = small.daemon(one, START, body, **STREAM)
    assert (refused.status, refused.headers["should-retry"]) == (429, "true")
    seen = b""
    while b"keepalive" not in seen:
        seen += connections[0].recv(1000)
    for each in connections:
        each.close()
    for _ in range(100):
        if len(small.daemon(one, "/process.Process/List", {}).json["processes"]) == 3:
            answer = small.daemon(one, START, envelope(b'{"process":{"cmd":"/bin/true"},"stdin":false}'), **STREAM)
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise AssertionError("the places of streams whose clients went are not freed")


@pytest.mark.parametrize("path", ["", "\0", "a\0b", "x" * 5000])
def test_paths_that_are_none(path: str, small: Raw, one: dict[str, Any]) -> None:
    for call in ("Stat", "MakeDir", "ListDir", "Remove"):
        answer = small.daemon(one, f"/filesystem.Filesystem/{call}", {"path": path})
        assert (answer.status, answer.json["code"]) == (400, "invalid_argument")


def test_paths_stay_in_the_sandbox(small: Raw, one: dict[str, Any]) -> None:
    tricks = "/tmp/../../../../../../etc/hostname"
    inside = small.daemon(one, "/files?path=/etc/hostname", method="GET")
    assert small.daemon(one, f"/files?path={tricks}", method="GET").body == inside.body
    assert small.daemon(one, "/filesystem.Filesystem/Remove", {"path": "/tmp/.."}).status == 400
    assert small.daemon(one, "/filesystem.Filesystem/Stat", {"path": "/tmp//a/./.."}).json["entry"]["path"] == "/tmp"


@pytest.mark.parametrize(
    "head",
    [
        "GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        f"GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: a\r\nX-API-Key: {ANN}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: a\r\nE2b-Sandbox-Id: b\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: x\r\nX-API-Key: {ANN}\r\nA: " + "b" * 200_000 + "\r\n\r\n",
        "NONSENSE\r\n\r\n",
    ],
)
def test_requests_that_could_mean_two_things_are_refused(head: str, small: Raw) -> None:
    with small.connect() as connection:
        try:
            connection.sendall(head.encode())
            answer = connection.recv(2000)
        except ConnectionError:
            answer = b""
    assert answer == b"" or answer.split()[1] in (b"400", b"431"), answer
    assert small.send("GET", "/health").status == 204


def test_a_head_that_never_ends_is_cut_off(small: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HEAD_TIMEOUT_S", 0.5)
    for first in (b"", b"GET /health HTTP/1.1\r\nA: b"):
        with small.connect() as connection:
            connection.sendall(first)
            assert connection.recv(100) == b""
    with small.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 204")
        time.sleep(1)
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 204")
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        assert connection.recv(100) == b""
    with small.connect() as connection, suppress(ConnectionError):
        connection.sendall(b"GET / HTTP/1.1\r\nA: ")
        for _ in range(100):
            connection.sendall(b"b" * 10_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_what_is_not_there_says_so(small: Raw, one: dict[str, Any]) -> None:
    for path in ("/templates", "/v3/templates", "/volumes", "/secrets", "/snapshots", "/templates/aliases/x"):
        answer = small.send("GET", path)
        assert answer.status == 501, path
        assert len(answer.json["message"]) > 20
    assert small.send("GET", "/nothing").status == 404
    assert small.send("PATCH", f"/sandboxes/{one['sandboxID']}").status == 405
    assert small.send("GET", f"/sandboxes/{one['sandboxID']}/nothing").status == 404
    assert small.send("PUT", "/v2/sandboxes", {}).status == 405
    assert small.send("GET", "/sandboxes/..%2f..%2fetc").status == 400
    assert small.daemon(one, "/process.Process/Nothing", {}).status == 404
    assert small.daemon(one, "/process.Process/List", b"{}", Content_Type="application/proto").status == 415
    assert small.daemon(one, START, b"{}", Content_Type="application/json").status == 415
    assert small.daemon(one, "/process.Process/List", method="GET").status == 405
    assert small.daemon(one, "/files?path=a&path=b", method="GET").status == 400
    assert small.daemon(one, "/files?path=/tmp/x", b"", X_Metadata_A="b").status == 501


def test_users_that_are_none(small: Raw, one: dict[str, Any]) -> None:
    for user in ("bm9zdWNo", "!!!", "/w==", "YTpi"):
        answer = small.daemon(one, "/filesystem.Filesystem/Stat", {"path": "/"}, Authorization=f"Basic {user}")
        assert answer.status == 400, (user, answer)
