"""Tokens, and that an owner learns nothing of another's sandboxes."""

from __future__ import annotations

from typing import Any

import pytest

from support.e2b_client import Raw
from support.e2b_server import BOB, E2BServer

OF_ONE = [
    ("GET", ""),
    ("DELETE", ""),
    ("POST", "/timeout"),
    ("POST", "/refreshes"),
    ("POST", "/connect"),
    ("POST", "/resume"),
    ("POST", "/pause"),
    ("POST", "/fork"),
    ("POST", "/snapshots"),
    ("PUT", "/network"),
    ("GET", "/metrics"),
    ("GET", "/logs"),
]


@pytest.mark.parametrize("token", [None, "", "e2b_wrong", "ü", "x" * 5000])
def test_nothing_but_health_without_a_token(token: str | None, server: E2BServer) -> None:
    raw = Raw(server.ports[0], None)
    headers = {} if token is None else {"X-API-Key": token.encode("utf-8").decode("latin-1")}
    assert raw.send("GET", "/health").status == 204
    for method, path in (
        ("POST", "/v2/sandboxes"),
        ("GET", "/v2/sandboxes"),
        ("GET", "/sandboxes/x"),
        ("GET", "/templates"),
        ("GET", "/nothing"),
        ("GET", "/"),
    ):
        answer = raw.send(method, path, headers=headers)
        assert (answer.status, answer.json["code"]) == (401, 401), (method, path)


@pytest.mark.parametrize(("method", "what"), OF_ONE)
def test_other_owners_ids_do_not_exist(method: str, what: str, server: E2BServer, made: dict[str, Any]) -> None:
    bob = Raw(server.ports[0], BOB)
    body = {"timeout": 60} if method in ("POST", "PUT") else None
    own = bob.send(method, f"/sandboxes/{made['sandboxID']}{what}", body)
    unknown = made["sandboxID"].replace(made["sandboxID"][:4], "0000", 1)
    other = bob.send(method, f"/sandboxes/{unknown}{what}", body)
    assert own.status == other.status == 404
    assert own.json["message"].replace(made["sandboxID"], unknown) == other.json["message"]
    assert own.headers.keys() == other.headers.keys()


def test_an_id_that_is_guessed_from_the_lease_does_not_exist(raw: Raw, made: dict[str, Any]) -> None:
    guessed = made["sandboxID"].rpartition("-")[0] + "-" + "0" * 16
    assert raw.send("GET", f"/sandboxes/{guessed}").status == 404
    assert raw.send("GET", "/health", headers={"E2b-Sandbox-Id": guessed}).status == 502
    assert raw.send("GET", "/", headers={"Host": f"8000-{guessed}.x"}).status == 502


def test_lists_have_the_owners_sandboxes_alone(server: E2BServer, made: dict[str, Any]) -> None:
    bob = Raw(server.ports[0], BOB)
    assert bob.send("GET", "/v2/sandboxes").json == []
    assert bob.send("GET", f"/sandboxes/metrics?sandbox_ids={made['sandboxID']}").json == {"sandboxes": {}}
    assert made["sandboxID"] in [each["sandboxID"] for each in Raw(server.ports[0]).send("GET", "/sandboxes").json]


def test_the_daemon_needs_the_token_of_its_sandbox(raw: Raw, made: dict[str, Any]) -> None:
    other = raw.create()
    wrong = {**made, "envdAccessToken": other["envdAccessToken"]}
    for token in (other["envdAccessToken"], "", "x"):
        for path in ("/process.Process/List", "/filesystem.Filesystem/Stat", "/files?path=/etc/passwd", "/nothing"):
            assert raw.daemon({**made, "envdAccessToken": token}, path, {}).status == 401
    assert raw.daemon(wrong, "/files?path=/etc/passwd", method="GET").status == 401
    assert raw.daemon(wrong, "/files?path=/etc/passwd&signature=v1_x", method="GET").status == 401
    assert raw.daemon(made, "/process.Process/List", {}).json == {"processes": []}
    raw.send("DELETE", f"/sandboxes/{other['sandboxID']}")


def test_native_leases_are_not_sandboxes_of_this_face(raw: Raw, made: dict[str, Any]) -> None:
    lease_id = made["sandboxID"].rpartition("-")[0]
    assert raw.send("GET", f"/sandboxes/{lease_id}").status == 404
    assert raw.send("DELETE", f"/sandboxes/{lease_id}").status == 404


def test_an_api_key_as_a_bearer_token(server: E2BServer) -> None:
    raw = Raw(server.ports[0], None)
    assert raw.send("GET", "/v2/sandboxes", headers={"Authorization": "Bearer " + BOB}).status == 200
    assert raw.send("GET", "/v2/sandboxes", headers={"Authorization": "Basic " + BOB}).status == 401
