"""Whatever a client with a token sends, the answer is never an error of the server's own.

Over cells: the requests remove files and run commands.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dutyfree
from dutyfree.server.access import StaticAccess
from dutyfree.server.e2b import E2BApp, Settings, identity
from dutyfree.server.e2b.app import STREAMS, UNARY
from support.e2b_server import ANN, TOKENS

FIELDS = (
    *("templateID", "timeout", "metadata", "envVars", "autoPause", "autoResume", "allow_internet_access", "network"),
    *("mcp", "iam", "volumeMounts", "duration", "memory", "count", "name", "allowOut", "denyOut", "rules", "process"),
    *("cmd", "args", "envs", "cwd", "pty", "size", "rows", "cols", "stdin", "tag", "pid", "signal", "input", "path"),
    *("depth", "source", "destination", "recursive", "includeEntry", "watcherId", "enabled", "start", "data"),
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["base", "/bin/true", "/tmp", "p1", "SIGNAL_SIGKILL", "0.0.0.0/0", "example.org", "root", "AAAA"])
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=8,
)
changes = st.dictionaries(st.sampled_from(FIELDS), values, max_size=3)
"""What takes the place of fields of a valid request."""
ONE = {"process": {"pid": 1}}
VALID: dict[str, Any] = {
    "/v2/sandboxes": {"templateID": "base", "metadata": {"a": "b"}, "network": {"denyOut": ["0.0.0.0/0"]}},
    "/sandboxes/ID/timeout": {"timeout": 100},
    "/process.Process/Start": {"process": {"cmd": "/bin/sleep", "args": ["0.1"]}, "stdin": True},
    "/process.Process/Connect": ONE,
    "/process.Process/SendInput": {**ONE, "input": {"stdin": "AAAA"}},
    "/process.Process/SendSignal": {**ONE, "signal": "SIGNAL_SIGTERM"},
    "/process.Process/CloseStdin": ONE,
    "/process.Process/Update": {**ONE, "pty": {"size": {"rows": 1, "cols": 1}}},
    "/process.Process/StreamInput": {"start": ONE},
    "/filesystem.Filesystem/Move": {"source": "/tmp/a", "destination": "/tmp/b/c"},
    "/filesystem.Filesystem/GetWatcherEvents": {"watcherId": "p1"},
    **{f"/filesystem.Filesystem/{each}": {"path": "/tmp/a"} for each in ("Stat", "MakeDir", "ListDir", "Remove")},
    **{f"/filesystem.Filesystem/{each}": {"path": "/tmp"} for each in ("WatchDir", "CreateWatcher")},
}
CONTROL = [
    *((method, path) for path in ("/sandboxes", "/v2/sandboxes") for method in ("GET", "POST")),
    ("GET", "/sandboxes/metrics"),
    *(("GET", f"/sandboxes/ID{part}") for part in ("", "/metrics", "/logs")),
    *(
        ("POST", f"/sandboxes/ID/{part}")
        for part in ("timeout", "refreshes", "connect", "resume", "pause", "fork", "snapshots")
    ),
    ("PUT", "/sandboxes/ID/network"),
]
DAEMON = [("POST", path) for path in (*UNARY, *STREAMS, "/process.Process/StreamInput", "/files")]
queries = st.dictionaries(
    st.sampled_from(["state", "metadata", "limit", "nextToken", "order", "path", "username", "sandbox_ids"]),
    st.text(max_size=12).map(lambda text: "".join(f"%{byte:02x}" for byte in text.encode("utf-8", "replace"))),
    max_size=3,
)


EXPECTED = {0, 200, 201, 204, 400, 404, 405, 409, 413, 415, 429, 501, 502, 504}
"""0: the client was gone before the answer."""


async def send(app: E2BApp, method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> int:
    """One request, without a server in between. The client goes once it has its answer."""
    done = asyncio.Event()
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not sent:
            sent.append(True)
            return {"type": "http.request", "body": body}
        await asyncio.wait([asyncio.ensure_future(done.wait())], timeout=0.3)
        return {"type": "http.disconnect"}

    status = 0

    async def answer(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif not message.get("more_body"):
            done.set()

    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": pairs, "query_string": query.encode()}
    async with asyncio.timeout(20):
        await app(scope, receive, answer)
    return status


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from([*CONTROL, *DAEMON]), changes, queries), min_size=5, max_size=20))
def test_no_request_is_an_error_of_the_server(
    requests: list[tuple[tuple[str, str], dict[str, Any], dict[str, str]]],
) -> None:
    async def main() -> None:
        limits = Settings(acquire_timeout_s=0.2, max_timeout_s=100, keepalive_s=1, max_streams=5)
        async with dutyfree.local("cell", pool=dutyfree.PoolOptions(sandboxes=3)) as host:
            app = E2BApp(StaticAccess(host, TOKENS), limits)
            key = {"x-api-key": ANN}
            assert await send(app, "POST", "/v2/sandboxes", "", key, b'{"templateID":"base","timeout":100}') == 201
            [lease] = await host.find_leases(owner="ann")
            name, token = identity.sandbox_id(lease), identity.daemon_token(lease)
            for (method, path), changed, query in requests:
                body = {**VALID.get(path, {}), **changed}
                text = "&".join(f"{field}={value}" for field, value in query.items())
                data = json.dumps(body).encode()
                headers = key
                if (method, path) in DAEMON:
                    is_unary = path in UNARY
                    kind = "application/json" if is_unary else "application/connect+json"
                    headers = {"e2b-sandbox-id": name, "x-access-token": token, "content-type": kind}
                    headers |= {"connect-timeout-ms": "200"}
                    data = data if is_unary else b"\0" + struct.pack(">I", len(data)) + data
                status = await send(app, method, path.replace("ID", name), text, headers, data)
                assert status in EXPECTED, (path, body, status)

    asyncio.run(main())
