"""Whatever is in a layer: the cell works or is refused, nothing of the host is reached, and nothing on it changes.

The trees are put into the store as they are: no archive could carry most of them, and that is another wall.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dutyfree.contract import Sandbox
from dutyfree.errors import DutyfreeError, FileFailed, SubstrateUnavailable
from dutyfree.images.ownership import is_root
from dutyfree.images.store import Store
from dutyfree.model import Action, Image, Network, SandboxSpec, Writes
from dutyfree.removal import remove_tree
from dutyfree.substrates.cell import CellSubstrate
from dutyfree.testing.leaks import Machine, difference, snapshot

NETWORKS = (Network.NONE, Network.HOST)
SECRET = b"this must stay on the host\n"
PROGRAMS = ("sh", "cat", "ls", "head", "id", "stat", "true")
SPAWNER_ROOMS = ("host", "layers", "frozen", "up", "up/upper", "mask", "bases", "bases/0", "skeleton", "devices", "new")
DEEP = 1500
needs_root = pytest.mark.skipif(not is_root(), reason="only root can put this into a layer")

Build = Callable[[Path, Path], None]
"""Makes a tree hostile; the second path is a secret of the host's."""


def etc(target: str) -> Build:
    def build(tree: Path, secret: Path) -> None:
        (tree / "etc").symlink_to(target.format(secret=secret, folder=secret.parent))

    return build


def replaced(name: str, target: str | None) -> Build:
    """`name` is a link, or a file."""

    def build(tree: Path, secret: Path) -> None:
        if target is None:
            (tree / name).write_bytes(b"a file")
        else:
            (tree / name).symlink_to(target.format(secret=secret, folder=secret.parent))

    return build


def name_files(target: str) -> Build:
    """The files that a cell is given to resolve names are links."""

    def build(tree: Path, secret: Path) -> None:
        (tree / "etc").mkdir()
        for name in ("hosts", "resolv.conf"):
            (tree / "etc" / name).symlink_to(target.format(secret=secret, folder=secret.parent))

    return build


def odd_name_files(tree: Path, secret: Path) -> None:
    (tree / "etc" / "hosts").mkdir(parents=True)
    (tree / "etc" / "hosts" / "file").write_bytes(b"x")
    os.mkfifo(tree / "etc" / "resolv.conf")


def directory_for_name_file(tree: Path, secret: Path) -> None:
    (tree / "etc" / "resolv.conf").mkdir(parents=True)
    (tree / "etc" / "resolv.conf" / "file").write_bytes(b"x")


def deep(tree: Path, secret: Path) -> None:
    here = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def rooms_are_links(tree: Path, secret: Path) -> None:
    """Where the spawner keeps things, in its own root: `.` and `/` of a cell must not be there."""
    for name in ("host", "layers", "frozen", "up", "mask", "bases", "new", "devices", "skeleton"):
        (tree / name).symlink_to("/../../" + name)
    (tree / "climb").symlink_to("../" * 40)


def nothing(tree: Path, secret: Path) -> None:
    """An image may have one program and not even /etc."""


HOSTILE: dict[str, Build] = {
    "etc is the host's": etc("/host/etc"),
    "etc climbs out": etc("../../../../../../../../host/etc"),
    "etc is the secret's folder": etc("/host{folder}"),
    "etc leads through proc": etc("/proc/1/root/host/etc"),
    "etc leads through a cwd": etc("/proc/self/cwd/host/etc"),
    "etc is a file": replaced("etc", None),
    "etc leads nowhere": etc("/nowhere/at/all"),
    "etc is itself": etc("etc"),
    "name files are the secret": name_files("/host{secret}"),
    "name files climb to the secret": name_files("../../../../../../../../host{secret}"),
    "name files are the cell's kernel": name_files("/proc/sys/kernel/hostname"),
    "name files are odd": odd_name_files,
    "a name file is a directory": directory_for_name_file,
    "proc is the host's": replaced("proc", "/host/proc"),
    "proc is a file": replaced("proc", None),
    "dev is the host's": replaced("dev", "/host/dev"),
    "dev is a file": replaced("dev", None),
    "sys is the host's": replaced("sys", "/host/sys"),
    "root is the host's": replaced("root", "/host{folder}"),
    "tmp is the host's": replaced("tmp", "../../host{folder}"),
    "the spawner's rooms are links": rooms_are_links,
    "deep": deep,
    "nothing": nothing,
}


