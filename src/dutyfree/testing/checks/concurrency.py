"""Many actions and sandboxes at the same time."""

from __future__ import annotations

import asyncio
import time

from dutyfree.contract import Sandbox
from dutyfree.errors import InvalidRequest
from dutyfree.model import Action, Observation
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run


@check("concurrency.fifty", "50 concurrent actions each get their own output")
async def fifty(context: Context) -> None:
    await _many(context, 50)


@check("concurrency.two-hundred", "200 concurrent actions each get their own output", limit_s=90, slow=True)
async def two_hundred(context: Context) -> None:
    await _many(context, 200)


@check("concurrency.side-by-side", "actions run in parallel, not one after the other")
async def side_by_side(context: Context) -> None:
    box = await context.sandbox()
    start_s = time.monotonic()
    await asyncio.gather(*(run(box, ["sleep", "0.5"]) for _ in range(20)))
    expect.between(time.monotonic() - start_s, 0.5, 5 * context.patience, "the time of twenty sleeps of 0.5 s, in s,")


@check("concurrency.large-outputs", "10 concurrent large outputs do not mix")
async def large_outputs(context: Context) -> None:
    box = await context.sandbox()

    async def echo(number: int) -> None:
        data = bytes([number]) * 1_000_000
        seen = await run(box, ["cat"], stdin=data)
        expect.true(seen.stdout == data, f"output {number} is mixed or short: {len(seen.stdout)} bytes")

    await asyncio.gather(*(echo(number) for number in range(10)))


@check("concurrency.sandboxes", "8 sandboxes can be created, used and destroyed concurrently", limit_s=60)
async def sandboxes(context: Context) -> None:
    async def life(number: int) -> str:
        box = await context.sandbox()
        seen = await run(box, ["echo", str(number)])
        await box.destroy()
        expect.equal(seen.text, f"{number}\n", "the output")
        return box.id

    ids = await asyncio.gather(*(life(number) for number in range(8)))
    expect.equal(len(set(ids)), 8, "the number of different ids")


@check("concurrency.mixed-fates", "actions that fail, time out, are refused or cancelled do not disturb the others")
async def mixed_fates(context: Context) -> None:
    box = await context.sandbox()

    async def refused() -> None:
        with expect.raises(InvalidRequest, what="a missing cwd"):
            await run(box, ["true"], cwd="/conformance/nowhere")

    async def abandoned() -> None:
        async with box.stream(Action("echo x; sleep 20")) as stream:
            await anext(aiter(stream))

    async def timed_out() -> None:
        expect.true((await run(box, ["sleep", "20"], timeout_s=0.3)).timed_out, "the timeout is not marked")

    async def disturb() -> None:
        rounds = range(context.times(5))
        await asyncio.gather(*(make() for _ in rounds for make in (refused, abandoned, timed_out)))

    disturbances, numbers = context.begin(disturb()), range(context.times(20))
    seen = await asyncio.gather(*(_numbered(box, number) for number in numbers))
    await disturbances
    expect.equal([one.text for one in seen], [f"{number}\n" for number in numbers], "the outputs of the other actions")


async def _many(context: Context, count: int) -> None:
    box = await context.sandbox()
    seen = await asyncio.gather(*(_numbered(box, number) for number in range(count)))
    for number, one in enumerate(seen):
        expect.exited(one, number % 7)
        expect.equal((one.text, one.stderr), (f"{number}\n", f"e{number}\n".encode()), f"the output of action {number}")


async def _numbered(box: Sandbox, number: int) -> Observation:
    return await run(box, f"echo e{number} >&2; sleep 0.2; echo {number}; exit {number % 7}")
