"""Limits on memory, processes, disk and CPU: enforced, named in the observation, and the sandbox survives them."""

from __future__ import annotations

import asyncio

from dutyfree.contract import Sandbox
from dutyfree.model import Capability, Network, Resources, SandboxSpec, Writes
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run
from dutyfree.testing.memory import MIB


@check(
    "limits.memory",
    "the observation of a command that exceeds the memory limit has oom_killed set",
    needs=(Capability.LIMIT_MEMORY,),
)
async def memory(context: Context) -> None:
    box = await context.sandbox(SandboxSpec(Resources(memory_bytes=64 * MIB)))
    seen = await run(box, "dd if=/dev/zero of=/dev/null bs=256M count=1")
    expect.true(not seen.ok, "a command used four times the limit")
    expect.true(seen.oom_killed, f"oom_killed is not set: {seen.exit_code}, {seen.signal}, {seen.stderr!r}")
    after = await run(box, ["echo", "alive"])
    expect.equal((after.stdout, after.oom_killed), (b"alive\n", False), "the next action")


@check("limits.memory-within", "a command within the memory limit is not disturbed", needs=(Capability.LIMIT_MEMORY,))
async def memory_within(context: Context) -> None:
    box = await context.sandbox(SandboxSpec(Resources(memory_bytes=128 * MIB)))
    seen = await run(box, "dd if=/dev/zero of=/dev/null bs=32M count=2")
    expect.exited(seen)
    expect.true(not seen.oom_killed, "oom_killed is set")


@check(
    "limits.memory-session",
    "a session survives a command that exceeds the memory limit",
    needs=(Capability.LIMIT_MEMORY, Capability.SESSIONS),
)
async def memory_session(context: Context) -> None:
    box = await context.sandbox(SandboxSpec(Resources(memory_bytes=64 * MIB)))
    async with await box.session() as shell:
        expect.exited(await shell.run("A=kept"))
        expect.true(
            (await shell.run("dd if=/dev/zero of=/dev/null bs=256M count=1")).oom_killed, "oom_killed is not set"
        )
        expect.equal((await shell.run("echo $A")).text, "kept\n", "the variable afterwards")


@check(
    "limits.pids",
    "the observation of a command that exceeds the process limit has pids_limited set",
    needs=(Capability.LIMIT_PIDS,),
)
async def pids(context: Context) -> None:
    box = await context.sandbox(SandboxSpec(Resources(pids=32)))
    seen = await run(box, "i=0; while [ $i -lt 64 ]; do sleep 2 & i=$((i+1)); done; wait")
    expect.true(seen.pids_limited, f"pids_limited is not set: {seen.exit_code}, {seen.stderr[-200:]!r}")
    await asyncio.sleep(2.5)
    after = await run(box, ["echo", "alive"])
    expect.equal((after.stdout, after.pids_limited), (b"alive\n", False), "the next action")


@check(
    "limits.fork-bomb",
    "a fork bomb ends with its timeout, and the sandbox stays usable",
    needs=(Capability.LIMIT_PIDS, Capability.KILL_TREE),
    limit_s=60,
)
async def fork_bomb(context: Context) -> None:
    box = await context.sandbox(SandboxSpec(Resources(pids=64)))
    seen = await run(box, "bomb() { bomb | bomb & }; bomb; sleep 20", timeout_s=1)
    expect.true(seen.timed_out or seen.pids_limited, f"the bomb ended with {seen.exit_code}, {seen.stderr[-200:]!r}")

    async def is_usable() -> bool:
        return (await run(box, ["true"])).ok

    await expect.soon(is_usable, "the sandbox cannot run anything after a fork bomb", within_s=20)


@check(
    "limits.disk",
    "the observation of a command that fills the disk has disk_full set, and freed space can be used again",
    needs=(Capability.LIMIT_DISK,),
)
async def disk(context: Context) -> None:
    for upper in context.writable_places:
        box = await _small_disk(context, upper)
        path = await context.scratch(box)
        seen = await run(box, f"head -c {32 * MIB} /dev/zero > {path}/big")
        expect.true(not seen.ok, f"32 MiB fit into an upper ({upper.value}) of 8 MiB")
        expect.true(seen.disk_full, f"disk_full is not set ({upper.value}): {seen.stderr!r}")
        after = await run(box, f"rm {path}/big && echo small > {path}/small && cat {path}/small")
        expect.equal((after.stdout, after.disk_full), (b"small\n", False), "the next action")