@dataclass(frozen=True)
class World:
    store: Store
    cells: CellSubstrate
    secret: Path
    """Readable by everybody on the host, but in a directory that is closed to cells."""

    def layer(self, build: Build, *, programs: bool = True) -> str:
        with self.store.staging() as scratch:
            tree = scratch / "tree"
            tree.mkdir()
            if programs:
                copy_programs(tree)
            build(tree, self.secret)
            give_away(tree, self.store.ownership.stored(0))
            digest = "sha256:" + hashlib.sha256(os.urandom(32)).hexdigest()
            return self.store.add(tree, digest, "test").digest


def copy_programs(tree: Path) -> None:
    (tree / "bin").mkdir()
    for name in PROGRAMS:
        program = Path(shutil.which(name) or "").resolve()
        shutil.copy(program, tree / "bin" / name)
        linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout.split()
        for library in (Path(word) for word in linked if word.startswith("/")):
            target = tree / library.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library.resolve(), target)


def give_away(tree: Path, owner: int) -> None:
    if owner < 0:
        return
    for folder, names, files, here in os.fwalk(tree, topdown=True):
        for name in (*names, *files):
            os.chown(name, owner, owner, dir_fd=here, follow_symlinks=False)
        if folder.count("/") > 200:
            names.clear()
    os.chown(tree, owner, owner)


@pytest.fixture
def secret() -> Iterator[Path]:
    """In /var/lib for root, whose cells see it, closed; elsewhere where no cell should look."""
    base = "/var/lib" if is_root() else None  # not where conformance checks list what there is
    folder = Path(tempfile.mkdtemp(prefix="secret-", dir=base))
    path = folder / "file"
    path.write_bytes(SECRET)
    path.chmod(0o644)
    try:
        yield path
    finally:
        shutil.rmtree(folder)


@pytest.fixture
async def world(secret: Path) -> AsyncIterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))  # not tmp_path: pytest cannot remove deep trees
    store = Store(folder / "store")
    try:
        async with CellSubstrate(store=store) as cells:
            yield World(store, cells, secret)
    except SubstrateUnavailable as error:
        pytest.skip(str(error))
    finally:
        store.close()
        remove_tree(folder)


def host_state(secret: Path) -> dict[str, object]:
    """What a hostile image could have changed."""
    watched = [
        Path(name)
        for name in ("/", "/etc", "/etc/hosts", "/etc/resolv.conf", "/dev/null", "/srv", "/proc/sys/kernel/hostname")
    ]
    state: dict[str, object] = {"secret": secret.read_bytes(), "folder": sorted(os.listdir(secret.parent))}  # noqa: PTH208
    for path in (*watched, secret, secret.parent):
        if path.exists():
            found = path.stat()
            state[str(path)] = (found.st_ino, found.st_mode, found.st_uid, None if path.is_dir() else found.st_mtime_ns)
    for path in watched:
        if path.is_file():
            state[f"content of {path}"] = path.read_bytes()
    return state


def ways_to(secret: Path) -> list[str]:
    inside = str(secret).lstrip("/")
    starts = [
        "/",
        "/../../../",
        "/proc/1/root/",
        "/proc/1/cwd/",
        "/proc/self/root/../",
        "/climb/",
        "/root/",
        "/tmp/",
        "/etc/",
    ]
    starts += [f"/{room}/" for room in SPAWNER_ROOMS] + [f"/proc/1/root/{room}/" for room in SPAWNER_ROOMS]
    ends = [inside, secret.name, f"host/{inside}"]
    return [start + end for start in starts for end in ends] + ["/etc/hosts", "/etc/resolv.conf"]


