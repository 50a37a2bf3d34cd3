"""Users of cells, through the client: of leases, of their secrets and forks, and ids that a cell does not have."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dutyfree
from dutyfree.errors import FileFailed, InvalidRequest, SubstrateUnavailable, Unsupported
from dutyfree.model import Capability
from support.repository import ROOT

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has only one id for its cells")
UID = 1000


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[dutyfree.LocalHost]:
    try:
        async with dutyfree.local("cell", store=tmp_path / "store") as host:
            yield host
    except SubstrateUnavailable as error:
        pytest.skip(str(error))


@as_root
async def test_everything_of_a_lease_acts_as_its_user(host: dutyfree.LocalHost) -> None:
    async with host.lease(user=UID) as box:
        assert (await box.run("id -u")).text == f"{UID}\n"
        async with box.stream("id -u") as stream:
            assert [chunk.data async for chunk in stream] == [f"{UID}\n".encode()]
        async with box.session() as shell:
            assert (await shell.run("id -u")).text == f"{UID}\n"
        async with box.terminal("id -u") as terminal:
            assert await terminal.read() == f"{UID}\r\n".encode()
        await box.files.write("/tmp/made", b"")
        assert (await box.files.stat("/tmp/made")).uid == UID
        with pytest.raises(FileFailed):
            await box.files.write("/etc/made", b"")
        (fork,) = await box.fork(1)
        assert (await fork.run("id -u")).text == f"{UID}\n"
        await fork.files.write("/tmp/forks", b"")
        assert (await fork.files.stat("/tmp/forks")).uid == UID
        await box.reset()
        assert (await box.run("id -u")).text == f"{UID}\n"


@as_root
async def test_a_call_overrides_the_user_of_its_lease(host: dutyfree.LocalHost) -> None:
    async with host.lease(user=UID) as box:
        assert (await box.run("id -u", user="root")).text == "0\n"
        assert (await box.run("id -u", user=0)).text == "0\n"
        await box.files.as_user(0).write("/etc/made", b"")
        async with box.session(user=UID + 1) as shell:
            assert (await shell.run("id -u")).text == f"{UID + 1}\n"


@as_root
async def test_the_secret_files_of_a_lease_are_its_users_alone(host: dutyfree.LocalHost) -> None:
    secrets, files = {"/dev/shm/s/token": "hush"}, {"/etc/made": b"public"}
    async with host.lease(user=UID, secret_files=secrets, files=files) as box:
        for each in (box, *(await box.fork(1))):
            assert (await each.run("cat /dev/shm/s/token /etc/made")).text == "hushpublic"
            other = await each.run("cat /dev/shm/s/token", user=UID + 1)
            assert (other.stdout, other.exit_code) == (b"", 1)


@as_root
@pytest.mark.parametrize("user", [65536, 2**32 - 2, "0:65536", "root:4294967294"])
async def test_ids_beyond_the_cells_own_are_unsupported(host: dutyfree.LocalHost, user: str | int) -> None:
    async with host.lease() as box:
        for call in (box.run("true", user=user), box.files.as_user(user).stat("/")):
            with pytest.raises(Unsupported, match="cannot become user") as caught:
                await call
            assert "65535" in (caught.value.hint or "")
        assert (await box.run("true")).ok


@as_root
async def test_more_groups_than_a_guest_takes_are_refused(host: dutyfree.LocalHost) -> None:
    line = "for n in $(seq 2000 {}); do echo g$n:x:$n:many; done >> /etc/group"
    async with host.lease(files={"/etc/passwd": b"many:x:1999:1999::/:/bin/sh\n"}) as box:
        assert (await box.run(line.format(2000 + 1022))).ok
        assert len((await box.run("id -G", user="many")).text.split()) == 1024
        assert (await box.run("echo one-more:x:9999:many >> /etc/group")).ok
        with pytest.raises(InvalidRequest, match="too many groups"):
            await box.run("true", user="many")


@as_root
async def test_a_thousand_actions_of_users_leave_no_process_and_no_descriptor(host: dutyfree.LocalHost) -> None:
    async with host.lease() as box:
        look = "ls /proc/1/task | wc -l; ls -d /proc/[0-9]* | wc -l; cat /proc/sys/fs/file-nr > /dev/null"
        before = (await box.run(look)).text
        for number in range(250):
            await box.run(["true"], user=number % 60000)
            await box.files.as_user(number).stat("/")
            with pytest.raises(InvalidRequest):
                await box.run(["true"], user="nosuch")
            with pytest.raises(Unsupported):
                await box.run(["true"], user=70000)
        assert (await box.run(look)).text == before


@as_root
def test_the_how_to_runs_as_printed(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/howto/users.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert [*words[:3], *words[4:]] == ["agent", "/home/agent", "/home/agent", "nobody", "root"]


@as_root
def test_the_sync_client_has_users(tmp_path: Path) -> None:
    with dutyfree.sync.local("cell", store=tmp_path / "store") as host, host.lease(user=UID) as box:
        assert box.run("id -u").text == f"{UID}\n"
        box.files.as_user(UID + 1).write("/tmp/made", b"")
        assert box.files.stat("/tmp/made").uid == UID + 1


@as_root
def test_run_and_its_user_on_the_command_line() -> None:
    command = [sys.executable, "-m", "dutyfree", "run", "--user", "1234:1235", "--", "id", "-u"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "1234\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root's cells have users")
async def test_an_ordinary_users_cells_refuse_users(host: dutyfree.LocalHost) -> None:
    assert Capability.USERS not in host.capabilities
    with pytest.raises(Unsupported, match="cannot run actions as user"):
        await host.acquire(user="nobody")
    async with host.lease() as box:
        for call in (box.run("true", user="nobody"), box.run("true", user=0)):
            with pytest.raises(Unsupported, match="only one id"):
                await call
        with pytest.raises(Unsupported):
            box.files.as_user("nobody")
        assert (await box.run("true")).ok
