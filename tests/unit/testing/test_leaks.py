"""The leak check sees what is left, on the real machine, and is quiet when nothing is."""

from __future__ import annotations

import asyncio
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
from dutyfree.testing.leaks import Machine, daemons_of, difference, settle, snapshot

CLAIM = f"{os.getpid()}-{time.monotonic_ns():x}-{'0' * 12}"
"""What a claim of this process is called: leak checks of others do not count what bears it."""


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


def test_children_of_a_daemon_count_where_it_is_named(tmp_path: Path) -> None:
    guest, daemon = tmp_path / "dutyfree-guest", tmp_path / "some-daemon"
    shutil.copy("/bin/sleep", guest)
    shutil.copy("/bin/dash", daemon)
    before = snapshot()
    line = f"setsid {daemon} -c '{guest} 30 & echo $!; wait' 2>/dev/null &"
    with subprocess.Popen(["sh", "-c", line], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        try:
            deadline = time.monotonic() + 2
            while (Path(f"/proc/{pid}/comm").read_text() != "dutyfree-guest\n") and time.monotonic() < deadline:
                time.sleep(0.01)
            assert daemons_of(pid) == {str(daemon)}
            assert not new_since(before, f"process {pid} ")
            named = difference(before, snapshot(daemons=daemons_of(pid)))
            assert [each for each in named if f"process {pid} (dutyfree-guest)" in each]
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


@pytest.mark.parametrize(("owner", "counts"), [(os.getpid(), True), (1, False)], ids=["own", "another"])
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
