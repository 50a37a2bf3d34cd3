"""Package managers, git and a program without proxy variables, each against servers on the host's loopback.

One name is allowed, by `private=`. Everything else is refused and recorded.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import dutyfree
from dutyfree import Box, Egress
from support.package_server import NAME, PackageServer, package_server

AUTHORITY = "/tmp/authority.pem"
PLAIN_PROGRAM = f"""
import os, socket, ssl
for name in list(os.environ):
    if name.lower().endswith("_proxy"):
        del os.environ[name]
context = ssl.create_default_context(cafile="{AUTHORITY}")
with context.wrap_socket(socket.create_connection(("{NAME}", 443), 20), server_hostname="{NAME}") as tls:
    tls.sendall(b"GET /simple/hello-dutyfree/ HTTP/1.1\\r\\nHost: {NAME}\\r\\nConnection: close\\r\\n\\r\\n")
    print(tls.recv(100).splitlines()[0].decode())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageServer]:
    with package_server(tmp_path_factory.mktemp("packages")) as served:
        yield served


@pytest.fixture
async def box(server: PackageServer) -> AsyncIterator[Box]:
    egress = Egress(private=[NAME], hosts={NAME: f"127.0.0.1:{server.https_port}"})
    async with dutyfree.local() as host, host.lease(network=egress, files={AUTHORITY: server.authority}) as leased:
        yield leased


def need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


async def succeeds(box: Box, line: str) -> str:
    seen = await box.run(line, timeout_s=100)
    assert seen.exit_code == 0, (seen.stdout[-2000:], seen.stderr[-2000:], [str(each) for each in box.egress.journal()])
    return seen.stdout.decode()


def names(box: Box, *, allowed: bool) -> set[str]:
    return {each.name for each in box.egress.journal() if each.allowed is allowed}


async def test_pip_installs(box: Box) -> None:
    pythons = [each for each in (sys.executable, "python3") if (await box.run(f"{each} -m pip --version")).ok]
    if not pythons:
        pytest.skip("the sandbox has no pip")
    python = pythons[0]
    pip = f"{python} -m pip --disable-pip-version-check --isolated"
    line = f"{pip} install --no-cache-dir --cert {AUTHORITY} --target /tmp/x -i https://{NAME}/simple hello-dutyfree"
    await succeeds(box, line)
    assert "hello from pip" in await succeeds(box, f"PYTHONPATH=/tmp/x {python} -m hello_dutyfree")
    assert names(box, allowed=True) == {NAME}
    refused = await box.run(f"{pip} install --retries 0 --no-cache-dir --target /tmp/y other", timeout_s=60)
    assert refused.exit_code != 0
    assert names(box, allowed=False) == {"pypi.org"}


async def test_git_clones_over_https(box: Box) -> None:
    need("git")
    await succeeds(box, f"GIT_SSL_CAINFO={AUTHORITY} git clone -q https://{NAME}/hello.git /tmp/clone")
    assert await succeeds(box, "cat /tmp/clone/hello.txt") == "hello from git\n"
    assert names(box, allowed=True) == {NAME}
    assert (await box.run("git clone -q https://github.com/a/b /tmp/other", timeout_s=60)).exit_code != 0
    assert names(box, allowed=False) - {"dutyfree"} == {"github.com"}  # git also looks up its own machine's name


async def test_npm_installs(box: Box) -> None:
    need("npm")
    where = "mkdir -p /tmp/n && cd /tmp/n && export HOME=/tmp/n npm_config_cache=/tmp/n/cache npm_config_audit=false"
    flags = f"--no-fund --no-update-notifier --fetch-retries=0 --cafile {AUTHORITY}"
    await succeeds(box, f"{where} && npm install {flags} --registry https://{NAME}/ hello-dutyfree")
    assert "hello from npm" in await succeeds(box, "cd /tmp/n && node -e \"require('hello-dutyfree')\"")
    assert names(box, allowed=True) == {NAME}
    refused = await box.run(f"{where} && npm install {flags} other", timeout_s=90)
    assert refused.exit_code != 0
    assert names(box, allowed=False) == {"registry.npmjs.org"}


async def test_apt_get_installs(server: PackageServer) -> None:
    need("apt-get")
    egress = Egress(private=[f"{NAME}:80"], hosts={NAME: f"127.0.0.1:{server.http_port}"})
    options = "-q -o APT::Sandbox::User=root -o Dir::Etc::sourcelist=/tmp/sources -o Dir::Etc::sourceparts=/dev/null"
    sources = f"deb [trusted=yes] http://{NAME}/apt ./\n".encode()
    async with dutyfree.local() as host, host.lease(network=egress, files={"/tmp/sources": sources}) as box:
        updated = await succeeds(box, f"apt-get {options} update")
        assert NAME in updated
        await succeeds(box, f"DEBIAN_FRONTEND=noninteractive apt-get {options} install -y hello-dutyfree")
        assert await succeeds(box, "cat /usr/share/hello-dutyfree/hello") == "hello from apt\n"
        assert names(box, allowed=True) == {NAME}
        await box.run("echo 'deb [trusted=yes] http://deb.example/debian stable main' > /tmp/sources")
        assert (await box.run(f"apt-get {options} update --error-on=any", timeout_s=60)).exit_code != 0
        assert "deb.example" in names(box, allowed=False)


async def test_a_program_without_proxy_variables(box: Box) -> None:
    if box.egress.notes:
        pytest.skip(box.egress.notes[0])
    assert await succeeds(box, f"python3 -c '{PLAIN_PROGRAM}'") == "HTTP/1.1 200 OK\n"
    assert [(each.name, each.port, each.how) for each in box.egress.journal()] == [(NAME, 443, "direct")]
    seen = await box.run(["python3", "-c", "import socket; socket.create_connection(('example.org', 443), 5)"])
    assert seen.exit_code != 0
    seen = await box.run(["python3", "-c", "import socket; socket.create_connection(('192.0.2.1', 443), 5)"])
    assert b"unreachable" in seen.stderr
    assert names(box, allowed=False) == {"example.org"}


async def test_ssh_reaches_an_allowed_name(server: PackageServer, tmp_path: Path) -> None:
    """No server needs to be behind it: ssh prints what it was answered in place of a banner."""
    need("ssh")
    egress = Egress(private=[f"{NAME}:22"], hosts={NAME: f"127.0.0.1:{server.http_port}"})
    async with dutyfree.local() as host, host.lease(network=egress) as box:
        await box.run(f"ssh -o BatchMode=yes -o ConnectTimeout=5 {NAME} true", timeout_s=20)
        await box.run("ssh -o BatchMode=yes -o ConnectTimeout=5 other.test true", timeout_s=20)
        if not box.egress.notes:
            reached = [(each.name, each.port, each.how) for each in box.egress.journal() if each.allowed]
            assert reached == [(NAME, 22, "direct")]
        assert all(each.name == "other.test" for each in box.egress.journal() if not each.allowed)


async def test_a_redirect_to_a_refused_name_ends_there(server: PackageServer) -> None:
    need("curl")
    egress = Egress(private=[f"{NAME}:80"], hosts={NAME: f"127.0.0.1:{server.http_port}"})
    async with dutyfree.local() as host, host.lease(network=egress) as box:
        seen = await box.run(f"curl -sSL http://{NAME}/redirect")
        assert b"refused.test port 80: no rule allows it" in seen.stdout
        assert [(each.name, each.allowed) for each in box.egress.journal()] == [(NAME, True), ("refused.test", False)]
