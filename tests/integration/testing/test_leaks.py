"""The leak check sees mounts, control groups and namespaces, and no sandboxes of another host."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dutyfree.testing.leaks import Machine, difference, snapshot

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


def new_since(before: Machine, *words: str) -> list[str]:
    """The left-overs that mention all of `words`; other work on the machine is not this test's affair."""
    return [line for line in difference(before, snapshot(before.roots)) if all(word in line for word in words)]


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


@pytest.mark.skipif(not IS_ROOT, reason="/run/netns belongs to root")
def test_named_network_namespaces_count_only_under_our_name() -> None:
    before = snapshot()
    places = [Path("/run/netns", name) for name in (f"dutyfree-{CLAIM}", f"runsc-{os.getpid()}")]
    places[0].parent.mkdir(exist_ok=True)
    try:
        for place in places:
            place.touch()
        assert new_since(before, "/run/netns", places[0].name)
        assert not new_since(before, "/run/netns", places[1].name)
    finally:
        for place in places:
            place.unlink()


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
