"""What the formats are read into: the commands that went to a shell, with what was recorded about each.

A recording is hostile input: its sizes are bounded, nothing in it is believed before its type was looked at, and
nothing of it is run here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dutyfree.errors import InvalidRequest
from dutyfree.measure.workloads.actions import MAX_THINK_S
from dutyfree.measure.workloads.replay.kinds import kind_of
from dutyfree.measure.workloads.workload import Expectation, ScriptedAction
from dutyfree.model import Action, Command

MAX_STEPS: Final = 10_000
MAX_COMMAND_BYTES: Final = 128 * 1024 - 1
"""What the kernel takes as one argument of a program."""
_MAX_EXIT_CODE: Final = 255
_TOLD: Final = re.compile(r"\s*<returncode>(-?\d{1,10})</returncode>")
_WORD: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Step:
    """One command as it was recorded."""

    line: str
    exit_code: int | None = None
    """`None` where it was not recorded."""
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    think_s: float = 0.0


@dataclass(slots=True)
class Recording:
    """The steps of a recording, and how many were left out, by reason."""

    steps: list[Step] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def add(self, step: Step, *, ended: bool = True) -> None:
        """Take a step, unless no shell could run it again. Raises InvalidRequest past MAX_STEPS."""
        if len(self.steps) >= MAX_STEPS:
            raise InvalidRequest(f"a recording of more than {MAX_STEPS} commands is not taken")
        if not step.line.strip():
            self.leave_out("empty")
        elif not _can_be_given(step.line) or len(step.line.encode()) > MAX_COMMAND_BYTES:
            self.leave_out("more than a shell can be given")
        elif not ended or (step.exit_code is not None and not 0 <= step.exit_code <= _MAX_EXIT_CODE):
            self.leave_out("did not end by themselves")
        else:
            self.steps.append(step)

    def leave_out(self, reason: str) -> None:
        """Count a step that is not taken."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def title(self, format_name: str) -> str:
        """The recording in a few words, with what is missing from it."""
        missing = ", ".join(f"{count} {reason}" for reason, count in self.left_out.items())
        return f"{len(self.steps)} commands recorded by {format_name}" + (f"; left out: {missing}" if missing else "")


def scripted(number: int, step: Step) -> ScriptedAction:
    """The action that repeats a step. Agents have bash, and so it is bash that runs it."""
    return ScriptedAction(
        name=f"{number:03d}-{word_of(step.line)}",
        kind=kind_of(step.line),
        action=Action(("bash", "-c", step.line), cwd=step.cwd, env=step.env),
        expect=Expectation(exit_code=step.exit_code),
        think_s=min(max(step.think_s, 0.0), MAX_THINK_S),
    )


def word_of(command: Command) -> str:
    """A word that describes the command: its program's name."""
    if not isinstance(command, str):
        return word_of(command[0])
    # "cd /repo && ..." is how most lines of agents begin, and says nothing.
    words = _WORD.findall(re.sub(r"^\s*cd\s+\S+\s*(&&|;)\s*", "", command))
    return str(words[0].rsplit("/", 1)[-1][:40]) if words else "line"


def text_of(value: Any) -> str:
    """The text, or an empty one if it is none."""
    return value if isinstance(value, str) else ""


def table_of(value: Any) -> dict[str, Any]:
    """The table, or an empty one if it is none."""
    return value if isinstance(value, dict) else {}


def tables_of(value: Any) -> list[dict[str, Any]]:
    """Those entries of a list that are tables; none if it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def code_of(value: Any) -> int | None:
    """The exit code, or None if it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def written_code_of(content: str) -> int | None:
    """The exit code at the beginning of an observation, as mini-swe-agent writes it; None if there is none."""
    found = _TOLD.match(content)
    return int(found[1]) if found else None


def seconds_of(value: Any) -> float | None:
    """A point in time, in seconds; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return float(value)


def directory_of(value: Any) -> str | None:
    """An absolute path, or None if it is none."""
    return value if isinstance(value, str) and value.startswith("/") and _can_be_given(value) else None


def environment_of(value: Any) -> dict[str, str]:
    """Those entries of a table that can stand in an environment."""
    entries = table_of(value).items()
    return {
        name: text
        for name, text in entries
        if isinstance(text, str) and name and "=" not in name and _can_be_given(name + text)
    }


def _can_be_given(text: str) -> bool:
    """Whether a process can be given it at all: JSON has NUL characters, and halves of characters, too."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