async def left_since(before: Machine) -> list[str]:
    """What is left of this process's cells; other processes may be at work beside it."""
    for _ in range(50):
        ours = (f"dutyfree-{os.getpid()}-", f"dutyfree/{os.getpid()}-", "file descriptor", "mount ")
        left = [line for line in difference(before, snapshot()) if any(mark in line for mark in ours)]
        if not left:
            return []
        await asyncio.sleep(0.04)
    return left


async def expect_nothing_reached(box: Sandbox, secret: Path) -> None:
    for path in ways_to(secret):
        with contextlib.suppress(FileFailed):
            assert SECRET not in await box.files.read(path, limit_bytes=1 << 20), f"the secret is at {path}"


@pytest.mark.parametrize("over_host", [False, True], ids=["alone", "over-host"])
@pytest.mark.parametrize("case", HOSTILE)
async def test_a_hostile_tree_reaches_nothing(world: World, case: str, over_host: bool) -> None:
    layer = world.layer(HOSTILE[case], programs=not over_host)
    before, machine = host_state(world.secret), snapshot()
    for network in NETWORKS:
        spec = SandboxSpec(image=Image((layer,), over_host=over_host, cwd="/"), network=network)
        try:
            box = await world.cells.create(spec)
        except DutyfreeError:
            assert await left_since(machine) == []
        else:
            async with box:
                assert (await box.run(Action(["true"]))).exit_code == 0
                await expect_nothing_reached(box, world.secret)
                for path in ("/etc/hosts", "/etc/resolv.conf", "/proc/sys/kernel/hostname", "/tmp/file", "/root/file"):
                    await box.run(Action(f"echo changed > {path}", timeout_s=0.5))
                async with await box.snapshot() as frozen:
                    [fork] = await box.fork(1)
                    await expect_nothing_reached(fork, world.secret)
                    await fork.destroy()
                    assert frozen.image.layers[0] == layer
                await box.reset()
                assert (await box.run(Action(["true"]))).exit_code == 0
        assert host_state(world.secret) == before
    assert await left_since(machine) == []


@pytest.mark.parametrize("upper", list(Writes))
async def test_descriptors_of_who_makes_the_cell_lead_nowhere(world: World, upper: Writes) -> None:
    """A link into /proc is resolved by whoever follows it, and a cell's maker has more than a cell."""
    before = host_state(world.secret)
    for number in (*range(3, 20), 63):
        layer = world.layer(etc(f"/proc/self/fd/{number}"))
        for network in NETWORKS:
            image = Image((layer,), over_host=False, cwd="/")
            with contextlib.suppress(DutyfreeError):
                async with await world.cells.create(SandboxSpec(image=image, network=network, writes=upper)) as box:
                    await expect_nothing_reached(box, world.secret)
        assert host_state(world.secret) == before


@pytest.mark.parametrize("network", NETWORKS)
async def test_an_image_with_one_program_and_no_directories_works(world: World, network: Network) -> None:
    layer = world.layer(nothing)
    async with await world.cells.create(SandboxSpec(image=Image((layer,), False, cwd="/"), network=network)) as box:
        assert (await box.run(Action("id -u; ls -d /proc/1 /dev/null"))).text == "0\n/dev/null\n/proc/1\n"


