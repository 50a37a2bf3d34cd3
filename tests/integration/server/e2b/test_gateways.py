"""Any request may reach any gateway: they keep nothing."""

from __future__ import annotations

import time
from typing import Any

from support.e2b_client import Raw
from support.e2b_server import E2BServer


def test_two_gateways_serve_one_sandbox(server: E2BServer) -> None:
    one, two = (Raw(port) for port in server.ports)
    made = one.create(metadata={"a": "b"})
    assert two.run(made, "/bin/echo", "hi")[1] == {"event": {"data": {"stdout": "aGkK"}}}
    assert two.send("GET", f"/sandboxes/{made['sandboxID']}").json["metadata"] == {"a": "b"}
    assert two.send("POST", f"/sandboxes/{made['sandboxID']}/pause", {}).status == 204
    assert one.send("GET", f"/sandboxes/{made['sandboxID']}").json["state"] == "paused"
    assert one.daemon(made, "/process.Process/List", {}).status == 502
    again = one.send("POST", f"/v2/sandboxes/{made['sandboxID']}/connect", {"timeout": 60}).json
    assert again == made
    assert two.send("DELETE", f"/sandboxes/{made['sandboxID']}").status == 204
    assert one.send("DELETE", f"/sandboxes/{made['sandboxID']}").status == 404


def test_watchers_live_with_the_sandbox(server: E2BServer, made: dict[str, Any]) -> None:
    one, two = (Raw(port) for port in server.ports)
    watcher = one.daemon(made, "/filesystem.Filesystem/CreateWatcher", {"path": "/tmp", "includeEntry": True}).json
    assert one.daemon(made, "/files?path=/tmp/new", b"x", Content_Type="application/octet-stream").status == 200
    seen: list[Any] = []
    for number in range(100):
        gateway = (one, two)[number % 2]
        seen += gateway.daemon(made, "/filesystem.Filesystem/GetWatcherEvents", watcher).json["events"]
        if any(each["name"] == "new" for each in seen):
            break
        time.sleep(0.05)
    [entry] = [each["entry"] for each in seen if each["name"] == "new" and "entry" in each][:1]
    assert (entry["path"], entry["size"]) == ("/tmp/new", "1")
    listed = two.daemon(made, "/process.Process/List", {}).json
    assert listed == {"processes": []}
    assert two.daemon(made, "/filesystem.Filesystem/RemoveWatcher", watcher).status == 200
    assert one.daemon(made, "/filesystem.Filesystem/GetWatcherEvents", watcher).json["code"] == "not_found"


def test_a_process_is_reached_through_every_gateway(server: E2BServer, made: dict[str, Any]) -> None:
    one, two = (Raw(port) for port in server.ports)
    message = {"process": {"cmd": "/bin/cat"}, "stdin": True}
    timed = one.stream(made, "/process.Process/Start", message, Connect_Timeout_Ms="300")
    assert timed[0] == {"event": {"start": {"pid": 1}}}
    assert timed[-1]["error"]["code"] == "deadline_exceeded"
    begun_s = time.monotonic()
    while two.daemon(made, "/process.Process/SendInput", {"process": {"pid": 1}, "input": {}}).status != 404:
        assert time.monotonic() - begun_s < 10, "the timeout of the client has not killed the command"
