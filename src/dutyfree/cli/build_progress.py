"""The progress of a build, on stderr."""

from __future__ import annotations

from dutyfree.cli.progress_bar import Display
from dutyfree.formatting import duration, last_lines, one_line
from dutyfree.images.recipes.progress import Event, EventKind

_SAID_CHARACTERS = 160
MAX_LOG_LINE_CHARACTERS = 64 * 1024


class BuildProgress:
    """Shows the events of a build: permanent lines, and the moving line of `display`.

    `verbose` passes on what the stages print. Without `show_cached`, stages that were built before are not mentioned.
    """

    def __init__(self, display: Display, *, verbose: bool = False, show_cached: bool = True) -> None:
        self._display = display
        self._verbose = verbose
        self._show_cached = show_cached
        self._unfinished_line = ""

    def __call__(self, event: Event) -> None:
        """Show one event."""
        title = f"[{event.done}/{event.total}] {event.stage}"
        match event.kind:
            case EventKind.STARTED:
                self._begin(title, "")
            case EventKind.CACHED:
                self._begin(title, "")
                if self._show_cached:
                    self._display.say(f"{title}: cached")
            case EventKind.WAITING:
                self._begin(title, "waits for another builder")
                self._display.say(f"{title}: waits for another builder of the same stage")
            case EventKind.LINE:
                self._begin(title, event.text)
                self._say_line(title, event.text)
            case EventKind.BYTES:
                self._display.state.count(event.done or 0, event.total)
            case EventKind.LOG:
                self._log(event.text)
            case EventKind.DONE:
                self._finish_line()
                self._display.say(f"{title}: built in {duration(event.seconds or 0.0)}")

    def _begin(self, title: str, activity: str) -> None:
        self._finish_line()
        self._display.state.begin(title, activity)

    def _say_line(self, title: str, text: str) -> None:
        """Print the line that runs, unless the moving line shows it."""
        if self._verbose or not self._display.is_live:
            shown = one_line(text)
            cut = shown if len(shown) <= _SAID_CHARACTERS else shown[:_SAID_CHARACTERS] + "..."
            self._display.say(f"{title}: {cut}")

    def _log(self, text: str) -> None:
        """Pass on whole lines. The unfinished rest waits for its end, up to a limit."""
        if not self._verbose:
            return
        *lines, self._unfinished_line = (self._unfinished_line + text).split("\n")
        for each in lines:
            self._say_log(each)
        if len(self._unfinished_line) > MAX_LOG_LINE_CHARACTERS:
            self._finish_line()

    def _finish_line(self) -> None:
        if self._unfinished_line:
            self._say_log(self._unfinished_line)
            self._unfinished_line = ""

    def _say_log(self, text: str) -> None:
        self._display.say(f"  {''.join(last_lines(text, 1))}".rstrip())

    def end(self) -> None:
        """Print what is left, after the build has succeeded or failed."""
        self._finish_line()
