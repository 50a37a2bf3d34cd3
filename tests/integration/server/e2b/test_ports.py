"""Ports of sandboxes through the gateway: HTTP, bodies of any length, WebSockets, tokens."""

from __future__ import annotations

import time
from typing import Any

import pytest

from support.e2b_client import Raw

ECHO = r"""
import http.server, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size); self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(201); self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close"); self.send_header("X-Seen", ",".join(sorted(self.headers)).lower())
        self.end_headers()
        for at in range(0, len(body), 1000):
            piece = body[at:at + 1000]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")
    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            while data := self.connection.recv(1000):
                self.wfile.write(data.upper())
        elif self.path == "/broken":
            self.wfile.write(b"this is no HTTP\r\n\r\n")
        elif self.path == "/nothing":
            pass
        else:
            data = (self.path + " " + self.headers["Host"]).encode()
            self.send_response(200); self.send_header("Content-Length", str(len(data))); self.end_headers()
            self.wfile.write(data)
        self.close_connection = True
    def log_message(self, *_): pass
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
Server(("127.0.0.1", 8000), Handler).serve_forever()
"""


@pytest.fixture
def echo(raw: Raw, made: dict[str, Any]) -> dict[str, Any]:
    """A sandbox with a server on port 8000."""
    serve(raw, made)
    return made


def serve(raw: Raw, made: dict[str, Any]) -> None:
    assert (
        raw.daemon(made, "/files?path=/tmp/echo.py", ECHO.encode(), Content_Type="application/octet-stream").status
        == 200
    )
    raw.run(made, "/bin/sh", "-c", "python3 /tmp/echo.py >/tmp/log 2>&1 &")
    end_s = time.monotonic() + 20
    while raw.run(made, "/bin/bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8000")[-2]["event"]["end"].get("exitCode"):
        assert time.monotonic() < end_s
        time.sleep(0.05)


def by_name(made: dict[str, Any], **more: str) -> dict[str, str]:
    return {"Host": f"8000-{made['sandboxID']}.sandbox.test", **more}


def test_requests_by_name_and_by_header(raw: Raw, echo: dict[str, Any]) -> None:
    raw = Raw(raw.port, None)
    host = by_name(echo)["Host"]
    answer = raw.send("GET", "/a%20b?c=d", headers=by_name(echo))
    assert (answer.status, answer.body) == (200, f"/a%20b?c=d {host}".encode())
    answer = raw.send("GET", "/x", headers={"E2b-Sandbox-Id": echo["sandboxID"], "E2b-Sandbox-Port": "8000"})
    assert (answer.status, answer.body.split()[0]) == (200, b"/x")


def test_bodies_of_any_length_both_ways(raw: Raw, echo: dict[str, Any]) -> None:
    data = bytes(range(256)) * 4000
    answer = raw.send("POST", "/", data, by_name(echo))
    assert (answer.status, answer.body == data) == (201, True)
    answer = raw.send("POST", "/", iter([data, data]), by_name(echo))
    assert answer.body == data + data
    assert raw.send("POST", "/", b"", by_name(echo)).body == b""


def test_headers_of_one_connection_are_not_passed_on(raw: Raw, echo: dict[str, Any]) -> None:
    names = {"Connection": "x-hop", "X-Hop": "1", "X-End": "1", "TE": "trailers", "E2b-Traffic-Access-Token": "t"}
    seen = raw.send("POST", "/", b"x", by_name(echo, **names)).headers["x-seen"].split(",")
    assert "x-end" in seen
    assert not {"x-hop", "te", "e2b-traffic-access-token"} & set(seen)


@pytest.mark.parametrize("path", ["/broken", "/nothing"])
def test_programs_that_speak_no_http(path: str, raw: Raw, echo: dict[str, Any]) -> None:
    assert raw.send("GET", path, headers=by_name(echo)).status == 502


def test_a_port_on_which_nothing_listens(raw: Raw, made: dict[str, Any]) -> None:
    answer = raw.send("GET", "/", headers=by_name(made))
    assert answer.status == 502
    assert "port is not open" in answer.json["message"]


def upgrade(raw: Raw, host: str, *lines: str) -> bytes:
    with raw.connect() as connection:
        head = f"GET /chat HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        head += "Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n" + "".join(f"{line}\r\n" for line in lines)
        connection.sendall(f"{head}\r\n".encode())
        answer = connection.recv(1000)
        if b" 101 " in answer:
            for _ in range(3):
                connection.sendall(b"hello")
                assert connection.recv(100) == b"HELLO"
        return answer


def test_websockets_are_passed_on_byte_by_byte(raw: Raw, echo: dict[str, Any]) -> None:
    assert b" 101 " in upgrade(raw, by_name(echo)["Host"])


def test_websockets_to_nowhere(raw: Raw, made: dict[str, Any]) -> None:
    assert b" 502 " in upgrade(raw, by_name(made)["Host"])
    assert b" 502 " in upgrade(raw, "8000-nothing.sandbox.test")
    assert b" 404 " in upgrade(raw, "localhost")
    assert b" 404 " in upgrade(raw, f"49983-{made['sandboxID']}.sandbox.test")
    assert b" 400 " in upgrade(raw, "localhost", "E2b-Sandbox-Id: ../..")


def test_ports_that_need_a_token(raw: Raw) -> None:
    made = raw.create(network={"allowPublicTraffic": False})
    serve(raw, made)
    for token in ("", "x", made["envdAccessToken"]):
        assert raw.send("GET", "/", headers=by_name(made, **{"E2b-Traffic-Access-Token": token})).status == 403
    allowed = by_name(made, **{"E2b-Traffic-Access-Token": made["trafficAccessToken"]})
    assert raw.send("GET", "/", headers=allowed).status == 200
    host = by_name(made)["Host"]
    assert b" 403 " in upgrade(raw, host)
    assert b" 101 " in upgrade(raw, host, f"E2b-Traffic-Access-Token: {made['trafficAccessToken']}")
    raw.send("DELETE", f"/sandboxes/{made['sandboxID']}")
