"""Caches of cells, on this machine: images, users, disks, hostile targets, pools, owners, killed hosts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import dutyfree
from dutyfree import Cache, Mount
from dutyfree.errors import CapacityError, InvalidRequest, LeaseLost, SandboxGone, SandboxPaused, SubstrateUnavailable
from dutyfree.images.ownership import SUBORDINATE_IDS
from dutyfree.images.store import Store
from dutyfree.model import Action, Capability, Image, Network, Resources, SandboxSpec, Writes
from dutyfree.substrates.cell import CellSubstrate
from dutyfree.testing import leaks

CACHE = Cache("c", "/var/cache/c")
SPEC = SandboxSpec(caches=(CACHE,))


@pytest_asyncio.fixture
async def cells(tmp_path: Path) -> AsyncIterator[CellSubstrate]:
    substrate = CellSubstrate(store=tmp_path / "store")
    try:
        await substrate.open()
    except SubstrateUnavailable as error:
        pytest.skip(str(error))
    yield substrate
    await substrate.close()


async def text(substrate: CellSubstrate, spec: SandboxSpec, command: str, *, save: bool = False) -> str:
    async with await substrate.create(spec) as box:
        seen = await box.run(Action(command))
        if save:
            await box.save_cache("c")
        return seen.text + seen.stderr.decode()


def layer(substrate: CellSubstrate, tree: Path) -> Image:
    if os.geteuid() == 0:
        for path in (tree, *tree.rglob("*")):
            os.chown(path, SUBORDINATE_IDS, SUBORDINATE_IDS, follow_symlinks=False)
    return Image((substrate.store.adopt(tree, "built").digest,))


@pytest.mark.parametrize(
    "more",
    [
        {"writes": Writes.DISK},
        {"writes": Writes.DISK, "resources": Resources(disk_bytes=None)},
        {"network": Network.HOST},
    ],
    ids=["disk", "shared-disk", "host-network"],
)
async def test_a_cache_can_be_filled_from_any_cell(cells: CellSubstrate, more: dict[str, object]) -> None:
    spec = SandboxSpec(caches=(CACHE,), **more)  # type: ignore[arg-type]
    await text(cells, spec, "echo 1 > /var/cache/c/x", save=True)
    await text(cells, spec, "echo 2 > /var/cache/c/y", save=True)
    assert await text(cells, SPEC, "cat /var/cache/c/*") == "1\n2\n"


async def test_a_cache_over_an_image_hides_what_the_image_has_there(cells: CellSubstrate, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "var" / "cache" / "c").mkdir(parents=True)
    (tree / "var" / "cache" / "c" / "of-image").write_text("x")
    spec = SandboxSpec(image=layer(cells, tree), caches=(CACHE,))
    assert await text(cells, spec, "ls /var/cache/c; echo 1 > /var/cache/c/x", save=True) == ""
    assert await text(cells, spec, "ls /var/cache/c") == "x\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="root only: an ordinary user's cells have one user")
async def test_files_and_the_directory_keep_their_owners(cells: CellSubstrate) -> None:
    make = "chown 1234:5678 /var/cache/c && cd /var/cache/c && echo x > f && chown 1234:5678 f"
    await text(cells, SPEC, make, save=True)
    assert await text(cells, SPEC, "stat -c '%u:%g' /var/cache/c/f; stat -c %u /var/cache/c") == "1234:5678\n1234\n"
    async with await cells.create(SPEC) as box:
        seen = await box.run(Action("echo y > /var/cache/c/g && cat /var/cache/c/g", user=1234))
        assert seen.text == "y\n"
    tree = cells.store.tree(cells.store.caches()[0].layer)
    assert (tree / "f").stat().st_uid == SUBORDINATE_IDS + 1234


async def test_a_hostile_image_cannot_lead_a_cache_elsewhere(cells: CellSubstrate, tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    outside.mkdir()
    (tree / "srv").mkdir(parents=True)
    for name, target in {"out": str(outside), "up": "../../../..", "proc": "/proc/self/root", "host": "/host"}.items():
        (tree / "srv" / name).symlink_to(target)
    os.mkfifo(tree / "srv" / "pipe")
    image = layer(cells, tree)
    for target in ("out", "out/x", "up/x", "proc/x", "host/x", "pipe", "pipe/x"):
        with pytest.raises(InvalidRequest, match="nothing can be mounted"):
            await cells.create(SandboxSpec(image=image, caches=(Cache("c", f"/srv/{target}"),)))
    assert list(outside.iterdir()) == []


async def test_the_store_itself_is_not_writable_from_a_cell(cells: CellSubstrate) -> None:
    await text(cells, SPEC, "echo 1 > /var/cache/c/x", save=True)
    tree = cells.store.tree(cells.store.caches()[0].layer)
    before = (tree / "x").stat()
    change = "cd /var/cache/c && echo 2 > x && chmod 777 x && touch -d @0 x && ln x y && rm x && mv y z && rmdir . ; ls"
    assert "z" in await text(cells, SPEC, change)
    assert (tree / "x").read_text() == "1\n"
    assert (tree / "x").stat()[:7] == before[:7]
    assert [path.name for path in tree.iterdir()] == ["x"]


async def test_a_version_stays_while_a_cell_uses_it(cells: CellSubstrate) -> None:
    await text(cells, SPEC, "echo 1 > /var/cache/c/x", save=True)
    old = cells.store.caches()[0].layer
    async with await cells.create(SPEC) as user:
        await text(cells, SPEC, "echo 2 > /var/cache/c/y", save=True)
        assert cells.store.prune().layers == ()
        assert (await user.run(Action("cat /var/cache/c/*"))).text == "1\n"
        await user.reset()
        assert (await user.run(Action("cat /var/cache/c/*"))).text == "1\n2\n"
    await text(cells, SPEC, "echo 3 > /var/cache/c/z", save=True)
    assert not cells.store.has(old)


async def test_mounts_and_caches_go_together(cells: CellSubstrate, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "f").write_text("shown")
    spec = SandboxSpec(mounts=(Mount(tmp_path / "data", "/var/cache/m"),), caches=(CACHE, Cache("d", "/var/cache/d")))
    assert await text(cells, spec, "cp /var/cache/m/f /var/cache/c/; cat /var/cache/c/f", save=True) == "shown"
    assert await text(cells, spec, "cat /var/cache/c/f; ls /var/cache/d; ls -d /var/cache/[cdm]") == (
        "shown/var/cache/c\n/var/cache/d\n/var/cache/m\n"
    )


async def test_what_a_cell_writes_in_caches_counts_as_its_own(cells: CellSubstrate) -> None:
    spec = SandboxSpec(caches=(CACHE,), resources=Resources(disk_bytes="8m"))
    async with await cells.create(spec) as box:
        seen = await box.run(Action("head -c 20000000 /dev/zero > /var/cache/c/big"))
        assert seen.exit_code != 0
        assert b"No space left" in seen.stderr


async def test_saving_is_refused_in_time(cells: CellSubstrate) -> None:
    box = await cells.create(SPEC)
    if Capability.PAUSE in cells.capabilities:
        await box.pause()
        with pytest.raises(SandboxPaused):
            await box.save_cache("c")
        await box.resume()
    await box.destroy()
    with pytest.raises(SandboxGone):
        await box.save_cache("c")
    assert list((cells.store.root / "staging").iterdir()) == []


async def test_a_destruction_in_the_middle_publishes_nothing_half(cells: CellSubstrate) -> None:
    for delay_s in (0.0, 0.01, 0.03, 0.06):
        box = await cells.create(SPEC)
        await box.run(Action(f"cd /var/cache/c; mkdir d{delay_s}; seq 3000 | split -l 1 -a 3 - d{delay_s}/"))
        saving = asyncio.ensure_future(box.save_cache("c"))
        await asyncio.sleep(delay_s)
        await box.destroy()
        await asyncio.wait([saving])
        saving.exception()
        for version in cells.store.caches():
            for path in cells.store.tree(version.layer).iterdir():
                assert len(list(path.iterdir())) == 3000
    assert list((cells.store.root / "staging").iterdir()) == []


async def test_a_cancelled_save_leaves_nothing(cells: CellSubstrate) -> None:
    async with await cells.create(SPEC) as box:
        await box.run(Action("cd /var/cache/c; seq 5000 | split -l 1 -a 3 -"))
        saving = asyncio.ensure_future(box.save_cache("c"))
        await asyncio.sleep(0.02)
        saving.cancel()
        await asyncio.wait([saving])
        assert list((cells.store.root / "staging").iterdir()) == []
        assert (await box.run(Action("echo alive"))).text == "alive\n"
        assert (await box.save_cache("c")).files in (0, 5000)


async def test_leases_of_other_owners_have_other_caches(tmp_path: Path) -> None:
    try:
        async with dutyfree.local("cell", store=tmp_path / "store") as host:
            async with host.lease(caches=[CACHE], owner="one") as box:
                await box.run("echo 1 > /var/cache/c/x")
                saved = await box.save_cache("c")
            assert saved.files == 1
            with pytest.raises(LeaseLost):
                await box.save_cache("c")
            for owner, expected in (("one", "x\n"), ("two", ""), ("", "")):
                async with host.lease(caches=[CACHE], owner=owner) as box:
                    assert (await box.run("ls /var/cache/c")).text == expected
            async with host.lease(caches=[Cache("c", "/c", owner="one")], owner="two") as box:
                assert (await box.run("ls /c")).text == "x\n"
                with pytest.raises(InvalidRequest, match="no cache"):
                    await box.save_cache("d")
                (fork,) = await box.fork(1)
                await fork.run("echo 2 > /c/y")
                assert (await fork.save_cache("c")).files == 1
    except SubstrateUnavailable as error:
        pytest.skip(str(error))


async def test_a_pool_gives_no_sandbox_with_other_caches(tmp_path: Path) -> None:
    options = dutyfree.PoolOptions(sandboxes=6)
    try:
        async with dutyfree.local("cell", pool=options, store=tmp_path / "store") as host:
            for turn in range(3):
                async with host.lease(caches=[CACHE]) as box:
                    await box.run(f"echo {turn} > /var/cache/c/{turn}")
                    await box.save_cache("c")
                async with host.lease() as box:
                    assert (await box.run("ls -d /var/cache/c")).exit_code != 0
                async with host.lease(caches=[CACHE], owner="other") as box:
                    assert (await box.run("ls /var/cache/c")).text == ""
    except SubstrateUnavailable as error:
        pytest.skip(str(error))


HOST = """
import asyncio, sys
import dutyfree

