"""What cells show of the host, on this machine: hostile images, submounts, sources that change, pools."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

import dutyfree
from dutyfree import Mount
from dutyfree.errors import InvalidRequest, SubstrateFailed, SubstrateUnavailable
from dutyfree.images.ownership import SUBORDINATE_IDS
from dutyfree.model import Action, Image, SandboxSpec
from dutyfree.substrates import sources
from dutyfree.substrates.cell import CellSubstrate, shown

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root only: file systems are mounted")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that every user may read, wherever pytest keeps its own."""
    root = tmp_path / "data"
    (root / "inner").mkdir(parents=True)
    (root / "file").write_text("shown")
    (root / "inner" / "file").write_text("inner")
    return root


@pytest_asyncio.fixture
async def cells(tmp_path: Path) -> AsyncIterator[CellSubstrate]:
    substrate = CellSubstrate(store=tmp_path / "store")
    try:
        await substrate.open()
    except SubstrateUnavailable as error:
        pytest.skip(str(error))
    yield substrate
    await substrate.close()


async def text(substrate: CellSubstrate, spec: SandboxSpec, command: str) -> str:
    async with await substrate.create(spec) as box:
        seen = await box.run(Action(command))
        return seen.text + seen.stderr.decode()


def layer(substrate: CellSubstrate, tree: Path) -> Image:
    if os.geteuid() == 0:
        for path in (tree, *tree.rglob("*")):
            os.chown(path, SUBORDINATE_IDS, SUBORDINATE_IDS, follow_symlinks=False)
    return Image((substrate.store.adopt(tree, "built").digest,))


