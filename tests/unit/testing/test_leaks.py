"""The leak check sees what is left, on the real machine, and is quiet when nothing is."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dutyfree.places import runtime_directory
from dutyfree.testing.leaks import Machine, difference, settle, snapshot

IS_ROOT = os.geteuid() == 0
CLAIM = f"{os.getpid()}-{time.monotonic_ns():x}-{'0' * 12}"
"""What a claim of this process is called: leak checks of others do not count what bears it."""


ANOTHER_HOST = """
import asyncio, os, pathlib, sys
import dutyfree

async def main(substrate, ready):
    async with dutyfree.local(substrate) as host, host.lease() as box:
        await box.run("sleep 60 &")
        ready.with_suffix(".new").write_text(str(os.getpid()))
        ready.with_suffix(".new").rename(ready)
        while ready.exists():
            await asyncio.sleep(0.02)

asyncio.run(main(sys.argv[1], pathlib.Path(sys.argv[2])))
"""


@pytest.fixture
def state() -> Iterator[Path]:
    """A run-time state directory of the kind that a substrate would make."""
    directory = Path(tempfile.mkdtemp(prefix=f"dutyfree-leaktest-{CLAIM}-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def new_since(before: Machine, *words: str) -> list[str]:
    """The left-overs that mention all of `words`; other work on the machine is not this test's affair."""
    return [line for line in difference(before, snapshot(before.roots)) if all(word in line for word in words)]


def test_nothing_done_leaves_nothing() -> None:
    before = snapshot()
    assert not new_since(before, "file descriptor")
    assert not new_since(before, "mount")
    assert not new_since(before, f"process {os.getpid()}")


def test_a_child_is_seen_until_it_is_reaped() -> None:
    before = snapshot()
    with subprocess.Popen(["sleep", "30"]) as child:
        assert new_since(before, f"process {child.pid} (sleep)")
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert new_since(before, f"process {child.pid} ", "zombie")
    assert not new_since(before, f"process {child.pid} ")


def test_an_orphan_is_known_by_its_name(tmp_path: Path) -> None:
    guest = tmp_path / "dutyfree-guest"
    shutil.copy("/bin/sleep", guest)
    before = snapshot()
    started = subprocess.run(
        ["sh", "-c", f"setsid {guest} 30 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True, check=True
    )
    pid = int(started.stdout)
    try:
        deadline = time.monotonic() + 2
        while not (found := new_since(before, f"process {pid} ", "dutyfree-guest")) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found
    finally:
        os.kill(pid, 9)


def test_open_descriptors_are_counted_by_target() -> None:
    before = snapshot()
    left, right = socket.socketpair()
    with left, right:
        assert len(new_since(before, "file descriptor", "socket:")) == 2
        twice = snapshot()
        again = os.dup(left.fileno())
        try:
            assert len(new_since(twice, "file descriptor", "socket:")) == 1
        finally:
            os.close(again)
    assert not new_since(before, "file descriptor")


def test_state_directories_are_seen_also_inside_existing_ones(state: Path) -> None:
    before = snapshot()
    inner = state / "sandboxes" / "abc"
    inner.mkdir(parents=True)
    assert new_since(before, str(inner))
    shutil.rmtree(state / "sandboxes")
    assert not new_since(before, str(state))


@pytest.mark.parametrize(("owner", "counts"), [(os.getpid(), True), (1, False)])
def test_directories_of_claims_count_for_their_owner(owner: int, counts: bool) -> None:
    before = snapshot()
    claimed = runtime_directory() / f"{owner}{CLAIM[CLAIM.index('-') :]}"
    claimed.mkdir(parents=True)
    try:
        assert bool(new_since(before, str(claimed))) == counts
    finally:
        claimed.rmdir()


def test_extra_roots_count_whatever_the_name(tmp_path: Path) -> None:
    before = snapshot([tmp_path])
    (tmp_path / "upper-7").mkdir()
    assert new_since(before, "upper-7")


@pytest.mark.skipif(not IS_ROOT, reason="mounting needs root")
def test_mounts_are_seen(tmp_path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    before = snapshot()
    if libc.mount(b"dutyfree", str(tmp_path).encode(), b"tmpfs", 0, None):
        pytest.skip(f"mount: {os.strerror(ctypes.get_errno())}")
    try:
        assert new_since(before, f"mount {tmp_path} (tmpfs")
    finally:
        libc.umount2(str(tmp_path).encode(), 2)
    assert not new_since(before, f"mount {tmp_path}")


@pytest.mark.skipif(not IS_ROOT, reason="making a cgroup needs root")
def test_cgroups_are_seen() -> None:
    hierarchies = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup/unified")]
    hierarchy = next((place for place in hierarchies if (place / "cgroup.procs").exists()), None)
    if hierarchy is None:
        pytest.skip("no cgroup hierarchy is mounted")
    before = snapshot()
    parent = hierarchy / f"dutyfree-{CLAIM}"
    child = parent / "sandbox"
    try:
        parent.mkdir()
        child.mkdir()
        assert len(new_since(before, "cgroup", parent.name)) == 2
    finally:
        child.rmdir()
        parent.rmdir()
    assert not new_since(before, "cgroup", parent.name)


@pytest.mark.skipif(not IS_ROOT or not shutil.which("unshare"), reason="needs root and unshare")
def test_network_namespaces_and_orphans_in_other_namespaces_are_seen() -> None:
    before = snapshot()
    with subprocess.Popen(["unshare", "--net", "--pid", "--fork", "--kill-child", "sleep", "30"]) as child:
        try:
            deadline = time.monotonic() + 2
            while not (found := new_since(before, "network namespace net:")) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert found
            assert new_since(before, "(sleep)")
        finally:
            child.kill()


@pytest.mark.parametrize("substrate", ["process", "cell"])
def test_sandboxes_of_another_host_do_not_count(substrate: str, tmp_path: Path) -> None:
    before = snapshot()
    ready = tmp_path / "ready"
    # The host is started in the background by a shell that ends, so that it does not descend from this process.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = ["sh", "-c", '"$@" > /dev/null 2>&1 &', "sh", sys.executable, "-c", ANOTHER_HOST, substrate, str(ready)]
    subprocess.run(command, env=environment, check=True)
    deadline_s = time.monotonic() + 30
    while not ready.exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    pid = int(ready.read_text())
    try:
        assert difference(before, snapshot()) == []
        assert [line for line in difference(before, snapshot(hosts=[pid])) if "dutyfree-guest" in line]
    finally:
        ready.unlink()
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)


async def test_settle_waits_for_what_is_on_its_way_out() -> None:
    before = snapshot()
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(0.3)")
    started = time.monotonic()
    left = [line for line in await settle(before, within_s=5) if f"process {child.pid} " in line]
    assert not left
    assert time.monotonic() - started >= 0.2
    await child.wait()


async def test_settle_gives_up_in_time_and_says_what_is_left() -> None:
    before = snapshot()
    child = await asyncio.create_subprocess_exec("sleep", "30")
    try:
        started = time.monotonic()
        left = await settle(before, within_s=0.2)
        assert time.monotonic() - started < 2
        assert any(f"process {child.pid} (sleep)" in line for line in left)
    finally:
        child.kill()
        await child.wait()
