"""The life of a server: one for each directory, drained at its end, with TLS, and with logs that tell no secrets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import dutyfree
from dutyfree.testing import leaks
from support.serving import dutyfree as command
from support.serving import serving

SERVE = ("serve", "--native", "127.0.0.1:0", "--http", "")
SECRET = "hunter2-is-a-secret"


async def test_a_second_server_on_the_same_directory_or_socket_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        async with dutyfree.connect(server.native, token=server.token) as host, host.lease() as box:
            other = ("--socket", str(tmp_path / "socket"), "--directory", str(server.directory))
            refused = command(*SERVE, *other, code=2)
            assert f"another server uses '{server.directory}'" in refused.stderr
            assert "--directory" in refused.stderr
            other = ("--socket", server.socket, "--directory", str(tmp_path / "other"))
            refused = command(*SERVE, *other, code=2)
            assert f"cannot listen on {server.socket}: Address already in use" in refused.stderr
            assert (await box.run(["true"])).ok
            assert [each.id for each in await host.find_leases()] == [box.lease.id]
        async with dutyfree.connect(f"unix:{server.socket}") as host:
            assert host.substrate == "cell"


async def test_a_stop_lets_leases_of_both_faces_finish_and_gives_out_no_more(tmp_path: Path) -> None:
    before = leaks.snapshot()
    with serving(tmp_path / "state", drain="25s") as server:
        nodes = server.pids("node")
        raw = server.raw
        async with dutyfree.connect(server.native, token=server.token) as host:
            box = await host.acquire()
            made = raw.create(timeout=60)
            server.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.5)
            with pytest.raises(dutyfree.CapacityError, match="about to stop") as full:
                await host.acquire()
            assert full.value.retry_after_s
            refused = raw.send("POST", "/v2/sandboxes", {"templateID": "base"})
            assert (refused.status, refused.headers["should-retry"]) == (429, "true")
            assert int(refused.headers["retry-after"]) >= 1
            assert (await box.run("echo still here")).stdout == b"still here\n"
            assert raw.run(made, "/bin/true")
            assert raw.send("DELETE", f"/sandboxes/{made['sandboxID']}").status == 204
            await box.close()
            assert await asyncio.to_thread(server.process.wait, 10) == 0
    assert not [each for each in await leaks.settle(before, 5.0, hosts=nodes) if "descriptor" not in each]


async def test_a_killed_supervisor_takes_everything_along(tmp_path: Path) -> None:
    before = leaks.snapshot()
    with serving(tmp_path / "state", drain="25s") as server:
        nodes = server.pids("node")
        async with dutyfree.connect(server.native, token=server.token) as host:
            await host.acquire(ttl_s=600)
            server.process.kill()
            server.process.wait(5)
            assert not [each for each in await leaks.settle(before, 5.0, hosts=nodes) if "descriptor" not in each]
            with serving(tmp_path / "state"):  # nobody holds the directory
                pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate authority of our own, and a certificate for this machine's loopback."""
    place = tmp_path_factory.mktemp("certificates")
    for arguments in (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout ca.key -out ca.pem -days 2 "
        "-subj /CN=authority -addext keyUsage=critical,keyCertSign",
        "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out request.pem -subj /CN=node",
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -out certificate.pem -extfile names",
    ):
        (place / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        subprocess.run(["openssl", *arguments.split()], cwd=place, check=True, capture_output=True)
    return place


def read(url: str, context: ssl.SSLContext) -> bytes:
    with urllib.request.urlopen(url, timeout=10, context=context) as answer:
        content: bytes = answer.read()
        return content


async def test_tls_on_both_ports(tmp_path: Path, certificates: Path) -> None:
    config = f'[server]\ncertificate = "{certificates}/certificate.pem"\nkey = "{certificates}/key.pem"\n'
    authority = certificates / "ca.pem"
    with serving(tmp_path / "state", config=config) as server:
        assert server.native.startswith("https://")
        assert server.http.startswith("https://")
        async with (
            dutyfree.connect(server.native, token=server.token, ca_file=authority) as host,
            host.lease() as box,
        ):
            assert (await box.run("echo private")).stdout == b"private\n"
        trusting = ssl.create_default_context(cafile=authority)
        assert await asyncio.to_thread(read, f"{server.http}/health", trusting) == b"ok\n"
        with pytest.raises(dutyfree.LinkFailed, match="certificate"):
            await dutyfree.connect(server.native, token=server.token).__aenter__()
        with pytest.raises(dutyfree.LinkFailed):
            await dutyfree.connect(server.native.replace("https", "http"), token=server.token).__aenter__()


def test_check_finds_settings_that_cannot_be_used(tmp_path: Path, certificates: Path) -> None:
    pem, key, other = certificates / "certificate.pem", certificates / "key.pem", certificates / "ca.key"
    for text, words in (
        ("[server\n", "settings.toml"),
        ("[server]\nport = 7\n", "port"),
        ('[server]\nnative = "nowhere"\n', "nowhere"),
        ("[server]\ngateways = 0\n", "gateways"),
        ('[server]\ngateways = "two"\n', "gateways"),
        ("[pool]\nsandboxes = -1\n", "sandboxes"),
        ('[substrate]\nname = "cells"\n', "cells"),
        (f'[server]\ncertificate = "{pem}"\n', "key"),
        (f'[server]\ncertificate = "{tmp_path}/none"\nkey = "{key}"\n', "none"),
        (f'[server]\ncertificate = "{pem}"\nkey = "{other}"\n', "certificate.pem"),
        (f'[server]\ncertificate = "{key}"\nkey = "{key}"\n', "key.pem"),
    ):
        (tmp_path / "settings.toml").write_text(text)
        refused = command("serve", "--check", "--config", str(tmp_path / "settings.toml"), code=2)
        assert refused.stderr.startswith("error: "), refused.stderr
        assert words in refused.stderr
        assert "Traceback" not in refused.stderr
    assert "absent" in command("serve", "--check", "--config", str(tmp_path / "absent.toml"), code=2).stderr
    (tmp_path / "settings.toml").write_text(f'[server]\ncertificate = "{pem}"\nkey = "{key}"\n')
    good = json.loads(command("serve", "--check", "--json", "--config", str(tmp_path / "settings.toml")).stdout)
    assert good["ok"]
    assert good["tls"]


async def test_logs_have_neither_tokens_nor_secrets(tmp_path: Path) -> None:
    wrong = "df_wrong-token-of-a-stranger"
    with serving(tmp_path / "state") as server:
        raw = server.raw
        made = raw.create(envVars={"KEY": SECRET})
        raw.run(made, "/bin/echo", SECRET)
        raw.send("GET", "/v2/sandboxes", headers={"X-API-Key": wrong})
        raw.send("GET", f"/files?path=/x&signature={SECRET}", headers={"E2b-Sandbox-Id": made["sandboxID"]})
        with pytest.raises(dutyfree.Unauthenticated):
            await dutyfree.connect(server.native, token=wrong).__aenter__()
        async with dutyfree.connect(server.native, token=server.token) as host:
            box = await host.acquire(secrets={"TOKEN": SECRET}, secret_files={"/dev/shm/secret": SECRET})
            await box.run(f"echo {SECRET}")
            with pytest.raises(dutyfree.DutyfreeError):
                await host.acquire(SECRET)
            os.kill(server.pids("node")[0], signal.SIGKILL)
            with pytest.raises(dutyfree.DutyfreeError):
                await box.run(["true"])
        log = server.log
        assert "the node has ended" in log
        for line in log.splitlines():
            assert {"at", "level", "process", "message"} <= set(json.loads(line))
        for secret in (server.token, made["envdAccessToken"], wrong, SECRET):
            assert secret not in log
        stored = b"".join(each.read_bytes() for each in server.directory.glob("state.sqlite*"))
        assert server.token.encode() not in stored


def test_processes_of_a_server_raise_their_limit_of_descriptors() -> None:
    code = "from dutyfree.server import child; import resource; child._raise_descriptor_limit(); "
    code += "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    shell = f"ulimit -Sn 100; ulimit -Hn 4000; exec {sys.executable} -c '{code}'"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout == "(4000, 4000)\n"
