"""Fault attribution: a sandbox that is killed from outside gives an infrastructure failure, never an observation."""

from __future__ import annotations

import asyncio

from dutyfree.contract import Sandbox
from dutyfree.errors import InfraFailed, SandboxGone
from dutyfree.model import Action, Capability
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run


@check("attribution.run", "a sandbox killed during an action is an infrastructure failure, and then it is gone")
async def killed_run(context: Context) -> None:
    box = await context.sandbox()
    running = [context.begin(run(box, "echo partial; sleep 15")) for _ in range(3)]
    await asyncio.sleep(0.3)
    _kill(context, box)
    for action in running:
        with expect.raises(InfraFailed, what="an action under way when its sandbox was killed"):
            await asyncio.wait_for(action, 5)
    await _expect_gone(box)


@check("attribution.stream", "a sandbox killed during a stream is an infrastructure failure for its reader")
async def killed_stream(context: Context) -> None:
    box = await context.sandbox()
    with expect.raises(InfraFailed, what="reading from a sandbox that was killed"):
        async with box.stream(Action("echo partial; sleep 15")) as stream:
            chunks = aiter(stream)
            expect.equal((await anext(chunks)).data, b"partial\n", "the first chunk")
            _kill(context, box)
            async for _ in chunks:
                pass
            await stream.wait()
    await _expect_gone(box)


@check(
    "attribution.session",
    "a sandbox killed during a line is an infrastructure failure, not the session's end",
    needs=(Capability.SESSIONS,),
)
async def killed_session(context: Context) -> None:
    box = await context.sandbox()
    shell = await box.session()
    line = context.begin(shell.run("sleep 15"))
    await asyncio.sleep(0.3)
    _kill(context, box)
    with expect.raises(InfraFailed, what="a line under way when its sandbox was killed"):
        await asyncio.wait_for(line, 5)
    with expect.raises(SandboxGone, what="the next line"):
        await shell.run("true")
    await _expect_gone(box)


@check(
    "attribution.terminal",
    "a sandbox killed under a terminal is an infrastructure failure for its reader",
    needs=(Capability.TERMINALS,),
)
async def killed_terminal(context: Context) -> None:
    box = await context.sandbox()
    terminal = await box.terminal("sleep 15")
    waiting = context.begin(terminal.wait())
    await asyncio.sleep(0.3)
    _kill(context, box)
    with expect.raises(InfraFailed, what="waiting for a terminal whose sandbox was killed"):
        await asyncio.wait_for(waiting, 5)
    await _expect_gone(box)


@check("attribution.idle", "a sandbox killed while idle fails the next call and every later one")
async def killed_idle(context: Context) -> None:
    box = await context.sandbox()
    _kill(context, box)
    await asyncio.sleep(0.3)
    with expect.raises(InfraFailed, SandboxGone, what="the first call after the kill"):
        await run(box, ["true"])
    await _expect_gone(box)


@check("attribution.neighbour", "killing one sandbox leaves the others running")
async def killed_neighbour(context: Context) -> None:
    box, neighbour = await context.sandbox(), await context.sandbox()
    action = context.begin(run(neighbour, "sleep 1; echo fine"))
    await asyncio.sleep(0.2)
    _kill(context, box)
    expect.equal((await action).stdout, b"fine\n", "the neighbour's output")
    expect.exited(await run(await context.sandbox(), ["true"]))


def _kill(context: Context, box: Sandbox) -> None:
    if not context.kill(box):
        raise expect.NotRun("there is no way to kill this sandbox from outside (it has no `pid` that we may signal)")


async def _expect_gone(box: Sandbox) -> None:
    with expect.raises(SandboxGone, what="a call after the sandbox's death"):
        await run(box, ["true"])
    expect.true(not box.alive, "the sandbox still says that it is alive")
    await box.destroy()
