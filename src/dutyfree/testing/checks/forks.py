"""Fork: new sandboxes start with the files that the parent has at that moment, and are independent afterwards."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from dutyfree.errors import InfraFailed, InvalidRequest, SandboxGone
from dutyfree.model import Capability, Phase, Resources, SandboxSpec
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.checks.leaks import nothing_left
from dutyfree.testing.context import Context, run
from dutyfree.testing.inventory import differences, inventory
from dutyfree.testing.memory import MIB
from dutyfree.trace import SpanRecorder, now_ns

NEEDS = (Capability.FORK,)
MOMENT = "mkdir -p /tmp/d; echo moment > /tmp/d/file; echo moment > /tmp/d/doomed; rm -f /etc/issue"


@check("fork.moment", "each fork has the parent's files at that moment, its own id, and the parent's spec", needs=NEEDS)
async def moment(context: Context) -> None:
    for upper in context.writable_places:
        spec = SandboxSpec(Resources(disk_bytes=64 * MIB), writes=upper, env={"FROM_SPEC": "spec"}, hostname="made")
        parent = await context.sandbox(spec)
        expect.exited(await run(parent, MOMENT))
        wanted, line = (
            await inventory(parent),
            "pwd; env | sort; uname -n; id; ulimit -a; df -P / | awk 'NR == 2 {print $2}'",
        )
        seen_by_parent = (await run(parent, line)).stdout
        forks = await context.forks(parent, 3)
        expect.equal(len({parent.id, *(each.id for each in forks)}), 4, "the number of different ids")
        for each in forks:
            expect.equal(each.unenforced, parent.unenforced, "what is not enforced in a fork")
            expect.equal(
                differences(await inventory(each), wanted), [], f"what differs from the parent ({upper.value})"
            )
            expect.equal((await run(each, line)).stdout, seen_by_parent, "what actions in a fork see")


@check("fork.independent", "neither the parent nor another fork sees what a fork writes", needs=NEEDS)
async def independent(context: Context) -> None:
    parent = await context.sandbox()
    expect.exited(await run(parent, MOMENT))
    family = [parent, *await context.forks(parent, 4)]
    line = (
        "echo {0} > /tmp/d/file; echo {0} > /tmp/{0}; [ {0} = 2 ] && rm /tmp/d/doomed; ls /tmp /tmp/d; cat /tmp/d/file"
    )
    await asyncio.gather(*(run(each, line.format(number)) for number, each in enumerate(family)))
    seen = await asyncio.gather(*(run(each, "ls /tmp; cat /tmp/d/file; ls /tmp/d") for each in family))
    wanted = [f"{n}\nd\n{n}\n{'' if n == 2 else 'doomed' + chr(10)}file\n" for n in range(len(family))]
    expect.equal([one.text for one in seen], wanted, "the files that each fork sees")


@check("fork.lives-apart", "forks outlive their parent, and each other", needs=NEEDS)
async def lives_apart(context: Context) -> None:
    parent = await context.sandbox()
    expect.exited(await run(parent, MOMENT))
    first, second, third = await context.forks(parent, 3)
    action = context.begin(run(third, "sleep 0.3; cat /tmp/d/file"))
    await first.destroy()
    expect.equal((await run(parent, "cat /tmp/d/file")).stdout, b"moment\n", "what the parent sees")
    await parent.destroy()
    expect.equal((await run(second, "cat /tmp/d/file")).stdout, b"moment\n", "what a fork sees")
    expect.equal((await action).stdout, b"moment\n", "what an action in a fork saw")
    expect.equal((first.alive, second.alive, third.alive), (False, True, True), "whether each fork is alive")


@check("fork.again", "a fork can be forked, at a later moment than its parent", needs=NEEDS)
async def again(context: Context) -> None:
    box = await context.sandbox()
    for number in range(4):
        expect.exited(
            await run(box, f"echo {number} > /tmp/{number}; rm -f /tmp/{number - 2}; echo {number} > /tmp/last")
        )
        following, other = await context.forks(box, 2)
        expect.exited(await run(other, "rm -f /tmp/*"))
        box = following
    expect.equal((await run(box, "ls /tmp; cat /tmp/last")).text, "2\n3\nlast\n3\n", "what the last fork sees")


@check("fork.reset", "a reset takes a fork back to the moment of its fork", needs=(*NEEDS, Capability.RESET))
async def reset(context: Context) -> None:
    parent = await context.sandbox()
    expect.exited(await run(parent, MOMENT))
    [fork] = await context.forks(parent, 1)
    wanted = await inventory(fork)
    await parent.destroy()
    for _ in range(2):
        expect.exited(await run(fork, "rm -rf /tmp/d; echo later > /tmp/later; (sleep 600 &)"))
        await fork.reset()
        expect.equal(differences(await inventory(fork), wanted), [], "what differs from the moment of the fork")


@check("fork.busy", "a fork of a sandbox with running processes has none of them, and the parent's go on", needs=NEEDS)
async def busy(context: Context) -> None:
    parent = await context.sandbox()
    expect.exited(await run(parent, f"{MOMENT}; (sleep 600 &)"))
    action = context.begin(run(parent, "sleep 0.3; cat /tmp/d/file"))
    for each in await context.forks(parent, 2):
        expect.true(
            b"sleep\x00600" not in (await run(each, "cat /proc/[0-9]*/cmdline")).stdout, "a process was carried over"
        )
        expect.equal((await run(each, "cat /tmp/d/file")).stdout, b"moment\n", "what a fork sees")
    expect.equal((await action).stdout, b"moment\n", "what an action of the parent saw")
    expect.true(
        b"sleep\x00600" in (await run(parent, "cat /proc/[0-9]*/cmdline")).stdout, "a background process is gone"
    )


@check("fork.counts", "an invalid number of forks is refused, and the sandbox stays usable", needs=NEEDS)
async def counts(context: Context) -> None:
    box = await context.sandbox()
    for count in (0, -1):
        with expect.raises(InvalidRequest, what=f"fork({count})"):
            await box.fork(count)
    expect.exited(await run(box, ["true"]))
    expect.equal(len(await context.forks(box, 20)), 20, "the number of forks")


@check("fork.span", "the parent's listener gets one span of the phase FORK for each call of fork", needs=NEEDS)
async def span(context: Context) -> None:
    recorder = SpanRecorder()
    box = await context.sandbox(on_span=recorder)
    start_ns = now_ns()
    await context.forks(box, 2)
    end_ns = now_ns()
    spans = [span for span in recorder.spans if span.phase is Phase.FORK]
    expect.equal([span.sandbox for span in spans], [box.id], "the sandboxes of the spans")
    expect.true(start_ns <= spans[0].start_ns <= spans[0].end_ns <= end_ns, "the span leaves the call's own interval")


@check("fork.gone", "a destroyed or dead sandbox cannot be forked", needs=NEEDS)
async def gone(context: Context) -> None:
    box = await context.sandbox()
    await box.destroy()
    with expect.raises(SandboxGone, what="fork after destroy"):
        await context.forks(box, 2)
    dead = await context.sandbox()
    if context.kill(dead):
        with expect.raises(SandboxGone, InfraFailed, what="forking a sandbox that was killed"):
            await asyncio.sleep(0.2)
            await context.forks(dead, 2)


@check("fork.close", "closing the substrate also destroys forks, even unfinished ones", needs=NEEDS)
async def close(context: Context) -> None:
    substrate = await context.another_substrate()
    if substrate is None:
        raise expect.NotRun("there is no way to make a second substrate")
    box = await substrate.create(SandboxSpec())
    family = [box, *await box.fork(2)]
    family += await family[1].fork(2)
    under_way = context.begin(box.fork(20))
    await asyncio.sleep(0.01)
    await substrate.close()
    with suppress(InfraFailed, SandboxGone):
        family += await under_way
    for each in family:
        expect.true(not each.alive, "a fork is alive after its substrate was closed")
        with expect.raises(SandboxGone, what="run in a fork after the substrate was closed"):
            await run(each, ["true"])


@check(
    "fork.leaks",
    "destroyed forks, and forks cancelled at any moment, leave nothing behind",
    needs=(*NEEDS, Capability.HOST_PROCESSES),
    limit_s=90,
)
async def nothing_leaks(context: Context) -> None:
    async with nothing_left(context):
        box = await context.sandbox()
        for moment in range(8):
            forking = context.begin(context.forks(box, 4))
            await asyncio.sleep(moment / 300)
            forking.cancel()
            with suppress(asyncio.CancelledError):
                for each in await asyncio.wait_for(forking, 10):
                    await each.destroy()
            if not box.alive:
                box = await context.sandbox()
        await box.destroy()
        forgotten = await context.sandbox()
        children = await context.forks(forgotten, 3)
        await asyncio.gather(*(each.destroy() for each in (*children, forgotten)))
