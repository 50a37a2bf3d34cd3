"""What a build tells of itself while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class EventKind(StrEnum):
    """What has happened."""

    STARTED = "started"
    """A stage is being built, by us."""
    CACHED = "cached"
    """A stage was built before."""
    WAITING = "waiting"
    """Another builder is at the same stage."""
    LINE = "line"
    """A line of the stage, in `text`, starts to run; or what is done before and after the lines, in words."""
    LOG = "log"
    """Output of the line, in `text`: pieces as they come, not whole lines."""
    BYTES = "bytes"
    """`done` bytes of what the last LINE says are dealt with, of `total` where that is known."""
    DONE = "done"
    """The stage was built, in `seconds`."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened at one stage."""

    kind: EventKind
    stage: str
    text: str = ""
    done: int | None = None
    """The bytes of BYTES; otherwise the number of the stage, the base's being 0."""
    total: int | None = None
    """How many that will be; otherwise the number of the last stage."""
    seconds: float | None = None


Progress = Callable[[Event], None]
"""Told of each event, in order and in the event loop's own thread. It must neither wait nor raise."""


def ignore(event: Event) -> None:
    """For those who do not want to know."""


class Teller:
    """Tells of one stage."""

    def __init__(self, on_progress: Progress, stage: str, number: int, last: int) -> None:
        self._on_progress = on_progress
        self._stage = stage
        self._number = number
        self._last = last

    def __call__(self, kind: EventKind, text: str = "", seconds: float | None = None) -> None:
        self._on_progress(Event(kind, self._stage, text, self._number, self._last, seconds))

    def bytes(self, done: int, total: int | None = None) -> None:
        """So many bytes are dealt with."""
        self._on_progress(Event(EventKind.BYTES, self._stage, "", done, total))
