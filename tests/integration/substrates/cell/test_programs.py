"""What programs ask of a file system, and would answer differently in a cell. `make suites` looks at more of it."""

from __future__ import annotations

from pathlib import Path

import dutyfree
from dutyfree.client.box import Box

PLACES = ("/etc", "/opt", "/usr/bin", "/usr/lib/python3", "/var/lib", "/tmp")
COUNT = f"""
import os, pathlib
pathlib.Path("/tmp/a/b").mkdir(parents=True)
pathlib.Path("/tmp/a/file").write_text("x")
os.rename("/tmp/a/file", "/tmp/a/b/file")
different, devices = {{"directories": 0, "files": 0}}, set()
for place in {PLACES!r}:
    for directory, _names, _files in os.walk(place):
        try:
            entries = list(os.scandir(directory))
        except PermissionError:
            continue
        for entry in entries:
            found = entry.stat(follow_symlinks=False)
            if place == "/usr/lib/python3":
                devices.add(found.st_dev)
            if found.st_dev != os.lstat(directory).st_dev:
                continue  # a mount point: its entry and what is mounted there differ on any machine
            kind = "directories" if entry.is_dir(follow_symlinks=False) else "files"
            different[kind] += found.st_ino != entry.inode()
print(different["directories"], different["files"], len(devices))
"""


async def counted(box: Box) -> str:
    seen = await box.run(["python3", "-c", COUNT])
    assert seen.exit_code == 0, seen.stderr
    return seen.text.strip()


async def test_a_listing_and_stat_name_the_same_inode_on_one_device() -> None:
    async with dutyfree.local("cell") as host, host.lease() as box:
        assert await counted(box) == "0 0 1"


async def test_so_it_is_over_an_image(tmp_path: Path) -> None:
    """But for directories that come from the host: below a layer of the store, they are an overlay of an overlay."""
    async with dutyfree.local("cell", store=tmp_path / "store") as host, host.lease() as box:
        await box.run("mkdir -p /opt/built/inner && echo x > /opt/built/file && echo y >> /etc/hosts.new")
        async with await box.snapshot() as snapshot:
            image = await snapshot.save()
        async with host.lease(image) as other:
            assert (await counted(other)).split()[1:] == ["0", "1"]


async def test_something_of_the_disk_is_used_from_the_start() -> None:
    async with dutyfree.local("cell") as host, host.lease() as box:
        used = "import shutil; usage = shutil.disk_usage('/'); print(0 < usage.used < 65536 < usage.free)"
        assert (await box.run(["python3", "-c", used])).text == "True\n"
