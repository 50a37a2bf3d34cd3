"""What the E2B face costs, through E2B's own SDK: `commands.run("true")` and a creation from a warm pool.

    python benchmarks/e2b_face.py [--rounds 200] [--url URL --key TOKEN] [--json]

In one interleaved run: the face over cells; a stub that answers every call at once, for the cost of the SDK and of
HTTP; and a bare `bash -l -c true` with the environment of a cell. Server and stub are processes of their own. Prints
numbers and asserts none. With `--url`, a server that runs already takes the place of the face in one process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import uvicorn

import dutyfree
from dutyfree.server.access import StaticAccess
from dutyfree.server.e2b import E2BApp
from dutyfree.server.e2b.connect import encode, encode_end
from dutyfree.server.listening import http_config

KEY = f"e2b_{'a' * 40}"
WARM = 24
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/nowhere",
    "LANG": "C.UTF-8",
}
"""A cell does not see the home of its host."""
STREAM = b"".join(
    [
        encode({"event": {"start": {"pid": 1}}}),
        encode({"event": {"end": {"exitCode": 0, "exited": True, "status": "exit status 0"}}}),
        encode_end(),
    ]
)
MADE = json.dumps(
    {"sandboxID": "stub", "templateID": "base", "clientID": "x", "envdVersion": "0.6.4", "envdAccessToken": "x"}
).encode()


async def stub(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    is_start = scope["path"] == "/process.Process/Start"
    is_creation = scope["path"] == "/v2/sandboxes"
    kind = b"application/connect+json" if is_start else b"application/json"
    status = 201 if is_creation else 200 if is_start else 204
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": STREAM if is_start else MADE if is_creation else b""})


async def serve(what: str) -> None:
    """Serve on a free port, which is printed, until standard input ends."""
    async with dutyfree.local(pool=dutyfree.PoolOptions(sandboxes=64)) as host:
        app = E2BApp(StaticAccess(host, {KEY: "ann"}))
        if what == "face":
            await host.pool.announce([(None, WARM)], name="warm", lasting_s=3600)
            await host.pool.ready()
        config = http_config(
            stub if what == "stub" else app, host="127.0.0.1", port=0, log_level="error", lifespan="off"
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        server.should_exit = True
        await serving


def timed_ms(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start_s = time.perf_counter()
    call()
    return (time.perf_counter() - start_s) * 1e3


def run_bash() -> None:
    """What each command of the SDK is, without a sandbox."""
    subprocess.run(["/bin/bash", "-l", "-c", "true"], check=True, env=ENVIRONMENT, cwd="/")


def cpu_s(process: subprocess.Popen[str]) -> float:
    """Processor time of a server so far, without its sandboxes."""
    with open(f"/proc/{process.pid}/stat") as file:  # noqa: PTH123
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--url", help="of a server that runs (`dutyfree serve`)")
    parser.add_argument("--key", help="a token of it")
    parser.add_argument("--serve", choices=("face", "stub"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
        return
    from e2b import Sandbox

    command = [sys.executable, "-W", "ignore", __file__, "--serve"]
    servers, clients = {}, {}
    if options.url:
        clients["face"] = {"api_url": options.url, "sandbox_url": options.url, "api_key": options.key}
    for name in ("stub",) if options.url else ("face", "stub"):
        servers[name] = subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        out = servers[name].stdout
        assert out is not None
        url = f"http://127.0.0.1:{int(out.readline())}"
        clients[name] = {"api_url": url, "sandbox_url": url, "api_key": KEY}
    boxes = {name: Sandbox.create(**each) for name, each in clients.items()}
    for box in boxes.values():
        for _ in range(20):
            box.commands.run("true")
    times: dict[str, list[float]] = {}
    before_s = cpu_s(servers["face"]) if "face" in servers else 0.0
    for _ in range(options.rounds):
        for name, box in boxes.items():
            start_s = time.perf_counter()
            box.commands.run("true")
            times.setdefault(f"run_{name}", []).append((time.perf_counter() - start_s) * 1e3)
        times.setdefault("bare_bash", []).append(timed_ms(run_bash))
    after_s = cpu_s(servers["face"]) if "face" in servers else 0.0
    for _ in range(options.rounds // 4):
        for name, each in clients.items():
            start_s = time.perf_counter()
            made = Sandbox.create(**each)
            times.setdefault(f"create_{name}", []).append((time.perf_counter() - start_s) * 1e3)
            made.kill()
        time.sleep(0.05)  # the pool makes the next one
    for server in servers.values():
        server.communicate()
    p50 = {name: round(statistics.median(each), 3) for name, each in times.items()}
    found = {
        **{f"{name}_p50_ms": each for name, each in p50.items()},
        **{f"{name}_p99_ms": round(statistics.quantiles(each, n=100)[98], 3) for name, each in times.items()},
        "run_over_stub_and_bash": round(p50["run_face"] / (p50["run_stub"] + p50["bare_bash"]), 2),
        "create_over_stub": round(p50["create_face"] / p50["create_stub"], 2),
        **({"server_cpu_ms_per_run": round((after_s - before_s) * 1e3 / options.rounds, 3)} if after_s else {}),
    }
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
