"""A life on hosts with all that can be mounted on them, as root and as an ordinary user."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.made_hosts import live, run

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="hosts: only root can make them"),
    pytest.mark.parametrize("rootless", [False, True], ids=["root", "user"]),
]
PARTS = "mkdir -p /tmp/parts && mount -t tmpfs parts /tmp/parts"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in a tree of the installation, where something can be mounted."""
    path = Path(f"/opt/dutyfree-test-{os.getpid()}")
    path.mkdir(mode=0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def home() -> Iterator[Path]:
    """Of an ordinary user; not below pytest's own directories, which are closed to it."""
    path = Path(f"/tmp/dutyfree-home-{os.getpid()}")
    path.mkdir()
    path.chmod(0o777)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_nothing_special(rootless: bool, home: Path) -> None:
    lived = live("", rootless=rootless, directory=home)
    assert "host-files" not in lived.unenforced


def test_a_driver_that_is_mounted_below_usr(rootless: bool, place: Path, home: Path) -> None:
    # As on GPU nodes: the reproduction that ended in `mount /bases/1: Invalid argument`.
    script = f"mount -t tmpfs driver {place}; echo here > {place}/lib; chmod 644 {place}/lib"
    lived = live(
        script, f"cat {place}/lib", f"echo own > {place}/own && cat {place}/own", rootless=rootless, directory=home
    )
    assert lived.seen == ["here\n", "own\n"]


def test_an_image_of_squashfs(rootless: bool, place: Path, home: Path) -> None:
    if shutil.which("mksquashfs") is None:
        pytest.skip("hosts: mksquashfs is missing (Debian: squashfs-tools)")
    (home / "content").mkdir()
    (home / "content/file").write_text("packed\n")
    subprocess.run(["mksquashfs", home / "content", home / "image", "-quiet", "-no-progress"], check=True, timeout=60)
    script = f"mount -t squashfs -o loop,ro {home}/image {place}"
    lived = live(
        script, f"cat {place}/file; echo own > {place}/own; cat {place}/own", rootless=rootless, directory=home
    )
    assert lived.seen == ["packed\nown\n"]


def test_single_files_as_engines_and_driver_toolkits_mount_them(rootless: bool, place: Path, home: Path) -> None:
    (place / "lib.so").write_text("")
    (home / "driver").write_text("the driver\n")
    (home / "driver").chmod(0o644)
    script = f"mount --bind {home}/driver {place}/lib.so"
    lived = live(script, f"cat {place}/lib.so; echo x > {place}/lib.so || echo no", rootless=rootless, directory=home)
    if rootless:
        assert lived.seen == ["the driver\nno\n"]
        assert str(place) in lived.unenforced["host-files"]
    else:  # root's cells have a copy of their own
        assert lived.seen == ["the driver\n"]


def test_a_large_single_file(rootless: bool, home: Path) -> None:
    with (home / "driver").open("wb") as driver:
        driver.truncate(64 * 1024 * 1024)
    (home / "driver").chmod(0o644)
    script = f"mount --bind {home}/driver /usr/bin/nohup"
    lived = live(script, "wc -c < /usr/bin/nohup", rootless=rootless, directory=home)
    assert lived.seen == ["67108864\n"]
    assert "/usr/bin" in lived.unenforced["host-files"]


def test_nested_and_read_only_mounts(rootless: bool, place: Path, home: Path) -> None:
    script = f"""
        mount -t tmpfs outer {place}; mkdir -m 755 {place}/a {place}/a/b
        mount -t tmpfs inner {place}/a/b; echo deep > {place}/a/b/c
        mount -o remount,bind,ro {place}/a/b; chmod 755 {place}
    """
    lived = live(
        script, f"cat {place}/a/b/c; echo own > {place}/a/b/own && echo yes", rootless=rootless, directory=home
    )
    assert lived.seen == ["deep\nyes\n"]


@pytest.mark.parametrize("kind", ["usr", "var", "etc"])
def test_a_part_of_the_installation_on_a_file_system_of_its_own(rootless: bool, home: Path, kind: str) -> None:
    script = f"""
        {PARTS}; mkdir /tmp/parts/none
        mount -t overlay own -o lowerdir=/{kind}:/tmp/parts/none /{kind}
    """
    lived = live(
        script, f'test -n "$(ls /{kind})" && echo full; ls /var/log /etc/ssh', rootless=rootless, directory=home
    )
    assert lived.seen == ["full\n/etc/ssh:\n\n/var/log:\n"] or lived.seen == ["full\n/var/log:\n"]


def test_a_read_only_bind_of_usr(rootless: bool, home: Path) -> None:
    script = "mount --bind /usr /usr; mount -o remount,bind,ro /usr"
    lived = live(script, "touch /usr/own && echo yes", rootless=rootless, directory=home)
    assert lived.seen == ["yes\n"]


def test_a_file_system_whose_server_does_not_answer(rootless: bool, place: Path, home: Path) -> None:
    # A FUSE file system without a server: every call into it hangs.
    if not Path("/dev/fuse").exists():
        pytest.skip("hosts: there is no /dev/fuse")
    options = "rootmode=40000,user_id=0,group_id=0"
    script = f"exec 9<>/dev/fuse; mount -i -t fuse -o fd=9,{options} nobody {place}"
    lived = live(script, "echo alive", rootless=rootless, directory=home)
    assert lived.seen == ["alive\n"]
    assert "fuse" in lived.unenforced["host-files"]


def test_an_overlay_as_root(rootless: bool, home: Path) -> None:
    script = f"""
        {PARTS}; mkdir -p /tmp/parts/up /tmp/parts/work /tmp/parts/root
        mount -t overlay root -o lowerdir=/,upperdir=/tmp/parts/up,workdir=/tmp/parts/work /tmp/parts/root
        for each in proc sys dev run tmp; do mount --rbind /$each /tmp/parts/root/$each; done
        cd /tmp/parts/root; mkdir old; pivot_root . old; umount -l /old; cd /
    """
    lived = live(script, "touch /usr/own && echo yes", rootless=rootless, directory=home)
    assert lived.seen == ["yes\n"]


def test_a_read_only_root_without_a_home(rootless: bool, home: Path) -> None:
    script = """
        mount -o remount,bind,ro /; mount -t tmpfs tmp /tmp; chmod 1777 /tmp
        mount -t tmpfs run /run
    """
    env = {"HOME": "", "TMPDIR": "", "DUTYFREE_STATE_DIR": ""}
    lived = live(script, "touch /usr/own && echo yes", rootless=rootless, directory=home, env=env)
    assert lived.seen == ["yes\n"]


def test_nothing_to_write_to_but_memory(rootless: bool, home: Path) -> None:
    script = "mount -o remount,bind,ro /; mount --bind /tmp /tmp; mount -o remount,bind,ro /tmp"
    script += "; if mountpoint -q /run; then mount -o remount,bind,ro /run; fi"
    env = {"HOME": "", "TMPDIR": "", "DUTYFREE_STATE_DIR": ""}
    live(script, rootless=rootless, directory=home, env=env)


def test_no_cgroups_at_all(rootless: bool, home: Path) -> None:
    lived = live("umount -l /sys/fs/cgroup", rootless=rootless, directory=home)
    assert "no cgroup file system is mounted" in lived.unenforced["limit-memory"]
    assert "limit-memory" not in lived.capabilities


def test_cgroups_of_version_2_without_controllers(rootless: bool, home: Path) -> None:
    if "nodev\tcgroup2" not in Path("/proc/filesystems").read_text():
        pytest.skip("hosts: no cgroups of version 2")
    lived = live("umount -l /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup", rootless=rootless, directory=home)
    if Path("/sys/fs/cgroup/memory").exists():  # they are version 1's here
        assert "limit-memory" in lived.unenforced


def test_a_pods_secrets_are_hidden(rootless: bool, place: Path, home: Path) -> None:
    script = f"mount -t tmpfs secret {place}; echo token > {place}/token; chmod 644 {place}/token"
    env = {"KUBERNETES_SERVICE_HOST": "192.0.2.1"}
    lived = live(script, f"cat {place}/token 2>&1 || echo hidden", rootless=rootless, directory=home, env=env)
    assert lived.seen[0].endswith("hidden\n")
    assert f"hidden: {place}" in lived.reasons


def test_a_masked_proc(rootless: bool, home: Path) -> None:
    script = (
        "mount --bind /dev/null /proc/kallsyms; mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys"
    )
    lived = live(script, "cat /proc/loadavg | wc -l", rootless=rootless, directory=home)
    assert lived.seen == ["1\n"]
    assert ("kill-tree" in lived.unenforced) is rootless


def test_no_link_of_an_image_is_followed_to_where_a_part_is_mounted(rootless: bool, place: Path, home: Path) -> None:
    inner = place / "inner"
    inner.mkdir(mode=0o755)
    secret = home / "secret"
    secret.mkdir(mode=0o755)
    (secret / "token").write_text("the combination is 1-2-3-4-5")
    script = f"mount -t tmpfs part {inner}; echo content > {inner}/file; chmod 644 {inner}/file; chmod 755 {inner}"
    program = Path(__file__).with_name("linked.py")
    done = run(script, program, str(inner), str(secret), rootless=rootless, directory=home)
    assert done.returncode == 0, done.stderr
    assert "1-2-3-4-5" not in done.stdout
    assert "content" in done.stdout


def test_what_the_kernel_makes_no_overlay_of_is_read_only(rootless: bool, place: Path, home: Path) -> None:
    # The kernel stacks two file systems, not three.
    script = f"""
        {PARTS}; cd /tmp/parts; mkdir none content one; echo host > content/file; chmod 666 content/file
        mkdir up work; mount -t overlay one -o lowerdir=content,upperdir=up,workdir=work one
        mkdir up2 work2; chmod 755 one; cd /
        mkdir /tmp/parts/x; mount -t tmpfs x /tmp/parts/x; mkdir /tmp/parts/x/up /tmp/parts/x/work
        mount -t overlay two -o lowerdir=/tmp/parts/one,upperdir=/tmp/parts/x/up,workdir=/tmp/parts/x/work {place}
    """
    lines = [f"echo cell > {place}/file || echo refused", f"cat {place}/file"]
    lived = live(script, *lines, rootless=rootless, directory=home)
    assert lived.seen == ["refused\n", "host\n"]
    assert str(place) in lived.unenforced["host-files"] or "/opt" in lived.unenforced["host-files"]


def test_a_pods_secret_stays_hidden_in_forks(rootless: bool, place: Path, home: Path) -> None:
    (place / "token").write_text("")
    script = f"{PARTS}; echo secret > /tmp/parts/token; chmod 644 /tmp/parts/token"
    script += f"; mount --bind /tmp/parts/token {place}/token"
    env = {"KUBERNETES_SERVICE_HOST": "192.0.2.1"}
    program = Path(__file__).with_name("masked.py")
    done = run(script, program, f"{place}/token", rootless=rootless, directory=home, env=env)
    assert done.returncode == 0, done.stderr
    assert "secret" not in done.stdout


def test_a_mount_opens_no_closed_directory(rootless: bool, place: Path, home: Path) -> None:
    (place / "data").mkdir(mode=0o755)
    (place / "private").write_text("secret")
    (place / "private").chmod(0o644)
    place.chmod(0o700)
    script = f"mount -t tmpfs data {place}/data; echo secret > {place}/data/file"
    lived = live(script, f"cat {place}/private {place}/data/file", rootless=rootless, directory=home)
    assert lived.seen == [""]
    assert f"hidden: {place}/data" in lived.reasons


def test_a_socket_that_is_mounted_is_not_shown(rootless: bool, home: Path) -> None:
    target = Path(f"/var/opt/dutyfree-test-{os.getpid()}.sock")
    target.parent.mkdir(exist_ok=True)
    target.write_text("")
    listening = f"import socket; s = socket.socket(socket.AF_UNIX); s.bind('{home}/s')"
    try:
        script = f'python3 -c "{listening}"; chmod 666 {home}/s; mount --bind {home}/s {target}'
        lived = live(script, f"test -S {target} && echo socket", rootless=rootless, directory=home)
        assert lived.seen == [""]
    finally:
        target.unlink()
