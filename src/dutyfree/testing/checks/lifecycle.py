"""Creation and destruction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from dutyfree.contract import Sandbox
from dutyfree.errors import InfraFailed, SandboxGone, Unsupported
from dutyfree.model import Action, Capability, SandboxSpec
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run

CANCEL_MOMENTS = 8


@check("lifecycle.ready", "a new sandbox is alive, has a unique id, and runs an action at once")
async def ready(context: Context) -> None:
    first, second = await context.sandbox(), await context.sandbox()
    expect.true(first.id and first.id != second.id, f"the ids are {first.id!r} and {second.id!r}")
    expect.true(first.alive, "a new sandbox is not alive")
    expect.exited(await run(first, ["true"]))


@check("lifecycle.context-manager", "leaving the block destroys the sandbox")
async def context_manager(context: Context) -> None:
    async with await context.sandbox() as box:
        expect.exited(await run(box, ["true"]))
    expect.true(not box.alive, "the sandbox is alive after its block")


@check("lifecycle.destroy-twice", "destroy may be called twice, or five times concurrently")
async def destroy_twice(context: Context) -> None:
    box = await context.sandbox()
    await box.destroy()
    await box.destroy()
    expect.true(not box.alive, "the sandbox is alive after destroy")
    other = await context.sandbox()
    await asyncio.gather(*(other.destroy() for _ in range(5)))
    expect.true(not other.alive, "the sandbox is alive after five destructions")


@check("lifecycle.gone-after-destroy", "after destroy, every call raises SandboxGone")
async def gone_after_destroy(context: Context) -> None:
    box = await context.sandbox()
    await box.destroy()
    with expect.raises(SandboxGone, what="run after destroy"):
        await run(box, ["true"])
    with expect.raises(SandboxGone, what="stream after destroy"):
        await _stream_to_end(box)
    with expect.raises(SandboxGone, Unsupported, what="session after destroy"):
        await box.session()
    with expect.raises(SandboxGone, Unsupported, what="terminal after destroy"):
        await box.terminal(["true"])


@check(
    "lifecycle.files-gone-after-destroy", "after destroy, every file call raises SandboxGone", needs=(Capability.FILES,)
)
async def files_gone_after_destroy(context: Context) -> None:
    box = await context.sandbox()
    folder = context.folder()
    (folder / "a").write_bytes(b"a")
    await box.destroy()
    files = box.files
    calls: tuple[tuple[str, Callable[[], Awaitable[object]]], ...] = (
        ("read", partial(files.read, "/tmp/a")),
        ("write", partial(files.write, "/tmp/a", b"")),
        ("append", partial(files.append, "/tmp/a", b"")),
        ("list", partial(files.list, "/tmp")),
        ("stat", partial(files.stat, "/tmp")),
        ("mkdir", partial(files.mkdir, "/tmp/d")),
        ("move", partial(files.move, "/tmp/a", "/tmp/b")),
        ("remove", partial(files.remove, "/tmp/a")),
        ("upload", partial(files.upload, folder / "a", "/tmp/a")),
        ("download", partial(files.download, "/tmp/a", folder / "b")),
    )
    for name, call in calls:
        with expect.raises(SandboxGone, what=f"files.{name} after destroy"):
            await call()


@check("lifecycle.destroy-under-way", "destroy ends a running call at once, with an error")
async def destroy_under_way(context: Context) -> None:
    box = await context.sandbox()
    action = context.begin(run(box, ["sleep", "15"]))
    await asyncio.sleep(0.2)
    start_s = time.monotonic()
    await box.destroy()
    with expect.raises(InfraFailed, SandboxGone, what="the action that was under way"):
        await action
    took_s = time.monotonic() - start_s
    expect.between(took_s, 0, 5 * context.patience, "the time from destroy to the end of the action, in s,")


@check("lifecycle.create-cancelled", "cancelling a creation at any moment leaves the substrate usable", limit_s=60)
async def create_cancelled(context: Context) -> None:
    await cancel_creations(context)
    expect.exited(await run(await context.sandbox(), ["true"]))


@check("lifecycle.close", "closing the substrate destroys its live sandboxes; closing twice is allowed")
async def close(context: Context) -> None:
    substrate = await context.another_substrate()
    if substrate is None:
        raise expect.NotRun("there is no way to make a second substrate")
    boxes = [await substrate.create(SandboxSpec()) for _ in range(3)]
    expect.exited(await run(boxes[0], ["true"]))
    await substrate.close()
    await substrate.close()
    for box in boxes:
        expect.true(not box.alive, "a sandbox is alive after its substrate was closed")
        with expect.raises(SandboxGone, what="run after the substrate was closed"):
            await run(box, ["true"])


@check("lifecycle.independent", "destroying one sandbox leaves the others alone")
async def independent(context: Context) -> None:
    doomed, survivor = await context.sandbox(), await context.sandbox()
    action = context.begin(run(survivor, "sleep 0.5; echo here"))
    await doomed.destroy()
    seen = await action
    expect.exited(seen)
    expect.equal(seen.stdout, b"here\n", "the other sandbox's output")


@check(
    "lifecycle.private-files",
    "no sandbox sees the files that another one writes",
    needs=(Capability.PRIVATE_FILES,),
)
async def private_files(context: Context) -> None:
    one, other = await context.sandbox(), await context.sandbox()
    path = f"{await context.scratch(one)}/mine"
    expect.exited(await run(one, f"echo secret > {path}"))
    seen = await run(other, ["cat", path])
    expect.true(seen.exit_code != 0 and b"secret" not in seen.stdout, "another sandbox reads the file")
    expect.equal((await run(one, ["cat", path])).stdout, b"secret\n", "the file in its own sandbox")


@check("lifecycle.spec-env", "every action has the spec's environment; the action's own variables override it")
async def spec_env(context: Context) -> None:
    box = await context.sandbox(SandboxSpec(env={"FROM_SPEC": "spec", "BOTH": "spec"}))
    seen = await run(box, 'echo "$FROM_SPEC $BOTH"', env={"BOTH": "action"})
    expect.equal(seen.stdout, b"spec action\n", "the environment")


async def cancel_creations(context: Context) -> None:
    """Cancel creations at moments spread over the duration of one creation, and a little longer."""
    start_s = time.monotonic()
    await (await context.sandbox()).destroy()
    creation_s = time.monotonic() - start_s
    moments = context.times(CANCEL_MOMENTS)
    for moment in range(moments):
        creation = context.begin(context.sandbox())
        await asyncio.sleep(creation_s * moment / (moments - 1))
        creation.cancel()
        with suppress(asyncio.CancelledError):
            await (await creation).destroy()


async def _stream_to_end(box: Sandbox) -> None:
    async with box.stream(Action(["true"])) as stream:
        await stream.wait()
