"""What code in a sandbox can do to the file operations of its host: be slow, and no more."""

from __future__ import annotations

import contextlib
import errno
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import dutyfree
from dutyfree.contract import Files
from dutyfree.errors import FileFailed

MIB = 1024 * 1024
STOPPER = b"""
import os, signal
while True:  # every child of the guest but this one, as soon as it is there
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            try:
                os.kill(int(name), signal.SIGSTOP)
            except OSError:
                pass
"""
SPECIAL = """
mkfifo /tmp/fifo /tmp/fed /tmp/heard
(while :; do echo x; done) > /tmp/fed &
sleep 1000 < /tmp/heard &
ln -s /dev/tty /tmp/tty
ln -s /dev/ptmx /tmp/ptmx
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("/tmp/socket")'
"""

Call = Callable[[Files, Path], Awaitable[object]]
CALLS: dict[str, Call] = {
    "read": lambda files, _: files.read("/tmp/big", timeout_s=0.5),
    "write": lambda files, _: files.write("/tmp/new", bytes(16 * MIB), timeout_s=0.5),
    "append": lambda files, _: files.append("/tmp/new", bytes(16 * MIB), timeout_s=0.5),
    "list": lambda files, _: files.list("/tmp/many", timeout_s=0.5),
    "remove": lambda files, _: files.remove("/tmp/many", recursive=True, timeout_s=0.5),
    "upload": lambda files, local: files.upload(local / "big", "/tmp/new", timeout_s=0.5),
    "upload of a tree": lambda files, local: files.upload(local, "/tmp/tree", timeout_s=0.5),
    "download": lambda files, local: files.download("/tmp/big", local / "copy", timeout_s=0.5),
    "download of a tree": lambda files, local: files.download("/tmp", local / "copy", timeout_s=0.5),
}


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@pytest.fixture
async def box() -> AsyncIterator[dutyfree.Box]:
    async with dutyfree.local("cell") as host, host.lease() as box:
        yield box


@pytest.mark.parametrize("name", CALLS)
async def test_a_stopped_helper_costs_a_call_its_time_and_nothing_else(
    box: dutyfree.Box, name: str, tmp_path: Path
) -> None:
    local = tmp_path / "local"
    local.mkdir()
    (local / "big").write_bytes(bytes(16 * MIB))
    await box.files.write("/tmp/stopper.py", STOPPER)
    await box.files.write("/tmp/big", bytes(16 * MIB))
    await box.run("mkdir /tmp/many; cd /tmp/many; seq 20000 | xargs touch", timeout_s=30)
    for _ in range(20):  # the stopper may come too late
        remove(local / "copy")  # of a call that it did not hold up
        async with box.stream(["python3", "/tmp/stopper.py"], timeout_s=20) as stopper:
            start = time.monotonic()
            try:
                await CALLS[name](box.files, local)
            except FileFailed as error:
                if error.errno == errno.ETIMEDOUT:
                    assert time.monotonic() - start < 3.0
                    break
            await stopper.kill()
    else:
        pytest.fail("no call was ever held up")
    assert not (local / "copy").exists()
    assert await box.files.read("/tmp/stopper.py") == STOPPER
    assert (await box.run("ps -e -o stat= | grep -c T", timeout_s=10)).stdout.strip() == b"0"


async def test_special_files_hold_no_call_up(box: dutyfree.Box, tmp_path: Path) -> None:
    await box.run("cat > /tmp/make.sh", stdin=SPECIAL.encode())
    async with box.session() as session:
        await session.run(". /tmp/make.sh", timeout_s=10)
        for name in ("fifo", "fed", "heard", "tty", "ptmx", "socket"):
            start = time.monotonic()
            for call in (
                box.files.read(f"/tmp/{name}", timeout_s=5),
                box.files.append(f"/tmp/{name}", bytes(MIB), timeout_s=5),
                box.files.download(f"/tmp/{name}", tmp_path / "copy", timeout_s=5),
            ):
                with contextlib.suppress(FileFailed):
                    await call
            await box.files.stat(f"/tmp/{name}")
            assert time.monotonic() - start < 3.0, name
        assert (await box.run("true")).exit_code == 0


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf")])
async def test_a_timeout_must_make_sense(box: dutyfree.Box, timeout_s: float, tmp_path: Path) -> None:
    for call in (
        box.files.read("/etc/passwd", timeout_s=timeout_s),
        box.files.upload(tmp_path, "/tmp/x", timeout_s=timeout_s),
    ):
        with pytest.raises(dutyfree.InvalidRequest):
            await call
