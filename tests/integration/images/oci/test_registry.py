"""Images over the wire and through Docker: from a registry, from an engine, and out again to run there."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import dutyfree
from dutyfree.archive.limits import ArchiveLimits
from dutyfree.errors import ArchiveRefused, DeadlineExceeded, InfraFailed, InvalidRequest
from dutyfree.images.oci.exporting import export_image
from dutyfree.images.oci.importing import import_source, import_tar
from dutyfree.images.ownership import Ownership
from dutyfree.images.store import Store
from dutyfree.images.trees.layers import merge_trees
from dutyfree.model import Image, SandboxSpec
from dutyfree.substrates.cell import CellSubstrate
from dutyfree.substrates.cell.sandbox import CellSandbox
from support.image_registry import READY_S, need, push, served, shell_tar, write_layout
from support.repository import ROOT

DOCKER_OWN = {".dockerenv", "dev", "etc", "proc", "sys"}
"""What Docker puts into every container."""


# The image: two layers over a base, with everything that a layer can do to those below it


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    content: bytes | None = None
    """None for a directory."""
    mode: int = 0o644
    owner: tuple[int, int] = (0, 0)
    target: str = ""
    kind: bytes = tarfile.REGTYPE

    def member(self) -> tuple[tarfile.TarInfo, io.BytesIO]:
        member = tarfile.TarInfo(self.name)
        member.type, member.linkname = (tarfile.DIRTYPE if self.content is None else self.kind), self.target
        member.mode, member.mtime, member.size = self.mode, 1_000_000_000 + len(self.name), len(self.content or b"")
        member.uid, member.gid = self.owner
        return member, io.BytesIO(self.content or b"")


LAYERS = (
    (
        Entry("data", mode=0o755),
        Entry("data/kept", b"kept", 0o640, (1000, 1001)),
        Entry("data/setuid", b"s", 0o6755, (65534, 65534)),
        Entry("data/removed", b"x"),
        Entry("data/changed", b"old"),
        Entry("data/becomes-directory", b"x"),
        Entry("data/becomes-file", mode=0o700),
        Entry("data/becomes-file/inner", b"x"),
        Entry("data/hard", b"", 0o640, (1000, 1001), target="data/kept", kind=tarfile.LNKTYPE),
        Entry("data/link", b"", target="kept", kind=tarfile.SYMTYPE),
        Entry("data/pipe", b"", 0o600, kind=tarfile.FIFOTYPE),
        Entry("sticky", mode=0o1777, owner=(7, 8)),
        Entry("opaque", mode=0o755),
        Entry("opaque/hidden", b"x"),
        Entry("opaque/again", b"old"),
        Entry("tree", mode=0o755),
        Entry("tree/a", mode=0o755),
        Entry("tree/a/b", b"x"),
    ),
    (
        Entry("data", mode=0o711),
        Entry("data/.wh.removed", b""),
        Entry("data/changed", b"new", 0o600),
        Entry("data/.wh.becomes-directory", b""),
        Entry("data/becomes-directory", mode=0o2755),
        Entry("data/becomes-directory/x", b"y"),
        Entry("data/becomes-file", b"now a file"),
        Entry("opaque", mode=0o750, owner=(5, 6)),
        Entry("opaque/.wh..wh..opq", b""),
        Entry("opaque/again", b"new"),
        Entry(".wh.tree", b""),
    ),
    (
        Entry("tree", mode=0o700),
        Entry("tree/fresh", os.urandom(300_000)),
        Entry("n" * 120, mode=0o755),
        Entry("n" * 120 + "/" + "é" * 60, b"long"),
        Entry("data", mode=0o755),
        Entry("data/.wh.link", b""),
    ),
)


def write_image(path: Path) -> list[str]:
    """Write the image as a layout; returns the digests of its layers' tars."""
    tars: list[bytes] = []
    for entries in LAYERS:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for entry in entries:
                archive.addfile(*entry.member())
        tars.append(buffer.getvalue())
    return write_layout(path, tars, {"Env": ["GREETING=hello there"], "WorkingDir": "/data"})


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry on loopback; its address."""
    with served(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture(scope="module")
def pushed(registry: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """The image's address in the registry, and its layers."""
    layout = tmp_path_factory.mktemp("pushed") / "layout"
    diff_ids = write_image(layout)
    address = f"docker://{registry}/team/app:1"
    push(layout, address)
    return address, diff_ids


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store").open()
    yield store
    store.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """A Docker engine of our own; its DOCKER_HOST."""
    need("dockerd", "docker.io")
    need("docker", "docker.io")
    if os.geteuid() != 0:
        pytest.skip("only root can start a Docker engine")
    script = ROOT / "scripts/docker-engine"
    # A short path: it holds a socket.
    with tempfile.TemporaryDirectory(prefix="engine-", dir="/tmp", ignore_cleanup_errors=True) as home:
        started = subprocess.run([script, "start", home], capture_output=True, text=True, timeout=60)
        if started.returncode:
            subprocess.run([script, "stop", home], timeout=60)
            pytest.skip(f"dockerd cannot run here: {started.stderr.strip()[-200:]}")
        try:
            yield started.stdout.strip()
        finally:
            subprocess.run([script, "stop", home], check=True, timeout=60)