@needs_root
@pytest.mark.parametrize("over_host", [False, True], ids=["alone", "over-host"])
async def test_device_nodes_of_a_layer_cannot_be_opened(world: World, over_host: bool) -> None:
    nodes = {
        "zero": (stat.S_IFCHR, os.makedev(1, 5)),
        "disk": (stat.S_IFBLK, os.makedev(8, 0)),
        "fuse": (stat.S_IFCHR, os.makedev(10, 229)),
    }

    def build(tree: Path, secret: Path) -> None:
        for name, (kind, device) in nodes.items():
            os.mknod(tree / name, kind | 0o666, device)
            (tree / name).chmod(0o666)

    layer = world.layer(build, programs=not over_host)
    async with await world.cells.create(SandboxSpec(image=Image((layer,), over_host, cwd="/"))) as box:
        for name in nodes:
            seen = await box.run(Action(["head", "-c", "1", f"/{name}"]))
            assert seen.exit_code == 1, f"/{name} was opened"
            assert b"ermission denied" in seen.stderr or b"not permitted" in seen.stderr


@needs_root
async def test_a_program_of_roots_gives_no_power(world: World) -> None:
    """Set-uid, of the cell's root and of the host's own, which no import leaves in a layer."""

    def build(tree: Path, secret: Path) -> None:
        shutil.copy(tree / "bin" / "cat", tree / "bin" / "theirs")

    layer = world.layer(build)
    theirs = world.store.tree(layer) / "bin" / "theirs"
    os.chown(theirs, 0, 0)
    theirs.chmod(0o6755)
    (world.store.tree(layer) / "bin" / "cat").chmod(0o6755)
    async with await world.cells.create(SandboxSpec(image=Image((layer,), False, cwd="/"))) as box:
        for program in ("cat", "theirs"):
            status = (await box.run(Action([program, "/proc/self/status"]))).text
            lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            assert lines["Uid"].split() == ["0"] * 4
            assert lines["NoNewPrivs"] == "1"


@needs_root
@pytest.mark.parametrize("over_host", [False, True], ids=["alone", "over-host"])
async def test_marks_of_overlay_mounts_open_nothing(world: World, over_host: bool) -> None:
    """The kernel follows `redirect` to any path of the layers below, past the modes of the directories on the way."""
    folder, secret = world.secret.parent, world.secret

    def build(tree: Path, _: Path) -> None:
        (tree / "folder").mkdir()
        os.setxattr(tree / "folder", "trusted.overlay.redirect", os.fsencode(folder))
        for name in ("content", "whole"):
            (tree / name).write_bytes(bytes(len(SECRET)))
            os.setxattr(tree / name, "trusted.overlay.metacopy", b"")
        os.setxattr(tree / "content", "trusted.overlay.redirect", os.fsencode(secret))
        (tree / "opaque").mkdir()
        os.setxattr(tree / "opaque", "trusted.overlay.opaque", b"x")

    layer = world.layer(build, programs=not over_host)
    folder.chmod(0o700)
    async with await world.cells.create(SandboxSpec(image=Image((layer,), over_host, cwd="/"))) as box:
        for path in ("/folder/file", "/content", "/whole", "/opaque/file", str(secret)):
            with contextlib.suppress(FileFailed):
                assert SECRET not in await box.files.read(path), f"the secret is at {path}"


@needs_root
async def test_what_the_host_hides_stays_hidden_below_a_layer(world: World) -> None:
    """An image may have directories and deletions where the host's are masked."""

    def build(tree: Path, secret: Path) -> None:
        for name in ("etc/ssh", "var/log", "home", "root", "boot", "etc/ssl/private"):
            (tree / name).mkdir(parents=True)
        os.mknod(tree / "etc" / "shadow", stat.S_IFCHR, 0)
        (tree / "etc" / "gshadow").symlink_to("shadow")

    layer = world.layer(build, programs=False)
    async with await world.cells.create(SandboxSpec(image=Image((layer,), cwd="/"))) as box:
        for name in ("/etc/ssh", "/var/log", "/home", "/root", "/boot", "/etc/ssl/private"):
            assert await box.files.list(name) == []
        for name in ("/etc/shadow", "/etc/gshadow", "/etc/machine-id"):
            with pytest.raises(FileFailed):
                await box.files.read(name)
