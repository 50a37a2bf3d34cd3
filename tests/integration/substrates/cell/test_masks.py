"""What a cell must not see of the host, in the corners where masks could be missed. As root: these make directories."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dutyfree
from dutyfree.errors import InvalidRequest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root only: directories outside of home are made")
SECRET = "the combination is 1-2-3-4-5"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that cells see, because it is open to everyone and no mask of ours covers it.

    Not where conformance checks list what there is: they may run at the same time.
    """
    path = Path(tempfile.mkdtemp(prefix="test-masks-", dir="/var/lib"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def secret(directory: Path) -> Path:
    directory.mkdir(parents=True)
    path = directory / "key"
    path.write_text(SECRET)
    path.chmod(0o644)
    return path


async def seen_of(path: Path, *masks: Path) -> str:
    async with dutyfree.local("cell", masks=masks) as host, host.lease() as box:
        return (await box.run(["cat", str(path)])).text


async def test_an_open_file_is_seen_without_a_mask(place: Path) -> None:
    assert await seen_of(secret(place / "open")) == SECRET


async def test_a_mask_hides_a_directory_and_a_file(place: Path) -> None:
    path = secret(place / "vault")
    assert await seen_of(path, place / "vault") == ""
    assert await seen_of(path, path) == ""


@pytest.mark.parametrize("mode", [0o711, 0o700])
async def test_a_mask_holds_behind_a_parent_that_is_closed_or_half_closed(place: Path, mode: int) -> None:
    path = secret(place / "gate" / "vault")
    (place / "gate").chmod(mode)
    assert await seen_of(path, place / "gate" / "vault") == ""


async def test_a_closed_directory_stays_closed_though_something_in_it_is_masked(place: Path) -> None:
    path = secret(place / "gate")
    secret(place / "gate" / "other")
    (place / "gate").chmod(0o700)
    assert await seen_of(path, place / "gate" / "other") == ""


async def test_a_mask_named_through_a_link_hides_what_is_at_its_end(place: Path) -> None:
    path = secret(place / "real")
    (place / "link").symlink_to("real")
    assert await seen_of(path, place / "link") == ""
    assert await seen_of(place / "link" / "key", place / "link") == ""


async def test_a_mask_of_nothing_is_a_mistake() -> None:
    with pytest.raises(InvalidRequest):
        async with dutyfree.local("cell", masks=("/no/such/thing",)):
            pass


def test_an_ordinary_users_cell_cannot_write_to_what_is_mounted_on_the_host(place: Path) -> None:
    """In a mount namespace of its own, with a file system that the user may write to below what cells see."""
    data = place / "data"
    script = f"""
set -e
mkdir {data} && mount -t tmpfs -o mode=1777 tmpfs {data} && echo before > {data}/file
chmod 666 {data}/file
setpriv --reuid 54321 --regid 54321 --clear-groups env HOME=/nonexistent XDG_RUNTIME_DIR= XDG_STATE_HOME=$STATE \\
    {sys.executable} -m dutyfree run --quiet -- sh -c 'echo after > {data}/file; ls {place}'
cat {data}/file
"""
    with tempfile.TemporaryDirectory() as state:
        Path(state).chmod(0o777)
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            capture_output=True, text=True, timeout=60, env={**os.environ, "STATE": state, "TMPDIR": state},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["data", "before"]


async def test_a_private_file_that_a_cell_moves_is_in_no_saved_snapshot(place: Path) -> None:
    secret(place / "folder").chmod(0o600)
    (place / "folder/open").write_text("open")
    async with dutyfree.local("cell") as host, host.lease() as box:
        moved = await box.run(f"cd {place}/folder && mv key moved && mv open moved-too && cat moved")
        assert SECRET not in moved.text
        assert (await box.run(["ls", f"{place}/folder"])).text == "moved\nmoved-too\n"
        async with await box.snapshot() as snapshot:
            saved = await snapshot.save()
        below = host.store.tree(saved.layers[-1]) / f"{place}/folder"[1:]
        assert sorted(path.name for path in below.iterdir() if path.is_file()) == ["moved-too"]
