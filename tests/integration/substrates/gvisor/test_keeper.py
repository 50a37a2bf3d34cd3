"""The keeper by itself: mounts that nobody else sees, the dead that are buried, and an end that leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dutyfree import claims
from dutyfree.errors import DeadlineExceeded, SubstrateFailed
from dutyfree.images.ownership import is_root
from dutyfree.substrates.gvisor.keeper_client import KeeperClient, Mount

pytestmark = pytest.mark.skipif(not is_root(), reason="gVisor's keeper: only root can mount")

DAEMON = "import os, sys, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(1000)"
"""Leaves a process without a parent behind."""


@pytest.fixture
def claim() -> claims.Claim:
    return claims.claim("gvisor")


@pytest_asyncio.fixture
async def keeper(claim: claims.Claim, tmp_path: Path) -> AsyncIterator[KeeperClient]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    made = await KeeperClient.start(claim, [scratch], [])
    yield made
    await made.close()
    claim.release()


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def make(directory: Path) -> None:
    directory.mkdir()


def there(paths: list[Path]) -> list[Path]:
    return [path for path in paths if path.exists()]


def is_empty(directory: Path) -> bool:
    return not list(directory.iterdir())


async def test_mounts_are_the_keepers_own(keeper: KeeperClient, claim: claims.Claim) -> None:
    place = claim.directory / "place"
    make(place)
    await keeper.mount([Mount("tmpfs", str(place), "tmpfs")])
    make(keeper.host_path(place) / "inside")
    assert is_empty(place)
    await keeper.umount([str(place)])
    assert is_empty(keeper.host_path(place))


async def test_all_mounts_or_none(keeper: KeeperClient, claim: claims.Claim) -> None:
    place = claim.directory / "place"
    make(place)
    with pytest.raises(SubstrateFailed, match="missing"):
        await keeper.mount([Mount("tmpfs", str(place), "tmpfs"), Mount("tmpfs", f"{place}/missing", "tmpfs")])
    make(keeper.host_path(place) / "outside")
    assert not is_empty(place), "the first mount is still there"


async def test_programs_have_their_input_output_and_status(keeper: KeeperClient) -> None:
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    os.write(our_out, b"through")
    os.close(our_out)
    status = await keeper.spawn(["/bin/sh", "-c", "cat; exit 7"], fds=(their_in, their_out))
    os.close(their_in)
    os.close(their_out)
    assert (status, os.read(our_in, 100)) == (7, b"through")
    os.close(our_in)


async def test_a_program_that_is_not_there(keeper: KeeperClient) -> None:
    assert await keeper.spawn(["/nonexistent"]) == 127


async def test_orphans_are_killed_by_their_marker_and_buried(keeper: KeeperClient) -> None:
    for marker in ("--root=/one", "--root=/other"):
        assert await keeper.spawn([sys.executable, "-c", DAEMON, marker]) == 0
    assert len(children(keeper.pid)) == 2
    await keeper.kill("--root=/one")
    assert len(children(keeper.pid)) == 1
    await keeper.kill("--root=/nobody")


async def test_a_program_that_takes_too_long(keeper: KeeperClient) -> None:
    with pytest.raises(DeadlineExceeded):
        await keeper.spawn(["/bin/sleep", "1000"], timeout_s=0.1)


async def test_its_end_leaves_nothing(claim: claims.Claim, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    make(scratch)
    keeper = await KeeperClient.start(claim, [scratch], [])
    assert await keeper.spawn([sys.executable, "-c", DAEMON, "--root=/one"]) == 0
    orphan = children(keeper.pid)[0]
    start_s = time.monotonic()
    await keeper.close()
    await keeper.close()
    assert time.monotonic() - start_s < 2.0
    assert there([Path(f"/proc/{orphan}"), scratch, claim.directory]) == []
    with pytest.raises(SubstrateFailed):
        await keeper.umount([])
    claim.release()


HOST = """
import asyncio, ctypes, os, sys, time
from pathlib import Path
from dutyfree import claims
from dutyfree.substrates.gvisor.keeper_client import KeeperClient

async def main():
    keeper = await KeeperClient.start(claims.claim("gvisor"), [Path(sys.argv[1])], [])
    fork = os.fork if sys.argv[2] == "python" else ctypes.CDLL(None).fork
    if fork() == 0:
        time.sleep(60)
        os._exit(0)
    print(keeper.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("fork", ["python", "c"])
def test_it_ends_with_its_process_though_a_forked_child_lives_on(tmp_path: Path, fork: str) -> None:
    scratch = tmp_path / "scratch"
    make(scratch)
    with subprocess.Popen(
        [sys.executable, "-c", HOST, str(scratch), fork], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            keeper = int(process.stdout.readline())
            process.kill()
            process.wait()
            end_s = time.monotonic() + 2.0
            while scratch.exists() and time.monotonic() < end_s:
                time.sleep(0.02)
            assert there([scratch]) == []
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            if scratch.exists():
                os.kill(keeper, signal.SIGKILL)
