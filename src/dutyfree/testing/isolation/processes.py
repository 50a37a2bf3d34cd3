"""Processes: a sandbox can neither see nor affect the host's processes."""

from __future__ import annotations

import asyncio
import secrets

from dutyfree.model import Action, Capability, Isolation
from dutyfree.testing.isolation.canaries import host_process
from dutyfree.testing.isolation.probe import ENVIRONMENT_SECRET, Broken, Scene, Topic
from dutyfree.testing.isolation.program import Verdict

PROCESSES = Topic("processes")


@PROCESSES.probe("invisible", "the host's processes are not in the sandbox's /proc", Isolation.NAMESPACE)
async def invisible(scene: Scene) -> None:
    async with host_process(scene.token):
        await scene.must_deny("find-in-processes", "cmdline", scene.token)


def _denies_on_host_process(name: str, promise: str, *question: str) -> None:
    @PROCESSES.probe(name, promise, Isolation.NAMESPACE)
    async def check(scene: Scene) -> None:
        async with host_process(scene.token) as pid:
            await scene.must_deny(question[0], str(pid), *question[1:])


_denies_on_host_process("signal", "a sandbox cannot send a signal to a process of the host", "signal-process", "0")
_denies_on_host_process("trace", "a process of the host cannot be traced", "trace")
_denies_on_host_process("memory", "the memory of a process of the host cannot be read", "read-memory")
_denies_on_host_process("pidfd", "no pidfd can be opened for a process of the host", "pidfd")
_denies_on_host_process(
    "descriptors", "the descriptors of a process of the host cannot be listed", "look-at-descriptors"
)


async def _leave_tree(scene: Scene, way: str) -> None:
    """Time out an action whose program tries to leave the action's process tree. Raises Broken if a process is left."""
    sign = f"{scene.home}/{way}"
    seen = await scene.run([f"{scene.home}/probe", "leave-tree", way, sign], timeout_s=0.5)
    if not seen.timed_out:
        raise Broken(f"the program ended before its timeout: exit {seen.exit_code}, {seen.text[:100]!r}")
    await scene.run(["rm", "-f", sign])
    await asyncio.sleep(0.3)
    if (await scene.run(["test", "-e", sign])).ok:
        raise Broken(f"a process ({way}) survived the timeout")


for _way, _words in (("orphan", "stops reaping its orphans"), ("sibling", "makes a sibling process")):

    @PROCESSES.probe(
        f"time-out-{_way}",
        f"a timeout ends all processes of an action, even if it {_words}",
        Isolation.NONE,
        needs=[Capability.KILL_TREE],
    )
    async def _time_out(scene: Scene, way: str = _way) -> None:
        await _leave_tree(scene, way)

    @PROCESSES.probe(
        f"time-out-{_way}-in-company",
        f"the same for an action that {_words} while another action runs",
        Isolation.CONTAINER,
        needs=[Capability.KILL_TREE],
    )
    async def _time_out_in_company(scene: Scene, way: str = _way) -> None:
        other = asyncio.create_task(scene.sandbox.run(Action(["sleep", "30"])))
        try:
            await asyncio.sleep(0.2)
            await _leave_tree(scene, way)
            if other.done():
                raise Broken("the other action has ended, too")
        finally:
            other.cancel()
            await asyncio.wait([other])


PROCESSES.denies(
    "oom-score",
    "a process cannot protect itself from the OOM killer",
    Isolation.CONTAINER,
    "protect-from-oom",
)


@PROCESSES.probe("environment", "a command does not inherit the host process's environment", Isolation.NONE)
async def environment(scene: Scene) -> None:
    seen = await scene.run("export -p")
    if scene.secret in seen.text:
        raise Broken(f"{ENVIRONMENT_SECRET} of the host process is in a command's environment")


@PROCESSES.probe("environments", "no process in the sandbox shows the host process's environment", Isolation.NAMESPACE)
async def environments(scene: Scene) -> None:
    async with host_process(scene.token):  # it inherits the variable
        await scene.must_deny("find-in-processes", "environ", scene.secret)


@PROCESSES.probe("shared-memory", "the host's System V shared memory cannot be reached", Isolation.NAMESPACE)
async def shared_memory(scene: Scene) -> None:
    key = str(secrets.randbelow(1 << 30) + 1)
    made = await scene.ask_host("shared-memory", "make", key)
    if made.verdict is not Verdict.ALLOWED:
        raise Broken(f"the probe cannot be set up on the host: {made}")
    try:
        await scene.must_deny("shared-memory", "get", key)
    finally:
        await scene.ask_host("shared-memory", "remove", key)


@PROCESSES.probe(
    "hostname", "a sandbox that changes its hostname does not change the host's", Isolation.NAMESPACE, unsafe=True
)
async def hostname(scene: Scene) -> None:
    before = await scene.ask_host("read-file", "/proc/sys/kernel/hostname")
    await scene.run(f"hostname {scene.token[:20]} || echo {scene.token[:20]} > /proc/sys/kernel/hostname")
    after = await scene.ask_host("read-file", "/proc/sys/kernel/hostname")
    if before.text != after.text:
        raise Broken(f"the host's name changed from {before.text!r} to {after.text!r}")