async def test_a_hostile_image_cannot_lead_a_mount_elsewhere(cells: CellSubstrate, data: Path, tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    outside.mkdir()
    (tree / "srv" / "data").mkdir(parents=True)
    for name, target in {
        "root": "/",
        "out": str(outside),
        "up": "../../../../../../..",
        "proc": "/proc/self/root",
        "host": "/host",
        "fd": "/proc/1/cwd",
    }.items():
        (tree / "srv" / name).symlink_to(target)
    os.mkfifo(tree / "srv" / "pipe")
    image = layer(cells, tree)
    before = sorted(os.listdir("/"))  # noqa: PTH208 - names alone
    for target in ("root/x", "root", "out", "out/x", "up/x", "proc/x", "host/x", "fd/x", "fd", "pipe", "pipe/x"):
        for source in (data, data / "file"):
            with pytest.raises(InvalidRequest, match="nothing can be mounted"):
                await cells.create(SandboxSpec(image=image, mounts=(Mount(source, f"/srv/{target}"),)))
    assert not list(outside.iterdir())
    assert sorted(os.listdir("/")) == before  # noqa: PTH208 - names alone
    spec = SandboxSpec(image=image, mounts=(Mount(data, "/srv/data"),))
    assert await text(cells, spec, "cat /srv/data/file; ls /srv") == "showndata\nfd\nhost\nout\npipe\nproc\nroot\nup\n"


@as_root
async def test_what_is_mounted_below_a_source_is_not_shown(cells: CellSubstrate, data: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", data / "inner"], check=True)  # noqa: ASYNC221
    try:
        (data / "inner" / "secret").write_text("secret")
        spec = SandboxSpec(mounts=(Mount(data, "/data"), Mount(data / "inner", "/whole")))
        assert await text(cells, spec, "ls /data/inner; cat /whole/secret") == "file\nsecret"
    finally:
        subprocess.run(["umount", data / "inner"], check=True)  # noqa: ASYNC221


@pytest.fixture
def late_mount(data: Path) -> Iterator[Path]:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", data / "inner"], check=True)
    try:
        (data / "inner" / "late").write_text("late")
        yield data / "inner"
    finally:
        subprocess.run(["umount", data / "inner"], check=True)


@as_root
async def test_a_file_system_that_was_mounted_later_is_shown(cells: CellSubstrate, late_mount: Path) -> None:
    assert await text(cells, SandboxSpec(mounts=(Mount(late_mount, "/late"),)), "cat /late/late") == "late"
    assert await text(cells, SandboxSpec(mounts=(Mount(late_mount / "late", "/f"),)), "cat /f") == "late"
    # The mount is not held: the fixture can unmount it at once.


def replace_by_link(data: Path) -> None:
    data.rename(data.parent / "moved")
    data.symlink_to(data.parent / "private")


def replace_by_directory(data: Path) -> None:
    data.rename(data.parent / "moved")
    (data.parent / "private").rename(data)


@pytest.mark.parametrize("replace", [replace_by_link, replace_by_directory])
async def test_a_source_that_is_replaced_meanwhile_shows_nothing_else(
    cells: CellSubstrate, data: Path, monkeypatch: pytest.MonkeyPatch, replace: Callable[[Path], None]
) -> None:
    """It is replaced in the worst moment: after the checks, before the mount."""
    (data.parent / "private").mkdir()
    (data.parent / "private" / "file").write_text("secret")
    real = sources.open_sources

    async def replaced(*arguments: object) -> object:
        opened = await real(*arguments)  # type: ignore[arg-type]
        replace(data)
        return opened

    monkeypatch.setattr(shown, "open_sources", replaced)
    spec = SandboxSpec(mounts=(Mount(data, "/data"),))
    if os.geteuid() == 0:
        assert await text(cells, spec, "cat /data/file") == "shown"
    else:
        with pytest.raises(InvalidRequest, match="nothing can be mounted"):
            await cells.create(spec)


async def test_a_source_that_is_gone_ends_a_reset_with_a_typed_error(cells: CellSubstrate, data: Path) -> None:
    async with await cells.create(SandboxSpec(mounts=(Mount(data, "/data"),))) as box:
        shutil.rmtree(data)
        with pytest.raises((InvalidRequest, SubstrateFailed)):
            await box.reset()
        assert not box.alive


@as_root
async def test_private_files_of_the_host_stay_private(cells: CellSubstrate, data: Path) -> None:
    (data / "private").write_text("secret")
    (data / "private").chmod(0o600)
    (data / "closed").mkdir(mode=0o700)
    (data / "closed" / "open").write_text("secret")
    command = "id -u; cat /data/private; chmod a+rx /data/closed; cat /data/closed/open; cp /data/private /tmp/x"
    found = await text(cells, SandboxSpec(mounts=(Mount(data, "/data"),)), command)
    assert "secret" not in found
    assert found.count("Permission denied") >= 3


def held(data: Path) -> list[str]:
    """The mounts and descriptors of this process that have to do with `data`."""
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(data) in line]
    links = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    return [*mounts, *(link for link in links if link.startswith(str(data)))]


async def test_nothing_of_a_mount_is_left_on_the_host(cells: CellSubstrate, data: Path) -> None:
    for _ in range(3):
        await text(cells, SandboxSpec(mounts=(Mount(data, "/data"), Mount(data / "file", "/f"))), "cat /data/file")
    with pytest.raises(InvalidRequest):
        await cells.create(SandboxSpec(mounts=(Mount(data, "/a"), Mount(data, "/etc/passwd"))))
    assert held(data) == []
    fd = os.open(data, os.O_PATH)
    assert held(data) == [str(data)]
    os.close(fd)


async def test_a_pool_gives_no_sandbox_with_other_mounts(data: Path) -> None:
    options = dutyfree.PoolOptions(sandboxes=4)
    try:
        async with dutyfree.local(pool=options) as host:
            for mounts, expected in (
                ([Mount(data, "/data")], "shown"),
                ([], ""),
                ([Mount(data / "inner", "/data")], "inner"),
                ([Mount(data, "/data")], "shown"),
            ):
                async with host.lease(mounts=mounts) as box:
                    assert (await box.run("cat /data/file 2>/dev/null")).text == expected
            async with host.group(n=2, mounts=[Mount(data, "/data")]) as group:
                for box in group:
                    assert (await box.run("cat /data/file")).text == "shown"
    except SubstrateUnavailable as error:
        pytest.skip(str(error))
