"""Exhaustion: what one sandbox uses up, neither the host nor the guest runs out of."""

from __future__ import annotations

import asyncio
import shutil
import tempfile

from dutyfree.contract import Sandbox
from dutyfree.errors import InfraFailed
from dutyfree.model import Action, Capability, Isolation, Observation, Resources, SandboxSpec, Writes
from dutyfree.testing.isolation.privileges import has_other_users
from dutyfree.testing.isolation.probe import Broken, NotApplicable, Recorded, Scene, Topic
from dutyfree.testing.isolation.program import Verdict
from dutyfree.testing.memory import MIB, resident_bytes

EXHAUSTION = Topic("exhaustion")
FEW_PROCESSES = SandboxSpec(resources=Resources(pids=64))
LITTLE_MEMORY = SandboxSpec(resources=Resources(memory_bytes=64 * MIB))
DISK_BYTES = 32 * MIB
FLOOD_MIB = 256
MOST_WATCHERS = "900"
"""Below the usual limit of open files, above the usual limit of watchers of a user."""
HOST_SLACK_BYTES = 48 * MIB
SOCKETS_MIB = 256
MOST_HELD_MIB = 80
"""A little more than the sandbox's 64 MiB: netlink sockets are counted, and may hold as much where they are many."""
MANY_TERMINALS = "600"
"""A fifth of what a machine has."""
DEVICE = "/dev/full"
"""A device node that nothing else in a sandbox opens or locks."""
WATCH_MS = "1000"


@EXHAUSTION.probe(
    "fork-bomb",
    "a fork bomb stops at the limit, ends with its timeout, and is named in the observation",
    Isolation.NAMESPACE,
    needs=[Capability.LIMIT_PIDS, Capability.KILL_TREE],
    spec=FEW_PROCESSES,
    unsafe=True,
)
async def fork_bomb(scene: Scene) -> None:
    scene.needs_limit("pids")
    seen = await scene.run([f"{scene.home}/probe", "fork-bomb"], timeout_s=2)
    if not seen.timed_out or not seen.pids_limited:
        raise Broken(f"timed_out {seen.timed_out}, pids_limited {seen.pids_limited}")
    await scene.must_answer()


@EXHAUSTION.probe(
    "memory-bomb",
    "a memory bomb is killed at the limit and named in the observation",
    Isolation.NAMESPACE,
    needs=[Capability.LIMIT_MEMORY],
    spec=LITTLE_MEMORY,
    unsafe=True,
)
async def memory_bomb(scene: Scene) -> None:
    scene.needs_limit("memory")
    seen = await scene.run([f"{scene.home}/probe", "memory-bomb", "512"], timeout_s=30)
    if not seen.oom_killed or seen.stdout:
        raise Broken(f"oom_killed {seen.oom_killed}, said {seen.text[:100]!r}")
    await scene.must_answer()


@EXHAUSTION.probe(
    "shared-memory-bomb",
    "files in /dev/shm count as memory or have a limit of their own",
    Isolation.NAMESPACE,
    needs=[Capability.LIMIT_MEMORY],
    spec=LITTLE_MEMORY,
    unsafe=True,
)
async def shared_memory_bomb(scene: Scene) -> None:
    scene.needs_limit("memory")
    seen = await scene.run([f"{scene.home}/probe", "fill-disk", "/dev/shm/full", "512"], timeout_s=30)
    if seen.text == "allowed\n":
        raise Broken("512 MiB were written to /dev/shm in a sandbox of 64 MiB")
    scene.note(f"{seen.text.strip() or 'killed'}, oom_killed {seen.oom_killed}")
    await scene.must_answer()


def _sockets(kind: str, words: str) -> None:
    @EXHAUSTION.probe(
        f"{kind}-buffers",
        f"what is in {words} that nobody reads stays near the limit of memory",
        Isolation.CONTAINER,
        needs=[Capability.LIMIT_MEMORY],
        spec=LITTLE_MEMORY,
        shared_kernel=True,
        unsafe=True,
    )
    async def buffers(scene: Scene) -> None:
        scene.needs_limit("memory")
        try:
            answer = await scene.ask("fill-sockets", kind, str(SOCKETS_MIB))
            held = int(answer.text) if answer.verdict is Verdict.VALUE else 0
            if held > MOST_HELD_MIB:
                raise Broken(f"{held} MiB are held in a sandbox of 64 MiB")
            scene.note(str(answer))
            await scene.must_answer()
        except InfraFailed as error:  # where the buffers are charged, the kernel ends what it finds in the sandbox
            scene.note(f"the sandbox ended at its limit: {error}")


