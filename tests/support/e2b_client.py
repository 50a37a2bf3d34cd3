"""A client of the E2B face that can send anything."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from support.e2b_server import ANN


@dataclass
class Answer:
    """An answer of a server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Raw:
    """A client of one gateway, with the token of one owner."""

    port: int
    token: str | None = ANN

    def send(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """One request; anything but bytes and iterators becomes JSON."""
        all_headers = {} if self.token is None else {"X-API-Key": self.token}
        if body is not None and not isinstance(body, bytes) and not hasattr(body, "__next__"):
            body, all_headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with closing(connection):
            encode = hasattr(body, "__next__")
            connection.request(method, path, body, {**all_headers, **(headers or {})}, encode_chunked=encode)
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    def create(self, **body: Any) -> dict[str, Any]:
        """A sandbox."""
        answer = self.send("POST", "/v2/sandboxes", {"templateID": "base", **body})
        assert answer.status == 201, answer
        created: dict[str, Any] = answer.json
        return created

    def daemon(self, made: dict[str, Any], path: str, body: Any = None, method: str = "POST", **headers: str) -> Answer:
        """A request to the daemon of a sandbox."""
        names = {"E2b-Sandbox-Id": made["sandboxID"], "E2b-Sandbox-Port": "49983"}
        token = {"X-Access-Token": made["envdAccessToken"]}
        return self.send(method, path, body, {**names, **token, **{k.replace("_", "-"): v for k, v in headers.items()}})

    def stream(self, made: dict[str, Any], path: str, message: Any, **headers: str) -> list[Any]:
        """A call with a stream of answers: all messages, the end included."""
        data = json.dumps(message).encode()
        kind = {"Content_Type": "application/connect+json"}
        answer = self.daemon(made, path, b"\0" + struct.pack(">I", len(data)) + data, **kind, **headers)
        assert answer.status == 200, answer
        return envelopes(answer.body)

    def run(self, made: dict[str, Any], *words: str) -> list[Any]:
        """A command, to its end."""
        message = {"process": {"cmd": words[0], "args": words[1:]}, "stdin": False}
        return self.stream(made, "/process.Process/Start", message)

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


def envelopes(body: bytes) -> list[Any]:
    """The messages of a stream."""
    found = []
    while body:
        length = int.from_bytes(body[1:5], "big")
        found.append(json.loads(body[5 : 5 + length]))
        body = body[5 + length :]
    return found
