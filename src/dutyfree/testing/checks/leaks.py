"""Nothing is left: no process, mount, cgroup, network namespace, directory or file descriptor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dutyfree.contract import Sandbox
from dutyfree.errors import InvalidRequest
from dutyfree.model import Action, Capability, SandboxSpec
from dutyfree.testing import expect, leaks
from dutyfree.testing.check import check
from dutyfree.testing.checks.lifecycle import cancel_creations
from dutyfree.testing.context import Context, run

NEEDS = (Capability.HOST_PROCESSES,)


@check("leaks.life", "twenty sandboxes made, used and destroyed leave nothing", needs=NEEDS, limit_s=60)
async def life(context: Context) -> None:
    async with nothing_left(context):
        for _ in range(20):
            box = await context.sandbox()
            expect.exited(await run(box, ["true"]))
            await box.destroy()


@check("leaks.at-once", "ten sandboxes alive at once and destroyed at once leave nothing", needs=NEEDS, limit_s=60)
async def at_once(context: Context) -> None:
    async with nothing_left(context):
        boxes = await asyncio.gather(*(context.sandbox() for _ in range(10)))
        await asyncio.gather(*(run(box, ["true"]) for box in boxes))
        await asyncio.gather(*(box.destroy() for box in boxes))


@check("leaks.daemons", "processes left behind by actions go with the sandbox", needs=(*NEEDS, Capability.KILL_TREE))
async def daemons(context: Context) -> None:
    async with nothing_left(context):
        box = await context.sandbox()
        expect.exited(await run(box, "sleep 60 & setsid sleep 60 & (setsid sleep 60 > /dev/null 2>&1 &)"))
        await box.destroy()


@check("leaks.under-way", "actions under way go with the sandbox", needs=NEEDS)
async def under_way(context: Context) -> None:
    async with nothing_left(context):
        box = await context.sandbox()
        running = [context.begin(run(box, ["sleep", "60"], timeout_s=90)) for _ in range(5)]
        await asyncio.sleep(0.2)
        await box.destroy()
        await asyncio.gather(*running, return_exceptions=True)


@check("leaks.streams", "streams that are left early leave no process in the sandbox and nothing after it", needs=NEEDS)
async def streams(context: Context) -> None:
    async with nothing_left(context):
        box = await context.sandbox()
        expect.exited(await run(box, ["true"]))
        inside = picture(box)
        for _ in range(5):
            async with box.stream(Action("echo x; sleep 60")) as stream:
                await anext(aiter(stream))
        expect.equal(await leaks.settle(inside), [], "what the streams left in the sandbox")
        await box.destroy()


@check("leaks.timeouts", "timeouts leave no process in the sandbox", needs=(*NEEDS, Capability.KILL_TREE))
async def timeouts(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, ["true"]))
    inside = picture(box)
    for _ in range(3):
        seen = await run(box, "setsid sleep 60 & (sleep 60 &) ; sleep 60", timeout_s=0.3)
        expect.true(seen.timed_out, "the timeout is not marked")
    expect.equal(await leaks.settle(inside), [], "what the timeouts left in the sandbox")


@check("leaks.zombies", "orphans that end are reaped", needs=NEEDS)
async def zombies(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, ["true"]))
    inside = picture(box)
    for _ in range(5):
        expect.exited(await run(box, "(sleep 0.1 &) ; (true &)"))
    expect.equal(await leaks.settle(inside, within_s=4), [], "what the orphans left")


@check("leaks.sessions", "open sessions go with the sandbox", needs=(*NEEDS, Capability.SESSIONS))
async def sessions(context: Context) -> None:
    async with nothing_left(context):
        box = await context.sandbox()
        for _ in range(3):
            shell = await box.session()
            expect.exited(await shell.run("sleep 60 &"))
        await box.destroy()


@check("leaks.session-close", "a closed session leaves no process in the sandbox", needs=(*NEEDS, Capability.SESSIONS))
async def session_close(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, ["true"]))
    inside = picture(box)
    async with await box.session() as shell:
        expect.exited(await shell.run("sleep 60 & sleep 60 &"))
    expect.equal(await leaks.settle(inside), [], "what the session left")


@check("leaks.terminals", "open terminals go with the sandbox", needs=(*NEEDS, Capability.TERMINALS))
async def terminals(context: Context) -> None:
    async with nothing_left(context):
        box = await context.sandbox()
        for _ in range(3):
            await box.terminal("sleep 60")
        await box.destroy()


@check(
    "leaks.files", "transfers, also cancelled ones, leave no descriptor and no file", needs=(*NEEDS, Capability.FILES)
)
async def files(context: Context) -> None:
    folder = context.folder()
    (folder / "up").write_bytes(bytes(4_000_000))
    async with nothing_left(context):
        box = await context.sandbox()
        path = await context.scratch(box)
        for moment_s in (0.0, 0.002, 0.01, 1.0):
            upload = context.begin(box.files.upload(folder / "up", f"{path}/file"))
            await asyncio.wait({upload}, timeout=moment_s)
            upload.cancel()
            await asyncio.wait({upload})
        await box.files.download(f"{path}/file", folder / "down")
        await box.files.remove(path, recursive=True)
        await box.destroy()


@check("leaks.create-cancelled", "creations cancelled at any moment leave nothing", needs=NEEDS, limit_s=60)
async def create_cancelled(context: Context) -> None:
    async with nothing_left(context):
        await cancel_creations(context)


@check("leaks.killed", "a sandbox that was killed from outside leaves nothing once destroyed", needs=NEEDS)
async def killed(context: Context) -> None:
    async with nothing_left(context):
        box = await context.sandbox()
        expect.exited(await run(box, "sleep 60 & true"))
        if not context.kill(box):
            raise expect.NotRun(
                "there is no way to kill this sandbox from outside (it has no `pid` that we may signal)"
            )
        await asyncio.sleep(0.2)
        await box.destroy()


@check("leaks.refusals", "requests that are refused leave nothing in the sandbox", needs=NEEDS)
async def refusals(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, ["true"]))
    inside = picture(box)
    for _ in range(20):
        with expect.raises(InvalidRequest, what="a missing cwd"):
            await run(box, ["true"], cwd="/conformance/nowhere")
        expect.exited(await run(box, ["conformance-no-such-command"]), 127)
    expect.equal(await leaks.settle(inside), [], "what the refusals left")


@check("leaks.close", "closing the substrate leaves nothing", needs=NEEDS, limit_s=60)
async def close(context: Context) -> None:
    async with nothing_left(context):
        substrate = await context.another_substrate()
        if substrate is None:
            raise expect.NotRun("there is no way to make a second substrate")
        for _ in range(3):
            box = await substrate.create(SandboxSpec())
            await run(box, "sleep 60 & true")
        await substrate.close()


@asynccontextmanager
async def nothing_left(context: Context) -> AsyncIterator[None]:
    """After the block the machine is as it was, give or take what a substrate starts once for its first sandbox."""
    first = await context.sandbox()
    expect.exited(await run(first, ["true"]))
    daemons = leaks.daemons_of(first.pid)
    await first.destroy()
    before = leaks.snapshot(daemons=daemons)
    yield
    expect.equal(await leaks.settle(before, 2.0 * context.patience), [], "what is left")


def picture(box: Sandbox) -> leaks.Machine:
    """What is on the machine now, with all sandboxes of the engine that `box` belongs to."""
    return leaks.snapshot(daemons=leaks.daemons_of(box.pid))