@check("limits.inodes", "running out of inodes also sets disk_full", needs=(Capability.LIMIT_DISK,), limit_s=90)
async def inodes(context: Context) -> None:
    box = await _small_disk(context, Writes.MEMORY)
    path = await context.scratch(box)
    line = "i=0; while [ $i -lt 60000 ]; do : > $i || exit 9; i=$((i+1)); done"
    seen = await run(box, line, cwd=path, timeout_s=60)
    if seen.ok or seen.timed_out:
        raise expect.NotRun("60,000 files fit into 8 MiB: inodes are not limited here")
    expect.true(seen.disk_full, f"disk_full is not set: {seen.exit_code}, {seen.stderr[-200:]!r}")


@check("limits.disk-within", "a command within the disk limit is not disturbed", needs=(Capability.LIMIT_DISK,))
async def disk_within(context: Context) -> None:
    box = await _small_disk(context, Writes.MEMORY)
    path = await context.scratch(box)
    seen = await run(box, f"head -c {4 * MIB} /dev/zero > {path}/fits")
    expect.exited(seen)
    expect.true(not seen.disk_full, "disk_full is set")


@check("limits.cpu", "a loop does less work on a quarter of a CPU than without a limit", needs=(Capability.LIMIT_CPU,))
async def cpu(context: Context) -> None:
    # Compares work done, because some kernels account CPU time more coarsely than they schedule it.
    line = "i=0; while :; do i=$((i+1)); [ $((i % 100)) = 0 ] && echo $i; done"
    done = []
    for cpus in (None, 0.25):
        box = await context.sandbox(SandboxSpec(Resources(cpus=cpus)))
        seen = await run(box, line, timeout_s=2)
        done.append(len(seen.stdout.split()))
        await box.destroy()
    expect.true(done[0] > 0, "the loop does no work")
    expect.between(done[1] / done[0], 0, 0.75, "the work of a loop on a quarter of a CPU, relative to no limit,")


@check("limits.unenforced", "the sandbox names each requested limit that it does not enforce, with the reason")
async def unenforced(context: Context) -> None:
    resources = Resources(memory_bytes=256 * MIB, cpus=1.0, pids=100, disk_bytes=256 * MIB)
    box = await context.sandbox(SandboxSpec(resources, network=Network.NONE))
    named = " ".join(item.what for item in box.unenforced)
    expect.true(all(item.what and item.reason for item in box.unenforced), "a limit is named without a reason")
    for capability, word in (
        (Capability.LIMIT_MEMORY, "memory"),
        (Capability.LIMIT_CPU, "cpu"),
        (Capability.LIMIT_PIDS, "pids"),
        (Capability.LIMIT_DISK, "disk"),
        (Capability.DENY_NETWORK, "network"),
    ):
        if capability in context.capabilities:
            expect.true(word not in named, f"{capability.value} is claimed, but named as not enforced")
        else:
            expect.true(word in named, f"{capability.value} is not claimed, but not named as not enforced: {named!r}")


@check(
    "limits.not-requested",
    "a limit that was not requested is not named as unenforced",
    needs=(Capability.HOST_NETWORK,),
)
async def not_requested(context: Context) -> None:
    resources = Resources(memory_bytes=None, cpus=None, pids=None, disk_bytes=None)
    box = await context.sandbox(SandboxSpec(resources, network=Network.HOST))
    bounds = [item for item in box.unenforced if item.what.startswith("limit-")]
    expect.equal(bounds, [], "the limits named as not enforced")
    expect.exited(await run(box, ["true"]))


async def _small_disk(context: Context, upper: Writes) -> Sandbox:
    box = await context.sandbox(SandboxSpec(Resources(disk_bytes=8 * MIB), writes=upper))
    if any("disk" in item.what for item in box.unenforced):
        raise expect.NotRun(
            f"the disk limit is not enforced on an upper of kind {upper.value} here, and the sandbox says so"
        )
    return box
