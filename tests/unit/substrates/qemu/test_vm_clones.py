"""When a clone source is saved, and that each is released. No machine is started."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dutyfree.errors import SubstrateFailed
from dutyfree.model import Resources
from dutyfree.substrates.qemu.plan import Build
from dutyfree.substrates.qemu.saved import Saved
from dutyfree.substrates.qemu.snapshot import Frozen
from dutyfree.substrates.qemu.vm_clones import MAX_KEPT, VMClones

BUILD = Build(Path("/k"), Path("/i"), 1, 1, "tcg")
BOUNDS = Resources()


class Maker:
    """Saves machines below a directory, when its gate is open."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.asked: list[Path] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.works = True

    async def __call__(self, device: Path, resources: Resources) -> Frozen:
        self.asked.append(device)
        await self.gate.wait()
        if not self.works:
            raise SubstrateFailed("no")
        directory = self.place / f"{device.name}-{len(self.asked)}"
        directory.mkdir()
        return Frozen(f"live:{directory.name}", Saved(BUILD, directory), resources)


def kept(place: Path) -> list[Path]:
    return list(place.iterdir())


async def hold_until_there(clones: VMClones, device: Path) -> Frozen:
    async with asyncio.timeout(5):
        while (found := clones.hold(device, BOUNDS)) is None:  # noqa: ASYNC110 - as creations do
            await asyncio.sleep(0.001)
    return found


async def test_the_first_of_a_kind_pays_nothing_and_none_waits(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    maker.gate.clear()
    clones, one = VMClones(maker), Path("/one")
    assert clones.hold(one, BOUNDS) is None
    await asyncio.sleep(0)
    assert maker.asked == []
    assert [clones.hold(one, BOUNDS) for _ in range(3)] == [None] * 3
    maker.gate.set()
    found = await hold_until_there(clones, one)
    assert (maker.asked, found.saved.directory.is_dir()) == ([one], True)
    await clones.release(found)
    await clones.clear()
    assert kept(tmp_path) == []


async def test_other_bounds_are_another_kind(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    clones, one = VMClones(maker), Path("/one")
    await clones.release(await hold_until_there(clones, one))
    assert clones.hold(one, Resources(pids=7)) is None
    await clones.clear()


async def test_one_that_goes_stays_for_those_who_hold_it(tmp_path: Path) -> None:
    clones = VMClones(Maker(tmp_path))
    first = await hold_until_there(clones, Path("/0"))
    for number in range(1, MAX_KEPT + 1):
        await clones.release(await hold_until_there(clones, Path(f"/{number}")))
    assert len(kept(tmp_path)) == MAX_KEPT + 1, "one too many, which is held"
    await clones.release(first)
    assert len(kept(tmp_path)) == MAX_KEPT
    await clones.clear()
    assert kept(tmp_path) == []


async def test_one_that_cannot_be_had_is_not_tried_for_ever(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    maker.works = False
    clones, one = VMClones(maker), Path("/one")
    for _ in range(5):
        assert clones.hold(one, BOUNDS) is None
        await asyncio.sleep(0.001)
    assert maker.asked == [one]
    await clones.clear()


async def test_one_that_is_being_made_at_the_end_is_given_up(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    maker.gate.clear()
    clones, one = VMClones(maker), Path("/one")
    clones.hold(one, BOUNDS)
    clones.hold(one, BOUNDS)
    await asyncio.sleep(0)
    await asyncio.wait_for(clones.clear(), 5)
    assert (maker.asked, kept(tmp_path)) == ([one], [])
