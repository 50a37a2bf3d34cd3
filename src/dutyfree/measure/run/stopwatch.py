"""One trial's own clock, and the spans that were measured on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dutyfree.errors import SubstrateFailed
from dutyfree.model import Phase, Span
from dutyfree.trace import now_ns

MAX_HEARD: Final = 1000
"""Spans that a substrate may tell of one call; one that tells more does not tell the truth."""
MAX_NAME: Final = 100
"""Characters of a span's name. With both bounds, all that is told of a trial goes into one record of a journal."""


class Stopwatch:
    """Counts while it is not stopped; it is made stopped, at zero.

    A phase lasts as long as the call that the trial makes for it, by this clock. What a substrate tells of the inside
    of that call refines it (readiness within creation), and is not believed if it cannot be true.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._zero_ns = self._stopped_ns = now_ns()
        """Where zero is on the machine's clock; and since when this one stands still, or 0."""
        self._heard: list[Span] | None = None

    def go(self) -> None:
        """From now on it counts."""
        if self._stopped_ns:
            self._zero_ns += now_ns() - self._stopped_ns
            self._stopped_ns = 0

    def stop(self) -> None:
        """From now on it does not count; nothing that is timed may be under way."""
        if not self._stopped_ns:
            self._stopped_ns = now_ns()

    def now_ns(self) -> int:
        """What it has counted."""
        return (self._stopped_ns or now_ns()) - self._zero_ns

    def hear(self, span: Span) -> None:
        """The listener to give to a substrate; it hears what is told during a `phase` in which it is to listen."""
        if self._heard is not None and len(self._heard) <= MAX_HEARD:
            self._heard.append(span)

    @contextmanager
    def phase(self, phase: Phase, *, told: tuple[Phase, ...] = ()) -> Iterator[None]:
        """The block is this phase, but for the `told` ones that the substrate tells of within it.

        Raises SubstrateFailed if what the substrate tells cannot be true.
        """
        begin_ns = self.now_ns()
        self._heard = [] if told else None
        try:
            yield
        finally:
            end_ns = self.now_ns()
            heard, self._heard = self._heard or [], None
            self.spans.append(Span(phase, begin_ns, end_ns))
        if len(heard) > MAX_HEARD:
            raise SubstrateFailed(f"the substrate tells of more than {MAX_HEARD} spans of one call")
        self.spans += [self._believed(span, begin_ns, end_ns, told) for span in heard]

    def _believed(self, span: Span, begin_ns: int, end_ns: int, told: tuple[Phase, ...]) -> Span:
        try:
            own = Span(Phase(span.phase), span.start_ns - self._zero_ns, span.end_ns - self._zero_ns, "", span.name)
            is_inside = begin_ns <= own.start_ns <= own.end_ns <= end_ns
            if own.phase in told and is_inside and len(own.name) <= MAX_NAME and isinstance(own.name, str):
                return own
        except (AttributeError, TypeError, ValueError):
            pass
        raise SubstrateFailed(f"the substrate tells of a span that cannot be: {span!r:.200}")
