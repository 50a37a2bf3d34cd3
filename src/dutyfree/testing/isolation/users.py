"""Users: what the kernel counts for each of them, one sandbox cannot use up for another."""

from __future__ import annotations

from dutyfree.contract import Sandbox
from dutyfree.model import Action, Capability, Isolation
from dutyfree.testing.isolation.probe import Broken, NotApplicable, Scene, Topic
from dutyfree.testing.isolation.program import Verdict

USERS = Topic("users")
MANY_PIPES = "128"
"""Of 1 MiB each, half of these are what the kernel gives one user before new pipes get smaller."""
MANY_FLIGHTS = "2000"
FEW_FLIGHTS = "500"


@USERS.probe(
    "ids",
    "no two sandboxes have a user id of the kernel's in common",
    Isolation.CONTAINER,
    needs=[Capability.OWN_IDS],
    shared_kernel=True,
)
async def ids(scene: Scene) -> None:
    async with await scene.another() as neighbour:
        first, second = [await _ranges(each) for each in (scene.sandbox, neighbour)]
    common = [(one, other) for one in first for other in second if one.start < other.stop and other.start < one.stop]
    if common:
        raise Broken(f"both have ids of {common[0]}")
    scene.note(f"{first} and {second}")


async def _ranges(sandbox: Sandbox) -> list[range]:
    seen = await sandbox.run(Action(["cat", "/proc/self/uid_map"]))
    lines = [[int(word) for word in line.split()] for line in seen.text.splitlines()]
    return [range(outside, outside + count) for _inside, outside, count in lines]


@USERS.probe(
    "pipes",
    "pages of pipes that a sandbox uses up are not missing in another",
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
        raise Broken(f"another sandbox's pipes shrank from {before} to {after} bytes after one took {held}")
    if own == before:
        raise NotApplicable(f"{held} large pipes are not yet too many for one user here")
    scene.note(f"the sandbox took {held}: its own pipes shrank to {own} bytes, another's are {after}")


@USERS.probe(
    "descriptors-in-flight",
    "descriptors that a sandbox has on their way through sockets are not counted against another",
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
        raise Broken(f"another sandbox can send none after one has {held} in flight: {other}")
    if own.verdict is Verdict.ALLOWED:
        raise NotApplicable(f"{held} in flight are not yet too many for one user here")
    scene.note(f"the sandbox has {held} in flight and may send no more; another may")
