"""Caches: directories that several sandboxes fill, each in a copy of its own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from dutyfree.contract import Sandbox
from dutyfree.errors import CapacityError, InvalidRequest, Unsupported
from dutyfree.model import Cache, Capability, SandboxSpec
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run

NEEDS = (Capability.CACHES,)
TARGET = "/data/cache"


@asynccontextmanager
async def some_cache(context: Context, max_bytes: int | str = "64m") -> AsyncIterator[SandboxSpec]:
    """The spec of sandboxes that share a cache of this check alone, which is removed at the end."""
    cache = Cache("check", TARGET, max_bytes=max_bytes, owner=f"conformance-{secrets.token_hex(8)}")
    try:
        yield SandboxSpec(caches=(cache,))
    finally:
        store = context.substrate.store
        if store is not None:
            with suppress(InvalidRequest):  # nothing was saved
                await asyncio.to_thread(store.remove_cache, cache.owner, cache.name)


async def _write(box: Sandbox, name: str, content: str) -> None:
    expect.exited(await run(box, f"mkdir -p $(dirname {TARGET}/{name}) && printf %s {content} > {TARGET}/{name}"))


async def _names(box: Sandbox) -> str:
    return (await run(box, f"cd {TARGET} && find . -mindepth 1 | sort | tr '\\n' ' '")).text.strip()


@check("caches.shared", "what one sandbox has saved, sandboxes that are made later find", needs=NEEDS)
async def shared(context: Context) -> None:
    async with some_cache(context) as spec:
        first, neighbour = await context.sandbox(spec), await context.sandbox(spec)
        expect.equal(await _names(first), "", "what is in a new cache")
        await _write(first, "deep/down/file", "saved")
        expect.exited(await run(first, f"ln -s file {TARGET}/deep/down/link; chmod 755 {TARGET}/deep/down/file"))
        before = await context.sandbox(spec)
        expect.equal(await _names(before), "", "what a new sandbox sees of changes that were not saved")
        saved = await first.save_cache("check")
        expect.equal((saved.files, saved.left_out), (2, 0), "the files that were saved and left out")
        expect.equal(await _names(neighbour), "", "what a sandbox sees of a version that is younger than itself")
        second = await context.sandbox(spec)
        seen = await run(second, f"cat {TARGET}/deep/down/link; stat -c ' %a %u' {TARGET}/deep/down/file")
        expect.equal(seen.text, "saved 755 0\n", "content, mode and owner of a saved file")
        await _write(first, "later", "unsaved")
        expect.true("later" not in await _names(await context.sandbox(spec)), "changes after the save are seen")


@check(
    "caches.copies", "changes and deletions in a cache are the sandbox's own; deletions are never saved", needs=NEEDS
)
async def copies(context: Context) -> None:
    async with some_cache(context) as spec:
        first = await context.sandbox(spec)
        await _write(first, "a/one", "1")
        await _write(first, "b", "2")
        await first.save_cache("check")
        second, third = await context.sandbox(spec), await context.sandbox(spec)
        expect.exited(await run(second, f"rm -r {TARGET}/a && mkdir {TARGET}/a && printf 3 > {TARGET}/b"))
        expect.equal(await _names(second), "./a ./b", "the sandbox's own copy")
        expect.equal((await run(third, f"cat {TARGET}/a/one {TARGET}/b")).text, "12", "another sandbox's copy")
        saved = await second.save_cache("check")
        expect.equal(saved.files, 1, "the files that were saved: the changed one")
        fourth = await context.sandbox(spec)
        expect.equal((await run(fourth, f"cat {TARGET}/a/one {TARGET}/b")).text, "13", "the next version")


@check("caches.fills", "sandboxes that save at the same time lose nothing of each other", needs=NEEDS, limit_s=60)
async def fills(context: Context) -> None:
    async with some_cache(context) as spec:
        boxes = [await context.sandbox(spec) for _ in range(context.times(6))]
        for number, box in enumerate(boxes):
            await _write(box, f"of/{number}", str(number))
            await _write(box, "of/all", "same")
        results = await asyncio.gather(*(box.save_cache("check") for box in boxes))
        expect.equal(sum(each.files for each in results), len(boxes) + 1, "the files that were saved in all")
        last = await context.sandbox(spec)
        wanted = "".join(str(number) for number in range(len(boxes))) + "same"
        expect.equal((await run(last, f"cat {TARGET}/of/*")).text, wanted, "the files of all")
        again = await boxes[0].save_cache("check")
        expect.equal(again.files, 0, "the files of a save that brings nothing new")


@check("caches.kinds", "only files, links and directories are saved, whatever their names", needs=NEEDS)
async def kinds(context: Context) -> None:
    async with some_cache(context) as spec:
        box = await context.sandbox(spec)
        make = (
            f"cd {TARGET} && mkfifo pipe && printf x > set-id && chmod 4755 set-id"
            " && printf x > closed && chmod 0 closed"
            " && mkdir -p locked && printf y > locked/file && chmod 0 locked"
            " && printf z > \"$(printf 'odd\\n\\377\\001 name')\" && ln -s /nowhere dangling"
        )
        expect.exited(await run(box, make))
        saved = await box.save_cache("check")
        expect.equal((saved.files, saved.left_out), (4, 2), "the files that were saved and left out")
        seen = await run(
            await context.sandbox(spec), f"cd {TARGET} && cat closed locked/file odd*; readlink dangling; ls"
        )
        expect.equal(seen.text.partition("\n")[0], "xyz/nowhere", "what was saved")
        expect.true("pipe" not in seen.text and "set-id" not in seen.text, "a pipe or a set-id file was saved")
        expect.exited(await run(box, f"test -p {TARGET}/pipe && test -u {TARGET}/set-id"))


@check("caches.directories", "a file or link never takes the place of a directory that others have saved", needs=NEEDS)
async def directories(context: Context) -> None:
    async with some_cache(context) as spec:
        first = await context.sandbox(spec)
        await _write(first, "one/file", "1")
        await _write(first, "two/file", "2")
        await first.save_cache("check")
        second = await context.sandbox(spec)
        expect.exited(await run(second, f"cd {TARGET} && rm -r one two && printf x > one && ln -s / two"))
        saved = await second.save_cache("check")
        expect.equal(saved.files, 0, "the files that were saved")
        seen = await run(await context.sandbox(spec), f"cat {TARGET}/one/file {TARGET}/two/file")
        expect.equal(seen.text, "12", "what was there before")


@check("caches.limits", "a cache that is too large, or that is not the sandbox's, is refused", needs=NEEDS)
async def limits(context: Context) -> None:
    async with some_cache(context, "1m") as spec:
        box = await context.sandbox(spec)
        await _write(box, "small", "1")
        first = await box.save_cache("check")
        for command in (f"head -c 2000000 /dev/zero > {TARGET}/big", f"truncate -s 1T {TARGET}/big"):
            expect.exited(await run(box, command))
            with expect.raises(CapacityError, what=f"a cache after {command!r}"):
                await box.save_cache("check")
        with expect.raises(InvalidRequest, what="a cache that the spec does not name"):
            await box.save_cache("other")
        expect.exited(await run(box, f"rm {TARGET}/big"))
        again = await box.save_cache("check")
        expect.equal(again.version, first.version, "the version after saves that were refused")


@check("caches.reset", "after a reset a cache is as in a new sandbox", needs=(*NEEDS, Capability.RESET))
async def after_reset(context: Context) -> None:
    async with some_cache(context) as spec:
        box, another = await context.sandbox(spec), await context.sandbox(spec)
        await _write(box, "mine", "1")
        await _write(another, "saved", "2")
        await another.save_cache("check")
        for _ in range(2):
            await box.reset()
            expect.equal(await _names(box), "./saved", "what is in the cache after a reset")
            await _write(box, "mine", "1")


@check(
    "caches.snapshots",
    "snapshots have nothing of a cache, and take nothing from it",
    needs=(*NEEDS, Capability.SNAPSHOT),
)
async def not_in_snapshots(context: Context) -> None:
    async with some_cache(context) as spec:
        box = await context.sandbox(spec)
        await _write(box, "mine", "1")
        expect.exited(await run(box, "printf 2 > /data/beside"))
        async with await box.snapshot() as snapshot:
            expect.equal(await _names(box), "./mine", "the sandbox's own copy after a snapshot")
            plain = await context.sandbox(SandboxSpec(image=snapshot.image))
            expect.equal((await run(plain, f"cat /data/beside; ls -A {TARGET}")).text, "2", "what the snapshot has")


@check(
    "caches.forks", "forks see the present version, and share no changes", needs=(*NEEDS, Capability.FORK), limit_s=60
)
async def in_forks(context: Context) -> None:
    async with some_cache(context) as spec:
        box = await context.sandbox(spec)
        await _write(box, "saved", "1")
        await box.save_cache("check")
        await _write(box, "mine", "2")
        forks = await context.forks(box, 2)
        for fork in forks:
            expect.equal(await _names(fork), "./saved", "what a fork sees")
        await _write(forks[0], "forked", "3")
        expect.equal(await _names(forks[1]), "./saved", "what the other fork sees")
        await forks[0].save_cache("check")
        expect.equal(await _names(await context.sandbox(spec)), "./forked ./saved", "the next version")


@check("caches.unclaimed", "a substrate without caches refuses a spec that names one")
async def unclaimed(context: Context) -> None:
    if Capability.CACHES in context.capabilities:
        raise expect.NotRun("the substrate claims caches")
    with expect.raises(Unsupported, what="a cache, which is not claimed,"):
        await context.sandbox(SandboxSpec(caches=(Cache("check", TARGET),)))
    with expect.raises(Unsupported, what="saving a cache, which is not claimed,"):
        await (await context.sandbox()).save_cache("check")
