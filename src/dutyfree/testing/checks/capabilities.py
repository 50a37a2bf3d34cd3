"""What a substrate claims it can do, and what it says of the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from dutyfree.contract import Sandbox
from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.model import Capability, Image, SandboxSpec
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run

NOWHERE = Image(("sha256:" + "0" * 64,))


@check("capabilities.unclaimed", "what is not claimed is refused as Unsupported, and the sandbox lives on")
async def unclaimed(context: Context) -> None:
    box = await context.sandbox()
    missing = [(name, call) for capability, name, call in _calls(box) if capability not in context.capabilities]
    for name, call in missing:
        with expect.raises(Unsupported, what=f"{name}, which is not claimed,"):
            await call()
    expect.true(box.alive, "the sandbox is not alive after what it refused")
    expect.exited(await run(box, ["true"]))
    if not missing:
        raise expect.NotRun("everything is claimed")


@check("capabilities.unclaimed-images", "without images, a spec that asks for one is refused")
async def unclaimed_images(context: Context) -> None:
    if Capability.IMAGES in context.capabilities:
        raise expect.NotRun("images are claimed")
    with expect.raises(Unsupported, InvalidRequest, what="an image, which is not claimed,"):
        await context.sandbox(SandboxSpec(image=NOWHERE))


def _calls(box: Sandbox) -> tuple[tuple[Capability, str, Callable[[], Awaitable[object]]], ...]:
    return (
        (Capability.SESSIONS, "session", box.session),
        (Capability.TERMINALS, "terminal", partial(box.terminal, ["true"])),
        (Capability.RESET, "reset", box.reset),
        (Capability.SNAPSHOT, "snapshot", box.snapshot),
        (Capability.FORK, "fork", partial(box.fork, 1)),
    )
