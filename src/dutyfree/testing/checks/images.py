"""Images: the files, environment and cwd that a sandbox starts from."""

from __future__ import annotations

from dutyfree.errors import InvalidRequest
from dutyfree.model import Capability, Image, SandboxSpec
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.checks.leaks import nothing_left
from dutyfree.testing.context import Context, run

NEEDS = (Capability.IMAGES,)
NOWHERE = "sha256:" + "0" * 64


@check(
    "images.defaults",
    "an image's environment and cwd apply unless the spec or the action overrides them",
    needs=NEEDS,
)
async def defaults(context: Context) -> None:
    image = Image(env={"FROM_IMAGE": "image", "BOTH": "image", "ALL": "image"}, cwd="/tmp")
    box = await context.sandbox(SandboxSpec(env={"BOTH": "spec", "ALL": "spec"}, image=image))
    line = 'pwd; echo "$FROM_IMAGE $BOTH $ALL"'
    expect.equal((await run(box, line)).text, "/tmp\nimage spec spec\n", "what an action sees")
    seen = await run(box, line, cwd="/", env={"ALL": "action"})
    expect.equal(seen.text, "/\nimage spec action\n", "what an action with its own cwd and environment sees")


@check("images.unknown", "an image with a missing layer is refused, and the error names the layer", needs=NEEDS)
async def unknown(context: Context) -> None:
    for image in (Image((NOWHERE,)), Image((NOWHERE,), over_host=False), Image(("live:nowhere-1",))):
        with expect.raises(InvalidRequest, what="an image with a layer that is not there") as caught:
            await context.sandbox(SandboxSpec(image=image))
        expect.true(image.layers[0] in str(caught[0]), f"the error does not name the layer: {caught[0]}")


@check("images.leaks", "refused images leave nothing behind", needs=(*NEEDS, Capability.HOST_PROCESSES))
async def nothing_leaks(context: Context) -> None:
    async with nothing_left(context):
        for _ in range(5):
            await unknown.attempt(context)


@check(
    "images.reset",
    "a reset keeps the image's environment and cwd",
    needs=(*NEEDS, Capability.RESET),
)
async def reset(context: Context) -> None:
    box = await context.sandbox(SandboxSpec(image=Image(env={"FROM_IMAGE": "image"}, cwd="/tmp")))
    await box.reset()
    expect.equal((await run(box, 'pwd; echo "$FROM_IMAGE"')).text, "/tmp\nimage\n", "what an action sees")
