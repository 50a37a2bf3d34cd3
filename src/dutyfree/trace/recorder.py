"""Recording spans: a timer for a block of code, and a bounded list of spans."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from dutyfree.contract import SpanListener
from dutyfree.errors import InvalidRequest
from dutyfree.model import Phase, Span
from dutyfree.trace.clock import now_ns

DEFAULT_SPAN_LIMIT = 100_000

_UNTIMED: AbstractContextManager[None] = nullcontext()


class SpanRecorder:
    """A span listener that keeps the first `limit` spans, in the order in which they ended, and counts the rest."""

    def __init__(self, limit: int = DEFAULT_SPAN_LIMIT) -> None:
        if limit < 1:
            raise InvalidRequest(f"a recorder's limit is {limit}; it must be at least 1")
        self._limit = limit
        self._spans: list[Span] = []
        self._dropped = 0

    def __call__(self, span: Span) -> None:
        """Keep `span`, or count it as dropped when the recorder is full."""
        if len(self._spans) < self._limit:
            self._spans.append(span)
        else:
            self._dropped += 1

    @property
    def spans(self) -> tuple[Span, ...]:
        """What was kept."""
        return tuple(self._spans)

    @property
    def dropped(self) -> int:
        """How many spans did not fit; a ledger made from the rest shows their time elsewhere."""
        return self._dropped

    def take(self) -> tuple[Span, ...]:
        """What was kept, leaving the recorder empty and `dropped` at zero."""
        taken = self.spans
        self._spans.clear()
        self._dropped = 0
        return taken


def timed(
    on_span: SpanListener | None, phase: Phase, name: str = "", sandbox: str = ""
) -> AbstractContextManager[None]:
    """Time a block and report it to `on_span`, also when the block raises. Costs one comparison when it is None."""
    return _UNTIMED if on_span is None else _Timed(on_span, phase, name, sandbox)


class _Timed:
    __slots__ = ("_name", "_on_span", "_phase", "_sandbox", "_start_ns")

    def __init__(self, on_span: SpanListener, phase: Phase, name: str, sandbox: str) -> None:
        self._on_span = on_span
        self._phase = phase
        self._name = name
        self._sandbox = sandbox
        self._start_ns = 0

    def __enter__(self) -> None:
        self._start_ns = now_ns()

    def __exit__(self, *_: object) -> None:
        self._on_span(Span(self._phase, self._start_ns, now_ns(), self._sandbox, self._name))
