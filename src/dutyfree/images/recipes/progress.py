"""Progress events of a build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class EventKind(StrEnum):
    """The kind of an event."""

    STARTED = "started"
    """This build starts a stage."""
    CACHED = "cached"
    """The store already has the stage."""
    WAITING = "waiting"
    """This build waits for another builder of the same stage."""
    LINE = "line"
    """A line of the stage starts to run, or a step before or after the lines; `text` is the line or names the step."""
    LOG = "log"
    """Output of the line, in `text`: chunks as they arrive, not whole lines."""
    BYTES = "bytes"
    """The step of the last LINE has processed `done` bytes, of `total` if that is known."""
    DONE = "done"
    """The stage was built and took `seconds`."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of one stage."""

    kind: EventKind
    stage: str
    text: str = ""
    done: int | None = None
    """For BYTES the number of bytes; otherwise the number of the stage, where the base is 0."""
    total: int | None = None
    """For BYTES the expected number of bytes; otherwise the number of the last stage."""
    seconds: float | None = None


Progress = Callable[[Event], None]
"""Gets each event, in order, in the event loop's thread. It must neither block nor raise."""


def ignore(event: Event) -> None:
    """Discard the event: for callers that want no progress."""


class StageProgress:
    """Reports the events of one stage to a `Progress` callback."""

    def __init__(self, on_progress: Progress, stage: str, number: int, last: int) -> None:
        self._on_progress = on_progress
        self._stage = stage
        self._number = number
        self._last = last

    def __call__(self, kind: EventKind, text: str = "", seconds: float | None = None) -> None:
        self._on_progress(Event(kind, self._stage, text, self._number, self._last, seconds))

    def bytes(self, done: int, total: int | None = None) -> None:
        """Report that `done` bytes are processed."""
        self._on_progress(Event(EventKind.BYTES, self._stage, "", done, total))
