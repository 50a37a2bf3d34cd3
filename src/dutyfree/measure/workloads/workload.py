"""A workload as a value: the stages that prepare a sandbox, the actions, and the expected observations."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from dutyfree.errors import InvalidRequest
from dutyfree.model import Action, Observation, Stage

_MOST_STDERR: Final = 4096
_LONGEST_COMPLAINT: Final = 120


class ActionKind(StrEnum):
    """The purpose of an action; the report shows the tax of each kind."""

    INSPECT = "inspect"
    COMMAND = "command"
    EDIT = "edit"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Expectation:
    """What an observation must look like for its trial to count. Fields that are not given are not checked."""

    exit_code: int | None = 0
    """`None`: any exit code, if the action ended by itself."""
    contains: tuple[str, ...] = ()
    """Each of them is in the standard output."""
    sha256: str = ""
    """Of the whole standard output."""

    def mismatch(self, seen: Observation) -> str:
        """Why `seen` is not what was expected; empty if it is."""
        for happened, words in (
            (seen.timed_out, "it timed out"),
            (seen.oom_killed, "it ran out of memory"),
            (seen.truncated and bool(self.contains or self.sha256), "its output was cut off"),
            (seen.signal is not None, f"signal {seen.signal} ended it"),
        ):
            if happened:
                return words
        if self.exit_code is not None and seen.exit_code != self.exit_code:
            return f"exit code {seen.exit_code}, not {self.exit_code}{_complaint(seen.stderr)}"
        for text in self.contains:
            if text.encode() not in seen.stdout:
                return f"its output lacks {text!r}"
        if self.sha256 and hashlib.sha256(seen.stdout).hexdigest() != self.sha256:
            return f"its output is not the one with SHA-256 {self.sha256[:12]}..."
        return ""


def _complaint(stderr: bytes) -> str:
    """The last line of stderr, to help find the cause; it may hold anything."""
    lines = [" ".join(line.split()) for line in stderr[-_MOST_STDERR:].decode(errors="replace").splitlines()]
    last = next((line for line in reversed(lines) if line), "")
    return f": {last[:_LONGEST_COMPLAINT]}" if last.isprintable() and last else ""


@dataclass(frozen=True, slots=True)
class ScriptedAction:
    """One action of a workload, and the expected observation."""

    name: str
    kind: ActionKind
    action: Action
    expect: Expectation = Expectation()
    weight: float = 1.0
    """The relative frequency among actions of its kind."""
    think_s: float = 0.0
    """In a recording: how long the agent thought before this action. A study decides whether the time is kept."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`stages` make a sandbox ready, by the ladder of recipes; then come actions: `opening` in order, then from `menu`.

    A trajectory longer than the opening draws the rest from the menu: first a kind by `mix`, then one of its actions by
    weight. So the menu's actions must give what they promise in any order, any number of times, after the opening. A
    workload without a menu is done when its opening is.
    """

    name: str
    title: str = ""
    stages: tuple[Stage, ...] = ()
    opening: tuple[ScriptedAction, ...] = ()
    menu: tuple[ScriptedAction, ...] = ()
    mix: Mapping[ActionKind, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.opening and not self.menu:
            raise InvalidRequest(f"workload {self.name!r} has no action")
        offered = {each.kind for each in self.menu}
        if set(self.mix) != offered:
            raise InvalidRequest(f"workload {self.name!r}: its mix must name the kinds of its menu, {sorted(offered)}")
        if any(not share > 0 for share in self.mix.values()) or any(not each.weight > 0 for each in self.menu):
            raise InvalidRequest(f"workload {self.name!r}: shares and weights must be positive")