def docker(engine: str, *arguments: str | Path) -> bytes:
    done = subprocess.run(["docker", "-H", engine, *arguments], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def in_docker(engine: str, image: str) -> dict[str, tuple[object, ...]]:
    """The files of a container, as Docker itself tells of them."""
    name = docker(engine, "create", "--network", "none", image, "/none").decode().strip()
    try:
        data = docker(engine, "export", name)
    finally:
        docker(engine, "rm", name)
    found: dict[str, tuple[object, ...]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            path = member.name.removeprefix("./").rstrip("/")
            if path.partition("/")[0] in DOCKER_OWN or not path:
                continue
            stream = archive.extractfile(member) if member.isreg() or member.islnk() else None
            kind = stat.S_IFMT(_mode_of(member))
            content = stream.read() if stream else member.linkname.encode()
            found[path] = (kind, member.mode & 0o7777, member.uid, member.gid, int(member.mtime), content)
    return found


def _mode_of(member: tarfile.TarInfo) -> int:
    kinds = {tarfile.DIRTYPE: stat.S_IFDIR, tarfile.SYMTYPE: stat.S_IFLNK, tarfile.FIFOTYPE: stat.S_IFIFO}
    return kinds.get(member.type, stat.S_IFREG)


def in_store(store: Store, layers: tuple[str, ...], target: Path) -> dict[str, tuple[object, ...]]:
    """The files of all layers together, as they are kept here."""
    target.mkdir()
    merge_trees([store.tree(layer) for layer in layers], target, bottom=True, ownership=store.ownership)
    return files_below(target, store.ownership)


def files_below(root: Path, ownership: Ownership) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    tops = [path for path in root.iterdir() if path.name not in DOCKER_OWN]
    for path in [each for top in tops for each in (top, *top.rglob("*"))]:
        info = path.lstat()
        kind = stat.S_IFMT(info.st_mode)
        content = b""
        if path.is_symlink():
            content = os.fsencode(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        owner = ownership.shown(info.st_uid), ownership.shown(info.st_gid)
        found[str(path.relative_to(root))] = (kind, stat.S_IMODE(info.st_mode), *owner, int(info.st_mtime), content)
    return found


async def in_cell(store: Store, image: Image) -> dict[str, tuple[object, ...]]:
    """The files of a cell, in its own mount, as the kernel shows them."""
    async with CellSubstrate(store=store) as cells, await cells.create(SandboxSpec(image=image)) as box:
        assert isinstance(box, CellSandbox)
        first = await asyncio.to_thread(Path(f"/proc/{box.pid}/uid_map").read_text)  # of the cell's own range of ids
        here = Path(f"/proc/{box.pid}/root")
        return await asyncio.to_thread(files_below, here, Ownership(int(first.split()[1])))


def test_an_image_from_a_registry_arrives_layer_by_layer(
    tmp_path: Path, store: Store, pushed: tuple[str, list[str]]
) -> None:
    address, diff_ids = pushed
    told: list[int] = []
    image = import_source(store, address, on_bytes=told.append)
    assert image.layers == tuple(diff_ids)
    assert (image.env, image.cwd, image.over_host) == ({"GREETING": "hello there"}, "/data", False)
    assert sum(told) > 300_000
    found = in_store(store, image.layers, tmp_path / "merged")
    assert {name for name in found if name.startswith("data/")} == {
        *("data/kept", "data/setuid", "data/changed", "data/becomes-directory", "data/becomes-directory/x"),
        *("data/becomes-file", "data/hard", "data/pipe"),
    }
    assert {name for name in found if name.startswith(("opaque", "tree"))} == {
        *("opaque", "opaque/again", "tree", "tree/fresh"),
    }
    assert store.check(deep=True) == []
    assert not list((store.root / "staging").iterdir())


def test_zstd_layers_are_made_into_ones_that_can_be_unpacked(tmp_path: Path, store: Store, registry: str) -> None:
    diff_ids = write_image(tmp_path / "layout")
    push(tmp_path / "layout", f"docker://{registry}/zstd:1", "--dest-compress-format=zstd")
    assert import_source(store, f"docker://{registry}/zstd:1").layers == tuple(diff_ids)


def test_what_a_registry_does_not_have_is_the_caller_s_mistake(store: Store, registry: str) -> None:
    for name in ("team/app:2", "nobody/nothing"):
        with pytest.raises(InvalidRequest, match="check the image's name and tag"):
            import_source(store, f"docker://{registry}/{name}")
    with pytest.raises(InvalidRequest, match="for example docker://"):
        import_source(store, f"docker://{registry}/Writes Case")
    with pytest.raises(InvalidRequest, match="check the path"):
        import_source(store, "oci-archive:/nonexistent.tar")


def test_a_registry_that_is_not_there_is_not_the_caller_s_mistake(store: Store) -> None:
    need("skopeo", "skopeo")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(InfraFailed, match="check that the registry or engine is running"):
            import_source(store, f"docker://127.0.0.1:{closed.getsockname()[1]}/app")


def test_a_registry_that_never_answers_is_not_waited_for(store: Store) -> None:
    need("skopeo", "skopeo")
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(DeadlineExceeded):
        import_source(store, f"docker://127.0.0.1:{silent.getsockname()[1]}/app", timeout_s=0.5)
    assert not list((store.root / "staging").iterdir())


KILLED = """
import sys
from pathlib import Path
from dutyfree.images.oci.importing import import_source
from dutyfree.images.store import Store

import_source(Store(Path(sys.argv[1])).open(), sys.argv[2])
"""


def test_skopeo_ends_with_the_process_that_started_it(store: Store) -> None:
    need("skopeo", "skopeo")
    need("setpriv", "util-linux")
    environment = {**os.environ, "PYTHONPATH": str(Path(dutyfree.__file__).parents[1])}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(READY_S)
        address = f"docker://127.0.0.1:{silent.getsockname()[1]}/app"
        command = [sys.executable, "-c", KILLED, str(store.root), address]
        with subprocess.Popen(command, env=environment) as process:
            connection, _ = silent.accept()
            process.kill()
        with connection:
            connection.settimeout(READY_S)
            while connection.recv(4096):
                pass
    assert list((store.root / "staging").iterdir())
    store.open()
    assert not list((store.root / "staging").iterdir())


def test_plain_http_is_used_on_loopback_only_unless_asked_for(store: Store, pushed: tuple[str, list[str]]) -> None:
    # Linux takes it for this machine; it does not say so.
    elsewhere = pushed[0].replace("127.0.0.1", "0.0.0.0")
    with pytest.raises(InvalidRequest, match="allow that with insecure"):
        import_source(store, elsewhere)
    assert import_source(store, elsewhere, insecure=True).layers == tuple(pushed[1])


def test_no_more_than_the_limit_is_fetched(store: Store, pushed: tuple[str, list[str]]) -> None:
    with pytest.raises(ArchiveRefused, match="more than 1000 bytes"):
        import_source(store, pushed[0], limits=replace(ArchiveLimits(), bytes=1000))
    assert not list(store.layers_directory.iterdir())


def test_an_image_is_the_same_here_and_in_docker(
    tmp_path: Path, store: Store, engine: str, pushed: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine)
    options = ["--quiet", "--src-tls-verify=false", f"--dest-daemon-host={engine}"]
    subprocess.run(["skopeo", "copy", *options, pushed[0], "docker-daemon:app:1"], check=True, timeout=60)
    image = import_source(store, pushed[0])
    expected = in_docker(engine, "app:1")
    assert in_store(store, image.layers, tmp_path / "merged") == expected
    assert asyncio.run(in_cell(store, image)) == expected
    assert import_source(store, "docker-daemon:app:1") == image
    with pytest.raises(InvalidRequest, match="check the"):
        import_source(store, "docker-daemon:app:none")
    exported = export_image(store, image, tmp_path / "out.tar", "dutyfree/app:2")
    docker(engine, "load", "-i", exported.path)
    assert in_docker(engine, "dutyfree/app:2") == expected
    for kind in ("oci-archive", "docker-archive"):
        again = import_source(store, f"{kind}:{exported.path}")
        assert in_store(store, again.layers, tmp_path / kind) == expected
        assert again.layers == exported.layers


def test_an_exported_image_runs_in_docker(tmp_path: Path, store: Store, engine: str) -> None:
    root = io.BytesIO(shell_tar({}))
    image = replace(import_tar(store, root), env={"GREETING": "hello there"}, cwd="/srv")
    export_image(store, image, tmp_path / "out.tar", "dutyfree/shell")
    docker(engine, "load", "-i", tmp_path / "out.tar")
    run = ["run", "--rm", "--network", "none", "dutyfree/shell"]
    assert docker(engine, *run, "/bin/sh", "-c", 'echo "$GREETING"; pwd') == b"hello there\n/srv\n"