async def main():
    async with dutyfree.local("cell", store=sys.argv[1]) as host:
        async with host.lease(caches=[dutyfree.Cache("c", "/c", max_bytes="1g")]) as box:
            await box.run("cd /c; seq 5000 | split -l 1 -a 3 -; head -c 50000000 /dev/urandom > big")
            print("saving", flush=True)
            await box.save_cache("c")
            print("saved", flush=True)
            await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.alone  # leak checks beside it would count the spawners of hosts that it has killed
@pytest.mark.parametrize("after_s", [0.02, 0.1, 0.2, 0.4])
async def test_a_host_that_is_killed_while_it_saves_leaves_nothing(
    cells: CellSubstrate, tmp_path: Path, after_s: float
) -> None:
    before = leaks.snapshot()
    root = tmp_path / "another"
    process = subprocess.Popen([sys.executable, "-c", HOST, str(root)], stdout=subprocess.PIPE)  # noqa: ASYNC220
    try:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"saving\n"
        await asyncio.sleep(after_s)
        process.kill()
        told = (await asyncio.to_thread(process.communicate))[0]
    finally:
        process.kill()
        process.wait()
    assert await leaks.settle(before, within_s=10.0, hosts=[process.pid]) == []
    store = Store(root).open()
    assert store.check(deep=True) == []
    assert list((root / "staging").iterdir()) == []
    versions = store.caches()
    assert versions or b"saved" not in told
    for version in versions:
        assert store.layer(version.layer).entries == 5001
    store.prune()
    assert len(list(store.layers_directory.iterdir())) == len(versions)
    store.close()


async def test_a_cache_that_is_full_says_what_to_do(cells: CellSubstrate) -> None:
    small = SandboxSpec(caches=(Cache("c", "/c", max_bytes="100k"),))
    async with await cells.create(small) as box:
        await box.run(Action("head -c 200000 /dev/zero > /c/x"))
        with pytest.raises(CapacityError, match=r"100\.0 KiB") as refusal:
            await box.save_cache("c")
        assert refusal.value.hint is not None
        assert "dutyfree cache remove c" in refusal.value.hint
