"""When a machine is saved for those that ask again, and that each is given back. No machine is started."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dutyfree.errors import SubstrateFailed
from dutyfree.model import Resources
from dutyfree.substrates.qemu.doubles import KEPT, Doubles
from dutyfree.substrates.qemu.plan import Build
from dutyfree.substrates.qemu.saved import Saved
from dutyfree.substrates.qemu.snapshot import Frozen

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


async def hold_until_there(doubles: Doubles, device: Path) -> Frozen:
    async with asyncio.timeout(5):
        while (found := doubles.hold(device, BOUNDS)) is None:  # noqa: ASYNC110 - as creations do
            await asyncio.sleep(0.001)
    return found


async def test_the_first_of_a_kind_pays_nothing_and_none_waits(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    maker.gate.clear()
    doubles, one = Doubles(maker), Path("/one")
    assert doubles.hold(one, BOUNDS) is None
    await asyncio.sleep(0)
    assert maker.asked == []
    assert [doubles.hold(one, BOUNDS) for _ in range(3)] == [None] * 3
    maker.gate.set()
    found = await hold_until_there(doubles, one)
    assert (maker.asked, found.saved.directory.is_dir()) == ([one], True)
    await doubles.release(found)
    await doubles.clear()
    assert kept(tmp_path) == []


async def test_other_bounds_are_another_kind(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    doubles, one = Doubles(maker), Path("/one")
    await doubles.release(await hold_until_there(doubles, one))
    assert doubles.hold(one, Resources(pids=7)) is None
    await doubles.clear()


async def test_one_that_goes_stays_for_those_who_hold_it(tmp_path: Path) -> None:
    doubles = Doubles(Maker(tmp_path))
    first = await hold_until_there(doubles, Path("/0"))
    for number in range(1, KEPT + 1):
        await doubles.release(await hold_until_there(doubles, Path(f"/{number}")))
    assert len(kept(tmp_path)) == KEPT + 1, "one too many, which is held"
    await doubles.release(first)
    assert len(kept(tmp_path)) == KEPT
    await doubles.clear()
    assert kept(tmp_path) == []


async def test_one_that_cannot_be_had_is_not_tried_for_ever(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    maker.works = False
    doubles, one = Doubles(maker), Path("/one")
    for _ in range(5):
        assert doubles.hold(one, BOUNDS) is None
        await asyncio.sleep(0.001)
    assert maker.asked == [one]
    await doubles.clear()


async def test_one_that_is_being_made_at_the_end_is_given_up(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    maker.gate.clear()
    doubles, one = Doubles(maker), Path("/one")
    doubles.hold(one, BOUNDS)
    doubles.hold(one, BOUNDS)
    await asyncio.sleep(0)
    await asyncio.wait_for(doubles.clear(), 5)
    assert (maker.asked, kept(tmp_path)) == ([one], [])
