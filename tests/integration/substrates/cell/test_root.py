"""Root in a cell over the host's files: it edits what common tools edit, its own copies, and reads nothing private."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dutyfree
from dutyfree.client.box import Box
from dutyfree.errors import FileFailed

CONTROL = """\
Package: dutyfree-tiny
Version: 1
Architecture: all
Maintainer: Nobody <nobody@example.org>
Description: a package for a test
"""
SCRIPT = """\
#!/bin/sh
set -e
echo configured > /etc/dutyfree-tiny.state
useradd --system dutyfree-tiny
ldconfig
"""
INSTALL = """
set -e
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/opt/repository ./' > /etc/apt/sources.list.d/tiny.list
apt-get -q update
DEBIAN_FRONTEND=noninteractive apt-get -q -y install dutyfree-tiny
dutyfree-tiny
cat /etc/dutyfree-tiny.state
id -un dutyfree-tiny
dpkg-query -W dutyfree-tiny
apt-get -q -y remove dutyfree-tiny >/dev/null
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root only: files outside of home are made")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository for apt, of one small package."""
    package, repository = tmp_path / "package", tmp_path / "repository"
    for name in ("DEBIAN", "usr/bin", "usr/share/doc/dutyfree-tiny", "usr/share/man/man1"):
        (package / name).mkdir(parents=True)
    (package / "DEBIAN/control").write_text(CONTROL)
    (package / "DEBIAN/postinst").write_text(SCRIPT)
    (package / "usr/bin/dutyfree-tiny").write_text("#!/bin/sh\necho it runs\n")
    (package / "usr/share/doc/dutyfree-tiny/copyright").write_text("nobody's\n")
    (package / "usr/share/man/man1/dutyfree-tiny.1").write_text(".TH TINY 1\n")
    for name in ("DEBIAN/postinst", "usr/bin/dutyfree-tiny"):
        (package / name).chmod(0o755)
    repository.mkdir()
    file = repository / "dutyfree-tiny.deb"
    command = ["dpkg-deb", "--root-owner-group", "--build", str(package), str(file)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    digest = subprocess.run(["sha256sum", file], check=True, capture_output=True, text=True, timeout=60).stdout.split()[
        0
    ]
    index = f"{CONTROL}Filename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {digest}\n"
    (repository / "Packages").write_text(index)
    return repository


def content(path: str) -> bytes:
    return Path(path).read_bytes()


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt is not installed")
async def test_apt_installs_a_package(repository: Path) -> None:
    before = content("/var/lib/dpkg/status")
    async with dutyfree.local("cell") as host, host.lease() as box:
        await box.files.upload(repository, "/opt/repository")
        seen = await box.run(INSTALL, timeout_s=100)
        assert seen.exit_code == 0, seen.text + seen.stderr.decode()
        assert "it runs\nconfigured\ndutyfree-tiny\ndutyfree-tiny\t1\n" in seen.text
    assert content("/var/lib/dpkg/status") == before


async def test_root_adds_a_user_and_edits_files() -> None:
    hosts = content("/etc/hosts")
    async with dutyfree.local("cell") as host, host.lease() as box:
        seen = await box.run("useradd -m somebody && id -un somebody && grep -c somebody /etc/passwd && ls -d /home/*")
        assert seen.text == "somebody\n1\n/home/somebody\n", seen.stderr
        seen = await box.run("echo 127.0.0.1 elsewhere >> /etc/hosts && chmod 600 /etc/hosts && tail -1 /etc/hosts")
        assert seen.text == "127.0.0.1 elsewhere\n", seen.stderr
        async with host.lease() as other:
            assert await other.files.read("/etc/hosts") == hosts
    assert content("/etc/hosts") == hosts


async def test_copies_are_as_the_hosts_files_are() -> None:
    async with dutyfree.local("cell") as host, host.lease() as box:
        for path in map(Path, ("/etc/passwd", "/etc/hosts", "/var/lib/dpkg/status")):
            if path.exists():
                assert await box.files.read(str(path)) == path.read_bytes()
                seen = await box.run(["stat", "-c", "%a %u %g %Y", str(path)])
                assert seen.text == f"{path.stat().st_mode & 0o777:o} 0 0 {int(path.stat().st_mtime)}\n"


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="dutyfree-test-", dir="/opt"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


async def readable(box: Box, path: Path) -> bool:
    return (await box.run(["cat", str(path)])).exit_code == 0


@as_root
async def test_an_upload_goes_into_a_directory_of_the_hosts(place: Path, tmp_path: Path) -> None:
    (place / "program").write_text("the host's")
    (tmp_path / "program").write_text("the sandbox's")
    async with dutyfree.local("cell") as host, host.lease() as box:
        await box.files.upload(tmp_path / "program", f"{place}/new")
        await box.files.upload(tmp_path / "program", f"{place}/program")
        await box.files.append(f"{place}/program", b" own")
        assert await box.files.read(f"{place}/program") == b"the sandbox's own"
        assert [entry.name for entry in await box.files.list(str(place))] == ["new", "program"]
    assert (place / "program").read_text() == "the host's"
    assert not (place / "new").exists()


@as_root
async def test_what_is_private_stays_private_whenever_it_was_made(place: Path) -> None:
    for name, mode in (("before", 0o600), ("group", 0o640), ("open", 0o644)):
        (place / name).write_text("secret")
        (place / name).chmod(mode)
    async with dutyfree.local("cell") as host, host.lease() as box:
        (place / "after").touch(mode=0o600)
        (place / "after").write_text("secret")
        async with host.lease() as younger:
            for each in (box, younger):
                assert await readable(each, place / "open")
                for name in ("before", "group", "after"):
                    assert not await readable(each, place / name)
                    assert (await each.run(f"chmod 644 {place / name} || mv {place / name} {place}/x")).exit_code == 0
                    assert not await readable(each, place / "x")


@as_root
async def test_a_masked_file_is_not_copied(place: Path) -> None:
    (place / "open").write_text("secret")
    async with dutyfree.local("cell", masks=(place / "open",)) as host, host.lease() as box:
        assert not await readable(box, place / "open")


@as_root
async def test_a_refusal_names_the_way(place: Path) -> None:
    deep = place / "a/b/c/d/e/f"
    deep.mkdir(parents=True)
    async with dutyfree.local("cell") as host, host.lease() as box:
        with pytest.raises(FileFailed, match=r"hint: .*image"):
            await box.files.write(f"{deep}/file", b"x")
        with pytest.raises(FileFailed, match=r"hint: .*image"):
            await box.files.upload(__file__, f"{deep}/file")


@as_root
async def test_accounts_have_no_passwords_of_the_hosts() -> None:
    async with dutyfree.local("cell") as host, host.lease() as box:
        seen = await box.run("stat -c %a /etc/shadow && cut -d: -f2 /etc/shadow | sort -u")
        assert seen.text == "640\n!\n", seen.stderr