_sockets("netlink-user", "netlink sockets between programs")
_sockets("netlink-route", "netlink sockets, from the kernel,")
_sockets("udp", "UDP sockets")
_sockets("tcp", "TCP sockets")


@EXHAUSTION.probe(
    "terminals",
    "one sandbox cannot have so many pseudo-terminals that others have none",
    Isolation.CONTAINER,
    shared_kernel=True,
)
async def terminals(scene: Scene) -> None:
    opened = int(await scene.value_of("open-terminals", MANY_TERMINALS))
    if opened == int(MANY_TERMINALS):
        raise Broken(f"a sandbox has {opened} of the machine's pseudo-terminals, and could have more")
    scene.note(f"{opened} were opened")


async def _needs_own_devices(scene: Scene, seen: str) -> None:
    if not await has_other_users(scene):
        raise Recorded(f"an ordinary user cannot make device nodes, so that sandboxes have the host's: {seen}")


@EXHAUSTION.probe(
    "device-locks",
    "a lock on a device node does not keep another sandbox from locking it",
    Isolation.CONTAINER,
    shared_kernel=True,
)
async def device_locks(scene: Scene) -> None:
    async with await scene.another() as neighbour:
        held = await scene.ask("hold-lock", DEVICE)
        other = await scene.ask("take-lock", DEVICE, of=neighbour)
        own = await scene.ask("take-lock", DEVICE)
    await _needs_own_devices(scene, f"{held}; in another {other}")
    if held.verdict is not Verdict.ALLOWED or own.verdict is not Verdict.DENIED:
        raise Broken(f"a lock does not hold: {held}; the same sandbox again {own}")
    if other.verdict is not Verdict.ALLOWED:
        raise Broken(f"another sandbox cannot lock it: {other}")


@EXHAUSTION.probe(
    "device-events",
    "a sandbox that watches a device node does not see that another opens it",
    Isolation.CONTAINER,
    shared_kernel=True,
)
async def device_events(scene: Scene) -> None:
    async with await scene.another() as neighbour:
        from_itself = await _opens_seen(scene, scene.sandbox)
        from_another = await _opens_seen(scene, neighbour)
    await _needs_own_devices(scene, f"{from_another} of another's opens were seen")
    if from_itself == 0:
        raise Broken("a sandbox does not see that it opens a device node itself")
    if from_another > 0:
        raise Broken("another sandbox was seen to open it")


async def _opens_seen(scene: Scene, opener: Sandbox) -> int:
    """1 if a watcher in the scene's sandbox sees `opener` open a device node, else 0."""
    watcher = asyncio.create_task(scene.value_of("await-open", DEVICE, WATCH_MS))
    try:
        while not watcher.done():  # it is not known when it has begun to watch
            await scene.ask("take-lock", DEVICE, of=opener)
    finally:
        seen = int(await watcher)
    return seen


