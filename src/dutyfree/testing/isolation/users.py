"""Users: one sandbox cannot use up another's share of what the kernel counts for each user."""

from __future__ import annotations

from dutyfree.contract import Sandbox
from dutyfree.model import Action, Capability, Isolation
from dutyfree.testing.isolation.probe import Broken, NotApplicable, Scene, Topic
from dutyfree.testing.isolation.program import Verdict

USERS = Topic("users")
MANY_PIPES = "128"
"""Pipes of 1 MiB. The kernel gives one user half as many; after that, new pipes are smaller."""
MANY_FLIGHTS = "2000"
FEW_FLIGHTS = "500"


@USERS.probe(
    "ids",
    "no two sandboxes have a host user id in common",
    Isolation.CONTAINER,
    needs=[Capability.OWN_IDS],
    shared_kernel=True,
)
async def ids(scene: Scene) -> None:
    async with await scene.another() as neighbour:
        first, second = [await _ranges(each) for each in (scene.sandbox, neighbour)]
    common = [(one, other) for one in first for other in second if one.start < other.stop and other.start < one.stop]
    if common:
        raise Broken(f"both sandboxes have host ids in {common[0]}")
    scene.note(f"{first} and {second}")


async def _ranges(sandbox: Sandbox) -> list[range]:
    seen = await sandbox.run(Action(["cat", "/proc/self/uid_map"]))
    lines = [[int(word) for word in line.split()] for line in seen.text.splitlines()]
    return [range(outside, outside + count) for _inside, outside, count in lines]


@USERS.probe(
    "pipes",
    "a sandbox that uses up its pipe buffer pages does not take them from another sandbox",
    Isolation.CONTAINER,
    needs=[Capability.OWN_IDS],
    shared_kernel=True,
    unsafe=True,
)
async def pipes(scene: Scene) -> None:
    async with await scene.another() as neighbour:
        before = (await scene.ask("pipe-bytes", of=neighbour)).text
        held = await scene.value_of("hold-pipes", MANY_PIPES)
        own, after = [(await scene.ask("pipe-bytes", of=each)).text for each in (None, neighbour)]
    if before != after:
        raise Broken(
            f"another sandbox's pipes shrank from {before} to {after} bytes after one sandbox took {held} pipes"
        )
    if own == before:
        raise NotApplicable(f"{held} large pipes do not exceed the limit of one user here")
    scene.note(f"the sandbox took {held} pipes: its own shrank to {own} bytes, another sandbox's have {after} bytes")


@USERS.probe(
    "descriptors-in-flight",
    "a sandbox's descriptors in flight through sockets do not count against another sandbox",
    Isolation.CONTAINER,
    needs=[Capability.OWN_IDS],
    shared_kernel=True,
    unsafe=True,
)
async def descriptors_in_flight(scene: Scene) -> None:
    async with await scene.another() as neighbour:
        held = await scene.value_of("hold-flights", MANY_FLIGHTS)
        own = await scene.ask("take-flight", FEW_FLIGHTS)
        other = await scene.ask("take-flight", FEW_FLIGHTS, of=neighbour)
    if other.verdict is not Verdict.ALLOWED:
        raise Broken(f"another sandbox can send no descriptor after one has {held} in flight: {other}")
    if own.verdict is Verdict.ALLOWED:
        raise NotApplicable(f"{held} descriptors in flight do not exceed the limit of one user here")
    scene.note(f"the sandbox has {held} descriptors in flight and may send no more; another sandbox may")
