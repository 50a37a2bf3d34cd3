"""Processes: those of the host can be neither seen nor touched."""

from __future__ import annotations

import secrets

from dutyfree.model import Isolation
from dutyfree.testing.isolation.canaries import host_process
from dutyfree.testing.isolation.probe import ENVIRONMENT_SECRET, Broken, Scene, Topic
from dutyfree.testing.isolation.program import Verdict

PROCESSES = Topic("processes")


@PROCESSES.probe("invisible", "the host's processes are not in the sandbox's /proc", Isolation.NAMESPACE)
async def invisible(scene: Scene) -> None:
    async with host_process(scene.token):
        await scene.must_deny("find-in-processes", "cmdline", scene.token)


def _out_of_reach(name: str, promise: str, *question: str) -> None:
    @PROCESSES.probe(name, promise, Isolation.NAMESPACE)
    async def check(scene: Scene) -> None:
        async with host_process(scene.token) as pid:
            await scene.must_deny(question[0], str(pid), *question[1:])


_out_of_reach("signal", "a process of the host cannot be sent a signal", "signal-process", "0")
_out_of_reach("trace", "a process of the host cannot be traced", "trace")
_out_of_reach("memory", "the memory of a process of the host cannot be read", "read-memory")
_out_of_reach("pidfd", "a process of the host cannot be got hold of by a descriptor", "pidfd")
_out_of_reach("descriptors", "the descriptors of a process of the host cannot be looked at", "look-at-descriptors")


@PROCESSES.probe("environment", "a command does not inherit the host process's environment", Isolation.NONE)
async def environment(scene: Scene) -> None:
    seen = await scene.run("export -p")
    if scene.secret in seen.text:
        raise Broken(f"{ENVIRONMENT_SECRET} of the host process is in a command's environment")


@PROCESSES.probe("environments", "no process in the sandbox shows the host process's environment", Isolation.NAMESPACE)
async def environments(scene: Scene) -> None:
    async with host_process(scene.token):  # which inherits it
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
        raise Broken(f"the host is called {after.text!r} now, and was called {before.text!r}")
