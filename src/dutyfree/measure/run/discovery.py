"""Finds the substrates that can be measured on this machine without setup, by trying each, in bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dutyfree.errors import DutyfreeError
from dutyfree.measure.design.file import arm_from_words
from dutyfree.measure.design.study import DEFAULT_RESOURCES, Arm
from dutyfree.measure.run.arms import open_arm
from dutyfree.model import Action, SandboxSpec
from dutyfree.substrates import registry

ALWAYS: Final = ("process", "cell")
PATHS: Final = {"docker": ("docker", "docker:path=exec")}
"""Substrates with two paths for actions that are both worth measuring."""
_NOT_MEASURED: Final = ("fake", "server", "hosted")
"""`server` has to be named, with its address; `hosted` is another machine, which may cost money."""
PROBE_S: Final = 10.0
_TOOLS: Final = "git --version && python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'"


@dataclass(slots=True)
class Found:
    """The arms that can be measured."""

    arms: list[Arm] = field(default_factory=list)
    able: list[str] = field(default_factory=list)
    """The names of the arms whose sandboxes have git and Python."""


async def find_arms(on_skipped: Callable[[str, str], None]) -> Found:
    """`process` and `cell`, and every engine that can run a command now, without naming an image.

    `on_skipped` is called with the name of each substrate that does not work, and the reason.
    """
    others = [name for name in registry.names() if name not in (*ALWAYS, *_NOT_MEASURED)]
    words = [*ALWAYS, *(word for name in others for word in PATHS.get(name, (name,)))]
    arms = [arm_from_words(word) for word in words]
    # All at once, because each may need the whole time to fail; nothing is being measured yet.
    answers = await asyncio.gather(*(_probe(arm) for arm in arms))
    found = Found()
    for arm, (works, has_tools, problem) in zip(arms, answers, strict=True):
        if works or arm.substrate in ALWAYS:
            found.arms.append(arm)
            found.able += [arm.name] if has_tools else []
        if not works:
            on_skipped(arm.name, problem)
    return found


async def _probe(arm: Arm) -> tuple[bool, bool, str]:
    """Whether a sandbox of the arm runs a command, whether it has the tools, and the problem if it does not run."""
    task = asyncio.get_running_loop().create_task(_try(arm))
    done, _ = await asyncio.wait({task}, timeout=PROBE_S)
    if not done:
        task.cancel()
        await asyncio.wait({task}, timeout=PROBE_S)
        return False, False, f"it did not run a command within {PROBE_S:g} s"
    try:
        return True, task.result(), ""
    except DutyfreeError as error:
        return False, False, error.message
    except Exception as error:
        return False, False, f"{type(error).__name__}: {error}"


async def _try(arm: Arm) -> bool:
    opened = await open_arm(arm, timeout_s=PROBE_S, destroy_timeout_s=PROBE_S)
    try:
        sandbox = await opened.substrate.create(SandboxSpec(resources=DEFAULT_RESOURCES, image=opened.image))
        async with sandbox:
            return (await sandbox.run(Action(_TOOLS, timeout_s=PROBE_S))).ok
    finally:
        await opened.close()
