"""Watching files: every change is seen, or its loss is said."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable

from dutyfree.contract import Sandbox
from dutyfree.errors import FileFailed
from dutyfree.model import Action, Capability, FileEvent, FileEventKind
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run

NEEDS = (Capability.WATCH, Capability.FILES, Capability.PRIVATE_FILES)
ROOT = "/tmp/watched"
WITHIN_S = 20.0
MANY = 24_000
Events = AsyncIterator[FileEvent]


async def _made(context: Context) -> Sandbox:
    box = await context.sandbox()
    expect.exited(await run(box, f"mkdir -p {ROOT}/old && echo 1 > {ROOT}/old/a"))
    return box


@check("watching.kinds", "creating, writing, moving, changing and removing a file are seen, in this order", needs=NEEDS)
async def kinds(context: Context) -> None:
    box = await _made(context)
    async with box.files.watch(ROOT) as watch:
        events = aiter(watch)
        line = f"cd {ROOT}; : > a; sleep 0.05; echo x >> a; sleep 0.05; chmod 600 a; mv a b; rm b; mkdir d; mkdir end"
        expect.exited(await run(box, line))
        seen = await _until(events, lambda event: event.path == f"{ROOT}/end")
    order = [
        (each.kind, each.path.removeprefix(f"{ROOT}/"), each.moved_from)
        for each in seen
        if "/a" in each.path or "/b" in each.path
    ]
    for kind, name, former in (
        (FileEventKind.CREATED, "a", None),
        (FileEventKind.CHANGED, "a", None),
        (FileEventKind.ATTRIBUTES, "a", None),
        (FileEventKind.MOVED, "b", f"{ROOT}/a"),
        (FileEventKind.REMOVED, "b", None),
    ):
        expect.true((kind, name, former) in order, f"{kind} of {name} is not in {order}")
        order = order[order.index((kind, name, former)) + 1 :]
    made = [each for each in seen if each.path == f"{ROOT}/d" and each.kind is FileEventKind.CREATED]
    expect.true(bool(made) and made[0].is_directory, f"a new directory was not seen as one: {made}")


@check("watching.not-recursive", "without `recursive`, what happens in a directory below is not seen", needs=NEEDS)
async def not_recursive(context: Context) -> None:
    box = await _made(context)
    async with box.files.watch(ROOT) as watch:
        expect.exited(await run(box, f"echo 2 > {ROOT}/old/a; echo 3 > {ROOT}/end"))
        seen = await _until(aiter(watch), lambda event: event.path == f"{ROOT}/end")
    expect.equal([each for each in seen if each.path == f"{ROOT}/old/a"], [], "what was seen below")


@check("watching.recursive", "with `recursive`, old, new and moved directories are watched, without gaps", needs=NEEDS)
async def recursive(context: Context) -> None:
    box = await _made(context)
    expect.exited(await run(box, "mkdir -p /tmp/outside/in && echo 1 > /tmp/outside/in/f"))
    async with box.files.watch(ROOT, recursive=True) as watch:
        # All at once: the files are there before a watch of their directories can be.
        line = f"""cd {ROOT}; echo 2 > old/a; mkdir -p new/x/y; echo 1 > new/x/y/f; mv old older; echo 3 > older/b
        mv /tmp/outside came; echo 2 >> came/in/f; for i in $(seq 8); do mkdir -p many$i/m; echo > many$i/m/f; done
        mv older /tmp/left; sleep 0.2; echo 9 > /tmp/left/unseen; touch end"""
        expect.exited(await run(box, line))
        seen = await _until(aiter(watch), lambda event: event.path == f"{ROOT}/end")
    paths = {each.path.removeprefix(f"{ROOT}/") for each in seen}
    wanted = {"old/a", "new", "new/x", "new/x/y", "new/x/y/f", "older", "older/b", "came", "came/in", "came/in/f"}
    wanted |= {f"many{number}/m/f" for number in range(1, 9)}
    expect.equal(sorted(wanted - paths), [], "what was not seen")
    expect.equal([path for path in paths if "unseen" in path], [], "what was seen of a directory that was moved away")
    moves = [(each.moved_from, each.path) for each in seen if each.kind is FileEventKind.MOVED]
    expect.true((f"{ROOT}/old", f"{ROOT}/older") in moves, f"the move of a directory is not in {moves}")


@check("watching.links", "symlinks are seen and not followed", needs=NEEDS)
async def links(context: Context) -> None:
    box = await _made(context)
    expect.exited(await run(box, f"mkdir /tmp/target && ln -s /tmp/target {ROOT}/link"))
    async with box.files.watch(ROOT, recursive=True) as watch:
        expect.exited(await run(box, f"ln -s / {ROOT}/all; echo > /tmp/target/f; echo > {ROOT}/end"))
        seen = await _until(aiter(watch), lambda event: event.path == f"{ROOT}/end")
    expect.equal([each.path for each in seen if each.path.endswith("/f")], [], "what was seen behind a link")
    expect.true(any(each.path == f"{ROOT}/all" for each in seen), "a new link was not seen")


@check(
    "watching.end",
    "the end of the directory ends the watch with ENOENT, and the end of the block the applet",
    needs=NEEDS,
)
async def end(context: Context) -> None:
    box = await _made(context)
    async with box.files.watch(ROOT, recursive=True) as watch:
        expect.exited(await run(box, f"rm -r {ROOT}"))
        try:
            await _until(aiter(watch), lambda _event: False)
        except FileFailed as error:
            expect.equal(error.errno, errno.ENOENT, "the errno at the end of the directory")
        else:
            expect.true(False, "a watch went on without its directory")
    for path, number in ((ROOT, errno.ENOENT), ("/etc/passwd", errno.ENOTDIR)):
        try:
            async with box.files.watch(path):
                expect.true(False, f"{path} can be watched")
        except FileFailed as error:
            expect.equal(error.errno, number, f"the errno of a watch of {path}")
    expect.exited(await run(box, "true"))


@check(
    "watching.overflow",
    "a reader that is too slow sees all events, or that some were lost; and it sees later ones",
    needs=NEEDS,
    limit_s=240,
)
async def overflow(context: Context) -> None:
    box = await _made(context)
    async with box.files.watch(ROOT, recursive=True) as watch:
        # Long names, so that little fits into what is held on the way to the reader.
        line = f"cd {ROOT}/old; i=0; while [ $i -lt {MANY} ]; do : > {'n' * 200}$i; i=$((i+1)); done; mkdir {ROOT}/late"
        expect.exited(await box.run(Action(line, timeout_s=120)))
        events = aiter(watch)
        seen = await _until(events, lambda event: event.kind is FileEventKind.OVERFLOW or event.path == f"{ROOT}/late")
        if seen[-1].kind is FileEventKind.OVERFLOW:
            expect.equal(seen[-1].path, ROOT, "the path of an overflow")
        else:
            made = {each.path for each in seen if each.kind is FileEventKind.CREATED}
            expect.equal(len(made), MANY + 1, "what was seen, where nothing is said to be lost")
        task = asyncio.ensure_future(_until(events, lambda event: event.path == f"{ROOT}/late/f"))
        await asyncio.sleep(0.5)
        expect.exited(await run(box, f"echo > {ROOT}/late/f"))
        await task


async def _until(events: Events, is_last: Callable[[FileEvent], bool]) -> list[FileEvent]:
    seen = []
    async with asyncio.timeout(WITHIN_S):
        async for event in events:
            seen.append(event)
            if is_last(event):
                return seen
    return seen