def _fills(upper: Writes) -> None:
    spec = SandboxSpec(resources=Resources(disk_bytes=DISK_BYTES), writes=upper)

    @EXHAUSTION.probe(
        f"fill-{upper}",
        f"a full {upper} upper is named in the observation and the host keeps its space",
        Isolation.NAMESPACE,
        needs=[Capability.LIMIT_DISK],
        spec=spec,
        unsafe=True,
    )
    async def fill(scene: Scene) -> None:
        scene.needs_limit("disk")
        free = _free_bytes()
        seen = await scene.run([f"{scene.home}/probe", "fill-disk", f"{scene.home}/full", "512"], timeout_s=60)
        used = max(before - after for before, after in zip(free, _free_bytes(), strict=True))
        if not seen.disk_full:
            raise Broken(f"disk_full is False after: {seen.text[:100]!r}")
        if used > DISK_BYTES + HOST_SLACK_BYTES * 4:
            raise Broken(f"the host lost {used // MIB} MiB to a sandbox of {DISK_BYTES // MIB} MiB")
        await scene.must_answer()
        await scene.sandbox.files.remove(f"{scene.home}/full")
        after = await scene.run(["/bin/sh", "-c", f"echo room > {scene.home}/room"])
        if not after.ok or after.disk_full:
            raise Broken("removing the file made no room")

    @EXHAUSTION.probe(
        f"inodes-{upper}",
        f"a {upper} upper without inodes left is named in the observation",
        Isolation.NAMESPACE,
        needs=[Capability.LIMIT_DISK],
        spec=spec,
        unsafe=True,
    )
    async def inodes(scene: Scene) -> None:
        scene.needs_limit("disk")
        seen = await scene.run([f"{scene.home}/probe", "fill-inodes", f"{scene.home}/many", "300000"], timeout_s=60)
        if not _is_named(seen):
            raise Broken(f"neither disk_full nor oom_killed after: {seen.text[:100]!r}, timed_out {seen.timed_out}")
        scene.note(f"{seen.text.strip() or 'killed'}, disk_full {seen.disk_full}, oom_killed {seen.oom_killed}")
        await scene.must_answer()


def _is_named(seen: Observation) -> bool:
    return seen.disk_full or seen.oom_killed


def _free_bytes() -> tuple[int, ...]:
    return tuple(shutil.disk_usage(place).free for place in ("/", "/dev/shm", tempfile.gettempdir()))


_fills(Writes.MEMORY)
_fills(Writes.DISK)


async def _needs_own_users(scene: Scene) -> None:
    if not await has_other_users(scene):
        raise NotApplicable("the kernel counts per user, and the sandbox has no user ids of its own")


@EXHAUSTION.probe(
    "host-watchers",
    "file watchers that a sandbox uses up are not missing on the host",
    Isolation.CONTAINER,
    shared_kernel=True,
    unsafe=True,
)
async def host_watchers(scene: Scene) -> None:
    await _needs_own_users(scene)
    if (await scene.ask_host("take-watcher")).verdict is not Verdict.ALLOWED:
        raise NotApplicable("the host has no file watcher left to begin with")
    held = await scene.value_of("hold-watchers", MOST_WATCHERS)
    if (await scene.ask_host("take-watcher")).verdict is not Verdict.ALLOWED:
        raise Broken(f"the host has none left after a sandbox took {held}")
    scene.note(f"the sandbox took {held}")


@EXHAUSTION.probe(
    "neighbour-watchers",
    "file watchers that a sandbox uses up are not missing in another",
    Isolation.CONTAINER,
    shared_kernel=True,
    unsafe=True,
)
async def neighbour_watchers(scene: Scene) -> None:
    await _needs_own_users(scene)
    async with await scene.another() as neighbour:
        held = await scene.value_of("hold-watchers", MOST_WATCHERS)
        if (await scene.ask("take-watcher", of=neighbour)).verdict is not Verdict.ALLOWED:
            raise Broken(f"another sandbox has none left after one took {held}")
        scene.note(f"the sandbox took {held}")


@EXHAUSTION.probe(
    "output-flood", "a flood of output costs the host no memory beyond the action's limit", Isolation.NONE
)
async def output_flood(scene: Scene) -> None:
    before = resident_bytes()
    command = [f"{scene.home}/probe", "flood", str(FLOOD_MIB)]
    seen = await scene.sandbox.run(Action(command, timeout_s=60, output_limit_bytes=MIB))
    grown = resident_bytes() - before
    if not seen.truncated or len(seen.stdout) > MIB or seen.stdout_bytes != FLOOD_MIB * MIB:
        raise Broken(f"truncated {seen.truncated}, got {len(seen.stdout)} of {seen.stdout_bytes} bytes")
    if grown > HOST_SLACK_BYTES:
        raise Broken(f"the host process grew by {grown // MIB} MiB")
    scene.note(f"{FLOOD_MIB} MiB written; the host process grew by {max(grown, 0) // 1024} KiB")
