"""The moving line on a terminal that shows progress; without a terminal, only permanent lines are printed."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from dutyfree.formatting import display_width, duration, fitted, one_line, size

if TYPE_CHECKING:
    import asyncio

DRAW_S = 0.1
_CLEAR = "\r\x1b[K"
_BAR_COLUMNS = 24
_LEAST_BAR_COLUMNS = 6
_LEAST_TEXT_COLUMNS = 8
_DEFAULT_COLUMNS = 80


@dataclass(frozen=True, slots=True)
class Signs:
    """The characters that the line is drawn with."""

    spinner: str
    full: str
    empty: str


FINE = Signs("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "█", "░")
ASCII = Signs("|/-\\", "#", ".")


@dataclass(slots=True)
class State:
    """The progress to show."""

    title: str = ""
    activity: str = ""
    done_bytes: int | None = None
    total_bytes: int | None = None
    elapsed_s: float = 0.0
    frame: int = 0
    """Counts how often the line was drawn."""

    def begin(self, title: str, activity: str = "") -> None:
        """Start a new step."""
        self.title, self.activity = title, activity
        self.done_bytes = self.total_bytes = None

    def count(self, done_bytes: int, total_bytes: int | None) -> None:
        """Set how many bytes are done, and of how many."""
        self.done_bytes, self.total_bytes = done_bytes, total_bytes


def line(state: State, width: int, signs: Signs = FINE) -> str:
    """The state in at most `width` columns. Left out first: the activity, then the bar, then the bytes."""
    left = f"{signs.spinner[state.frame % len(signs.spinner)]} {one_line(state.title)}".rstrip()
    right = duration(state.elapsed_s)
    counted = _counted(state)
    if counted and display_width(f"{left}  {counted}  {right}") <= width:
        right = f"{counted}  {right}"
    room = width - display_width(f"{left}  {right}")
    if room < 0:
        return fitted(left, width)
    middle = _bar(state, room - 2, signs) + _text(state, room - 2)
    return f"{left}  {middle}  {right}" if middle else f"{left}  {right}"


def _counted(state: State) -> str:
    if state.done_bytes is None:
        return ""
    if not state.total_bytes:
        return size(state.done_bytes)
    done_bytes = min(state.done_bytes, state.total_bytes)
    return f"{100 * done_bytes // state.total_bytes}% of {size(state.total_bytes)}"


def _bar(state: State, room: int, signs: Signs) -> str:
    columns = min(_BAR_COLUMNS, room)
    if not state.total_bytes or state.done_bytes is None or columns < _LEAST_BAR_COLUMNS:
        return ""
    full = columns * min(state.done_bytes, state.total_bytes) // state.total_bytes
    return signs.full * full + signs.empty * (columns - full)


def _text(state: State, room: int) -> str:
    if (state.total_bytes and state.done_bytes is not None) or room < _LEAST_TEXT_COLUMNS:
        return ""
    return fitted(one_line(state.activity), room)


class Display:
    """Shows `state` on stderr while its `async with` block lasts, and then clears the line.

    Without a terminal, or with one that cannot clear a line, only `say` prints. `quiet` prints nothing at all.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.state = State()
        self.quiet = quiet
        self.is_live = not quiet and sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
        self._signs = FINE if (sys.stderr.encoding or "").lower().replace("-", "") == "utf8" else ASCII
        self._start_s = time.monotonic()
        self._shown = False
        self._ticking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        import asyncio

        if self.is_live:
            self._ticking = asyncio.get_running_loop().create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self._clear()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self._start_s

    def say(self, text: str) -> None:
        """Print a permanent line above the moving one."""
        if not self.quiet:
            self._clear()
            _write(f"{text}\n")

    async def _tick(self) -> None:
        import asyncio

        while True:
            self._draw()
            await asyncio.sleep(DRAW_S)

    def _draw(self) -> None:
        self.state.elapsed_s = self.elapsed_s
        self.state.frame += 1
        # The last column stays free: some terminals wrap when it is written.
        _write(_CLEAR + line(self.state, _columns() - 1, self._signs))
        self._shown = True

    def _clear(self) -> None:
        if self._shown:
            _write(_CLEAR)
            self._shown = False


def _columns() -> int:
    with contextlib.suppress(OSError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or _DEFAULT_COLUMNS
    return _DEFAULT_COLUMNS


def _write(text: str) -> None:
    # A command must not fail because its progress cannot be shown.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
