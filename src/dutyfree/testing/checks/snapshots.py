"""Snapshot: the files of a sandbox at one moment; other sandboxes start from it, and the sandbox goes on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from dutyfree.contract import Sandbox
from dutyfree.errors import InfraFailed, InvalidRequest, SandboxGone
from dutyfree.model import Action, Capability, Image, Phase, Resources, SandboxSpec, Writes
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.checks.leaks import nothing_left
from dutyfree.testing.context import Context, run
from dutyfree.testing.inventory import differences, inventory
from dutyfree.testing.scripts import IN_ORDER, READ_ATTRIBUTES, SHARED_MEMORY, WRITE_ATTRIBUTES, ZOO
from dutyfree.trace import SpanRecorder, now_ns

NEEDS = (Capability.SNAPSHOT,)
DEPTH = 12
SNAPSHOTS = 30
UPPERS = (
    SandboxSpec(),
    SandboxSpec(writes=Writes.DISK),
    SandboxSpec(Resources(disk_bytes=None), writes=Writes.DISK),
)
"""Each kind of upper, in which a sandbox keeps the files it writes."""


@check(
    "snapshot.files", "a sandbox started from a snapshot has exactly the files of that moment", needs=NEEDS, limit_s=90
)
async def files(context: Context) -> None:
    for spec in _specs(context):
        for busy in (False, True):
            await _compare(context, spec, busy=busy)


async def _compare(context: Context, spec: SandboxSpec, *, busy: bool) -> None:
    box = await context.sandbox(spec)
    expect.exited(await run(box, ZOO))
    await run(box, ["python3", "-c", WRITE_ATTRIBUTES])
    if busy:
        expect.exited(await run(box, "(sleep 600 &)"))
    moment, attributes = await _files(box)
    async with await box.snapshot() as snapshot:
        expect.exited(await run(box, "echo later > /tmp/zoo/file; rm -rf /tmp/zoo/deep; echo later > /tmp/zoo/later"))
        other = await context.sandbox(replace(spec, image=snapshot.image))
        case = f"{'busy' if busy else 'idle'}, {spec.writes.value}"
        seen, seen_attributes = await _files(other)
        expect.equal(differences(seen, moment), [], f"what differs from the moment ({case})")
        expect.equal(seen_attributes, attributes, f"the extended attributes ({case})")
        blocks = (await run(other, ["stat", "-c", "%b", "/tmp/zoo/sparse"])).text
        expect.between(int(blocks), 0, 1000, f"the number of blocks of a sparse file of 64 MiB ({case})")
    for each in (box, other):
        await each.destroy()


async def _files(box: Sandbox) -> tuple[frozenset[bytes], bytes]:
    places = ("/tmp/zoo", "/srv/moved")
    listed = await inventory(box, places, content=places, dated=True) | await inventory(box)
    return listed, (await run(box, ["python3", "-c", READ_ATTRIBUTES])).stdout


@check("snapshot.goes-on", "a snapshot does not disturb the sandbox's actions, streams, jobs and files", needs=NEEDS)
async def goes_on(context: Context) -> None:
    box = await context.sandbox(SandboxSpec(env={"FROM_SPEC": "spec"}))
    expect.exited(await run(box, "echo kept > /tmp/kept; (sleep 600 &)"))
    action = context.begin(run(box, "sleep 0.5; cat /tmp/kept; echo $FROM_SPEC"))
    async with box.stream(Action(["cat"])) as stream:
        await stream.write(b"before\n")
        chunks = aiter(stream)
        expect.equal((await anext(chunks)).data, b"before\n", "the stream's output before the snapshot")
        async with await box.snapshot():
            await stream.write(b"after\n")
            expect.equal((await anext(chunks)).data, b"after\n", "the stream's output after the snapshot")
            await stream.end_input()
            expect.exited(await stream.wait())
    expect.equal((await action).stdout, b"kept\nspec\n", "the output of an action that ran during the snapshot")
    expect.true(b"sleep\x00600" in (await run(box, "cat /proc/[0-9]*/cmdline")).stdout, "a background process is gone")
    expect.true(box.alive, "the sandbox is not alive")


@check(
    "snapshot.session",
    "a snapshot does not disturb sessions and terminals",
    needs=(*NEEDS, Capability.SESSIONS, Capability.TERMINALS),
)
async def session(context: Context) -> None:
    box = await context.sandbox()
    async with await box.session() as shell, await box.terminal("read word; echo got-$word") as terminal:
        expect.exited(await shell.run("A=kept; cd /tmp; sleep 600 & job=$!"))
        async with await box.snapshot():
            seen = await shell.run("echo $A; pwd; kill -0 $job && echo runs")
            expect.equal(seen.text, "kept\n/tmp\nruns\n", "the session's variable, cwd and job")
            await terminal.write(b"typed\n")
            expect.exited(await terminal.wait())


@check(
    "snapshot.between-actions",
    "a sandbox without running processes keeps its files and environment",
    needs=NEEDS,
)
async def between_actions(context: Context) -> None:
    box = await context.sandbox(SandboxSpec(env={"FROM_SPEC": "spec"}, hostname="made"))
    expect.exited(await run(box, ZOO))
    name, line = box.id, "pwd; env | sort; uname -n; id; ulimit -a"
    files_before, seen_before = await inventory(box), await run(box, line)
    for _ in range(2):
        async with await box.snapshot():
            pass
    expect.equal((box.id, box.alive), (name, True), "the id and whether it is alive")
    expect.equal(differences(await inventory(box), files_before), [], "the changed files")
    expect.equal((await run(box, line)).stdout, seen_before.stdout, "what actions see")


@check("snapshot.dev-shm", "files in /dev/shm stay in the sandbox and are not part of the snapshot", needs=NEEDS)
async def dev_shm(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, "echo kept > /dev/shm/kept"))
    async with await box.snapshot() as snapshot:
        expect.equal((await run(box, "cat /dev/shm/kept")).stdout, b"kept\n", "the file in /dev/shm after the snapshot")
        other = await context.sandbox(SandboxSpec(image=snapshot.image))
        expect.equal((await run(other, "ls -A /dev/shm")).stdout, b"", "the files in /dev/shm of another sandbox")


@check("snapshot.ipc", "System V shared memory stays in the sandbox", needs=NEEDS)
async def ipc(context: Context) -> None:
    box = await context.sandbox()
    if not (await run(box, ["python3", "-c", SHARED_MEMORY, "3600"])).ok:
        raise expect.NotRun("this check needs python3 and System V shared memory in the sandbox")
    async with await box.snapshot():
        expect.true((await run(box, ["python3", "-c", SHARED_MEMORY, "0"])).ok, "the shared memory is gone")


@check(
    "snapshot.apart",
    "what a sandbox writes after its start does not reach its source, the snapshot or its siblings",
    needs=NEEDS,
)
async def apart(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, "mkdir /tmp/d; echo moment > /tmp/d/file; echo moment > /tmp/d/other"))
    async with await box.snapshot() as snapshot:
        first, second = [await context.sandbox(SandboxSpec(image=snapshot.image)) for _ in range(2)]
        for number, each in enumerate((box, first)):
            expect.exited(await run(each, f"echo {number} > /tmp/d/file; rm /tmp/d/other; chmod 700 /tmp/d"))
        last = await context.sandbox(SandboxSpec(image=snapshot.image))
        for each in (second, last):
            seen = await run(each, "cat /tmp/d/file /tmp/d/other; stat -c %a /tmp/d")
            expect.equal(seen.stdout, b"moment\nmoment\n755\n", "what another sandbox sees")
        expect.equal((await run(box, "cat /tmp/d/file")).stdout, b"0\n", "what the source sees")


@check(
    "snapshot.consistent", "a snapshot taken while files are written shows one moment of them", needs=NEEDS, limit_s=60
)
async def consistent(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, f"({IN_ORDER}) > /dev/null 2>&1 & until [ -e /tmp/second ]; do sleep 0.01; done"))
    for _ in range(5):
        async with await box.snapshot() as snapshot:
            other = await context.sandbox(SandboxSpec(image=snapshot.image))
            first, second = (await run(other, "cat /tmp/first /tmp/second")).text.split()
            expect.between(int(first) - int(second), 0, 1, "the first file's number minus the second file's")
            await other.destroy()
    before = int((await run(box, ["cat", "/tmp/second"])).text)
    await asyncio.sleep(0.1)
    expect.true(int((await run(box, ["cat", "/tmp/second"])).text) > before, "the writer stopped after the snapshot")


@check("snapshot.processes", "processes are not part of a snapshot", needs=NEEDS)
async def processes(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, "(sleep 600 &)"))
    async with await box.snapshot() as snapshot:
        other = await context.sandbox(SandboxSpec(image=snapshot.image))
        seen = await run(other, "cat /proc/[0-9]*/cmdline")
        expect.true(b"sleep\x00600" not in seen.stdout, "a process of the source runs in the sandbox")


@check(
    "snapshot.discard", "discarding twice is allowed, and no sandbox can start from a discarded snapshot", needs=NEEDS
)
async def discard(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, "echo kept > /tmp/kept"))
    snapshot = await box.snapshot()
    other = await context.sandbox(SandboxSpec(image=snapshot.image))
    await snapshot.discard()
    await snapshot.discard()
    await asyncio.gather(snapshot.discard(), snapshot.discard())
    for each in (other, box):
        expect.equal(
            (await run(each, "cat /tmp/kept")).stdout, b"kept\n", "what a sandbox sees after its snapshot was discarded"
        )
        await each.destroy()
    with expect.raises(InvalidRequest, what="starting a sandbox from a discarded snapshot"):
        await context.sandbox(SandboxSpec(image=snapshot.image))
    with expect.raises(InvalidRequest, what="saving a discarded snapshot"):
        await snapshot.save()


@check("snapshot.outlives", "a snapshot outlives its sandbox", needs=NEEDS)
async def outlives(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, "echo kept > /tmp/kept"))
    async with await box.snapshot() as snapshot:
        await box.destroy()
        for _ in range(2):
            other = await context.sandbox(SandboxSpec(image=snapshot.image))
            expect.equal((await run(other, "cat /tmp/kept")).stdout, b"kept\n", "what a sandbox sees")
            await other.destroy()


@check(
    "snapshot.reset",
    "a reset takes a sandbox back to the image it was made from, also after snapshots of it",
    needs=(*NEEDS, Capability.RESET),
)
async def reset(context: Context) -> None:
    box = await context.sandbox()
    pristine = await inventory(box)
    expect.exited(await run(box, ZOO))
    async with await box.snapshot() as snapshot:
        await box.reset()
        expect.equal(differences(await inventory(box), pristine), [], "what differs from a new sandbox")
        other = await context.sandbox(SandboxSpec(image=snapshot.image))
        moment = await inventory(other)
        expect.exited(await run(other, "rm -rf /tmp/zoo /etc/motd; echo later > /tmp/later"))
        await other.reset()
        expect.equal(differences(await inventory(other), moment), [], "what differs from the snapshot after a reset")


@check(
    "snapshot.chain", f"snapshots of snapshots, {DEPTH} deep, keep every change and removal", needs=NEEDS, limit_s=60
)
async def chain(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, "mkdir /tmp/deep; echo x > /tmp/deep/old; echo x > /tmp/doomed; rm -f /etc/issue"))
    for number in range(DEPTH):
        line = f"echo {number} > /tmp/{number}; echo {number} > /tmp/last; rm -f /tmp/{number - 2} /tmp/doomed"
        again = f"rm -rf /tmp/deep; mkdir /tmp/deep; echo {number} > /tmp/deep/{number}"
        expect.exited(await run(box, f"{line}; {again if number % 3 == 1 else ':'}"))
        async with await box.snapshot() as snapshot:
            following = await context.sandbox(SandboxSpec(image=snapshot.image))
        await box.destroy()
        box = following
    seen = await run(box, "cat /tmp/last; ls /tmp /tmp/deep; ls -d /etc/issue")
    wanted = f"{DEPTH - 1}\n/tmp:\n{DEPTH - 2}\n{DEPTH - 1}\ndeep\nlast\n\n/tmp/deep:\n10\n"
    expect.equal(seen.text, wanted, "the files after all changes")


@check(
    "snapshot.again",
    "repeated snapshots keep all files written before, in each kind of upper",
    needs=NEEDS,
    limit_s=90,
)
async def again(context: Context) -> None:
    for spec in _specs(context):
        for _ in range(context.times(5)):
            box = await context.sandbox(spec)
            for number in range(3):
                await (await box.snapshot()).discard()  # the first one is of an unused sandbox
                expect.exited(await run(box, f"echo {number} > /tmp/{number}"))
                await (await box.snapshot()).discard()
                seen = (await run(box, "cat /tmp/?")).text.split()
                expect.equal(
                    seen, [str(n) for n in range(number + 1)], f"the content of the files ({spec.writes.value})"
                )
            await box.destroy()


@check("snapshot.at-once", "concurrent snapshots and actions do not disturb each other", needs=NEEDS)
async def at_once(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, "echo kept > /tmp/kept"))
    taking = [context.begin(box.snapshot()) for _ in range(3)]
    seen = await asyncio.gather(*(run(box, f"cat /tmp/kept; echo {number}") for number in range(12)))
    expect.equal([one.text for one in seen], [f"kept\n{number}\n" for number in range(12)], "what the actions saw")
    for snapshot in await asyncio.gather(*taking):
        other = await context.sandbox(SandboxSpec(image=snapshot.image))
        expect.equal((await run(other, "cat /tmp/kept")).stdout, b"kept\n", "what a sandbox sees")
        await snapshot.discard()


@check("snapshot.span", "the listener gets one span of the phase SNAPSHOT for each snapshot", needs=NEEDS)
async def span(context: Context) -> None:
    recorder = SpanRecorder()
    box = await context.sandbox(on_span=recorder)
    start_ns = now_ns()
    async with await box.snapshot():
        end_ns = now_ns()
    spans = [span for span in recorder.spans if span.phase is Phase.SNAPSHOT]
    expect.equal(len(spans), 1, "the number of spans")
    expect.equal(spans[0].sandbox, box.id, "the sandbox of the span")
    expect.true(start_ns <= spans[0].start_ns <= spans[0].end_ns <= end_ns, "the span leaves the call's own interval")


@check("snapshot.gone", "no snapshot can be taken of a destroyed or dead sandbox", needs=NEEDS)
async def gone(context: Context) -> None:
    box = await context.sandbox()
    await box.destroy()
    with expect.raises(SandboxGone, what="snapshot after destroy"):
        await box.snapshot()
    dead = await context.sandbox()
    if context.kill(dead):
        with expect.raises(SandboxGone, InfraFailed, what="a snapshot of a sandbox that was killed"):
            await asyncio.sleep(0.2)
            await dead.snapshot()


@check(
    "snapshot.cancelled",
    "a snapshot cancelled at any moment leaves the sandbox unchanged or gone",
    needs=NEEDS,
    limit_s=60,
)
async def cancelled(context: Context) -> None:
    for moment in range(12):
        box = await context.sandbox()
        expect.exited(await run(box, f"echo kept > /tmp/kept; {'(sleep 600 &)' if moment % 2 else ':'}"))
        taking = context.begin(box.snapshot())
        await asyncio.sleep(moment / 2000)
        taking.cancel()
        with suppress(asyncio.CancelledError):
            await (await asyncio.wait_for(taking, 10)).discard()
        if box.alive:
            expect.equal((await run(box, "cat /tmp/kept")).stdout, b"kept\n", "what the sandbox sees afterwards")
        await box.destroy()


@check(
    "snapshot.leaks",
    f"{SNAPSHOTS} discarded snapshots, and cancelled ones, leave nothing behind",
    needs=(*NEEDS, Capability.HOST_PROCESSES),
    limit_s=90,
)
async def nothing_leaks(context: Context) -> None:
    async with nothing_left(context):
        box = await context.sandbox()
        for number in range(SNAPSHOTS):
            expect.exited(await run(box, f"echo x > /tmp/x; {'(sleep 600 &)' if number > SNAPSHOTS // 2 else ':'}"))
            await (await box.snapshot()).discard()
        await box.destroy()
        await cancelled.attempt(context)


@check(
    "snapshot.save",
    "a saved snapshot has a digest, the same each time it is saved, and other substrates can start from it",
    needs=(*NEEDS, Capability.IMAGES),
    limit_s=60,
)
async def save(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, ZOO))
    listed = await inventory(box)
    images: list[Image] = []
    for _ in range(2):
        async with await box.snapshot() as snapshot:
            images += await asyncio.gather(snapshot.save(), snapshot.save())
            expect.equal(snapshot.image, images[-1], "the image of a saved snapshot")
    expect.true(all(image.is_stored for image in images), "a saved image is not stored")
    expect.equal(images[0].digest, images[1].digest, "the digest of the same snapshot")
    substrate = await context.another_substrate()
    if substrate is None:
        raise expect.NotRun("there is no way to make a second substrate")
    for image in (images[0], images[-1]):
        other = await substrate.create(SandboxSpec(image=image))
        expect.equal(differences(await inventory(other), listed), [], "what differs from the moment")
        await other.destroy()


def _specs(context: Context) -> list[SandboxSpec]:
    return [spec for spec in UPPERS if spec.writes in context.writable_places]
