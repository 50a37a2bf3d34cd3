"""Capabilities: a substrate refuses what it does not claim."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from dutyfree.contract import Sandbox
from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.model import Action, Capability, Image, SandboxSpec
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run

NOWHERE = Image(("sha256:" + "0" * 64,))


@check(
    "capabilities.unclaimed",
    "a call that needs an unclaimed capability raises Unsupported, and the sandbox stays alive",
)
async def unclaimed(context: Context) -> None:
    box = await context.sandbox()
    missing = [(name, call) for capability, name, call in _calls(box) if capability not in context.capabilities]
    for name, call in missing:
        with expect.raises(Unsupported, what=f"{name}, which is not claimed,"):
            await call()
    expect.true(box.alive, "the sandbox is not alive after it refused a call")
    expect.exited(await run(box, ["true"]))
    if not missing:
        raise expect.NotRun("the substrate claims every capability")


@check("capabilities.unclaimed-images", "a substrate without images refuses a spec that names one")
async def unclaimed_images(context: Context) -> None:
    if Capability.IMAGES in context.capabilities:
        raise expect.NotRun("the substrate claims images")
    with expect.raises(Unsupported, InvalidRequest, what="an image, which is not claimed,"):
        await context.sandbox(SandboxSpec(image=NOWHERE))


def _calls(box: Sandbox) -> tuple[tuple[Capability, str, Callable[[], Awaitable[object]]], ...]:
    return (
        (Capability.SESSIONS, "session", box.session),
        (Capability.TERMINALS, "terminal", partial(box.terminal, ["true"])),
        (Capability.RESET, "reset", box.reset),
        (Capability.SNAPSHOT, "snapshot", box.snapshot),
        (Capability.FORK, "fork", partial(box.fork, 1)),
        (Capability.USERS, "an action with a user", partial(box.run, Action(["true"], user=4711))),
        (Capability.PORTS, "dial", partial(box.dial, 1)),
        (Capability.PORTS, "listen", partial(box.listen, 0)),
        (Capability.PORTS, "datagrams", partial(box.datagrams, 0)),
        (Capability.PORTS, "listening_ports", box.listening_ports),
        (Capability.PAUSE, "pause", box.pause),
    )
