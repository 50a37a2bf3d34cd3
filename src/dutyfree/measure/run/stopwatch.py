"""The clock of one trial, and the spans that were measured on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dutyfree.errors import SubstrateFailed
from dutyfree.model import Phase, Span
from dutyfree.trace import now_ns

MAX_REPORTED: Final = 1000
"""The most spans that a substrate may report for one call; more are taken as an error of the substrate."""
MAX_NAME: Final = 100
"""The longest name of a span. With both limits, everything about a trial fits into one journal record."""


class Stopwatch:
    """A clock that can be stopped. It starts stopped, at zero.

    A phase lasts, on this clock, as long as the call that the trial makes for it. Spans that the substrate reports for
    the inside of that call refine it (readiness within creation); impossible spans are refused.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._zero_ns = self._stopped_ns = now_ns()
        """The machine's clock at zero; and since when this clock is stopped, 0 if it is running."""
        self._reported: list[Span] | None = None

    def go(self) -> None:
        """Start, or continue after `stop`."""
        if self._stopped_ns:
            self._zero_ns += now_ns() - self._stopped_ns
            self._stopped_ns = 0

    def stop(self) -> None:
        """Stop. No phase may be open."""
        if not self._stopped_ns:
            self._stopped_ns = now_ns()

    def now_ns(self) -> int:
        """The time on this clock."""
        return (self._stopped_ns or now_ns()) - self._zero_ns

    def on_span(self, span: Span) -> None:
        """The span listener for a substrate. It keeps spans during a `phase` that has `reported` phases."""
        if self._reported is not None and len(self._reported) <= MAX_REPORTED:
            self._reported.append(span)

    @contextmanager
    def phase(self, phase: Phase, *, reported: tuple[Phase, ...] = ()) -> Iterator[None]:
        """Time the `with` block as this phase, except for spans of `reported` phases that the substrate reports.

        Raises SubstrateFailed if the substrate reports an impossible span.
        """
        begin_ns = self.now_ns()
        self._reported = [] if reported else None
        try:
            yield
        finally:
            end_ns = self.now_ns()
            received, self._reported = self._reported or [], None
            self.spans.append(Span(phase, begin_ns, end_ns))
        if len(received) > MAX_REPORTED:
            raise SubstrateFailed(f"the substrate reports more than {MAX_REPORTED} spans for one call")
        self.spans += [self._checked(span, begin_ns, end_ns, reported) for span in received]

    def _checked(self, span: Span, begin_ns: int, end_ns: int, reported: tuple[Phase, ...]) -> Span:
        try:
            own = Span(Phase(span.phase), span.start_ns - self._zero_ns, span.end_ns - self._zero_ns, "", span.name)
            is_inside = begin_ns <= own.start_ns <= own.end_ns <= end_ns
            if own.phase in reported and is_inside and len(own.name) <= MAX_NAME and isinstance(own.name, str):
                return own
        except (AttributeError, TypeError, ValueError):
            pass
        raise SubstrateFailed(f"the substrate reports an impossible span: {span!r:.200}")
