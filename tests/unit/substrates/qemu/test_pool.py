"""The pool of ready machines: each has the requested key, and none is left running. No machine is started."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from dutyfree.errors import SubstrateFailed
from dutyfree.model import Resources
from dutyfree.substrates.qemu.body import RunningVM
from dutyfree.substrates.qemu.plan import Build
from dutyfree.substrates.qemu.pool import Pool

BUILD = Build(Path("/k"), Path("/i"), 1, 1, "tcg")
ONE, OTHER = Path("/one"), Path("/other")
BOUNDS = Resources()


class Stand:
    """A machine's place-holder."""

    def __init__(self, device: Path) -> None:
        self.device = device
        self.machine = SimpleNamespace(alive=True)
        self.ended = False

    async def end(self) -> None:
        self.ended = True
        if self.device.name == "stubborn":
            raise SubstrateFailed("it does not die")


class Maker:
    """Starts machines while its gate is open, and lists them all."""

    def __init__(self) -> None:
        self.made: list[Stand] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, build: Build, device: Path, resources: Resources) -> RunningVM:
        await self.gate.wait()
        self.made.append(Stand(device))
        return cast("RunningVM", self.made[-1])

    def waiting(self, *taken: RunningVM) -> list[Stand]:
        return [each for each in self.made if not each.ended and each not in taken]


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def test_takes_of_two_kinds_at_once_get_what_they_asked_for() -> None:
    maker = Maker()
    pool = Pool(2, maker)
    maker.gate.clear()
    takes = [asyncio.create_task(pool.take(BUILD, device, BOUNDS)) for device in (ONE, OTHER, ONE, OTHER)]
    await settle()
    maker.gate.set()
    taken = list(await asyncio.gather(*takes))
    assert [each.device for each in taken] == [ONE, OTHER, ONE, OTHER]
    await settle()
    assert [each.device for each in maker.waiting(*taken)] == [OTHER, OTHER], "those that wait are of the last kind"
    for device in (OTHER, ONE, OTHER):
        taken.append(await pool.take(BUILD, device, BOUNDS))
        assert taken[-1].device == device
    await settle()
    await pool.clear()
    assert maker.waiting(*taken) == []


async def test_nothing_is_made_once_the_pool_was_cleared() -> None:
    maker = Maker()
    pool = Pool(3, maker)
    first = await pool.take(BUILD, ONE, BOUNDS)
    maker.gate.clear()
    await settle()
    taking = asyncio.create_task(pool.take(BUILD, OTHER, BOUNDS))
    await settle()
    await pool.clear()
    maker.gate.set()
    second = await taking
    await settle()
    assert maker.waiting(first, second) == []


async def test_one_that_does_not_die_keeps_no_other_alive() -> None:
    maker = Maker()
    pool = Pool(3, maker)
    taken = await pool.take(BUILD, Path("/stubborn"), BOUNDS)
    await settle()
    assert len(maker.waiting(taken)) == 3
    try:
        await pool.clear()
    except SubstrateFailed:
        assert maker.waiting(taken) == []
    else:
        raise AssertionError("no error was raised")
