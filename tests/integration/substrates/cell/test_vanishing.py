"""Directories that the host removes while cells are made from them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, os, sys, dutyfree

async def main(gone):
    async with dutyfree.local("cell") as host, host.lease() as box:
        assert (await box.run(["cat", f"{gone}/file"])).text == "here"
        os.remove(f"{gone}/file")
        os.rmdir(gone)
        async with host.lease() as other:
            await other.run(f"echo own > {gone}/own")
            [fork] = await other.fork(1)
            assert (await fork.run(["cat", f"{gone}/own"])).text == "own\\n"

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount something below /opt")
def test_a_part_that_is_removed_is_missing_and_nothing_else(tmp_path: Path) -> None:
    # With something mounted beside it, an ordinary user's cells have each directory in /opt as a mount of its own.
    top = Path("/opt/dutyfree-vanishing")
    home = Path(f"/tmp/dutyfree-vanishing-{os.getpid()}")
    try:
        (top / "gone").mkdir(parents=True)
        (top / "mounted").mkdir()
        (top / "gone/file").write_text("here")
        home.mkdir()
        for path in (top / "gone", home):
            os.chown(path, 63017, 63017)
        words = ["setpriv", "--reuid=63017", "--regid=63017", "--clear-groups", "env", "-i", f"HOME={home}"]
        words += [f"PATH={os.environ['PATH']}", f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"]
        script = f'mount -t tmpfs beside {top}/mounted; chmod 777 {top}; exec "$@"'
        command = [
            "unshare",
            "--mount",
            "sh",
            "-euc",
            script,
            "host",
            *words,
            sys.executable,
            "-c",
            SCRIPT,
            f"{top}/gone",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    finally:
        shutil.rmtree(top, ignore_errors=True)
        shutil.rmtree(home, ignore_errors=True)
