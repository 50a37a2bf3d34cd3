"""The recorder keeps spans within its bound, and timing a block tells the listener once."""

import pytest

from dutyfree.errors import InvalidRequest
from dutyfree.model import Phase, Span
from dutyfree.trace import SpanRecorder, now_ns, timed


def test_a_timed_block_becomes_one_span() -> None:
    recorder = SpanRecorder()
    before = now_ns()
    with timed(recorder, Phase.CREATE, "spawn", "box-1"):
        assert recorder.spans == ()
    (span,) = recorder.spans
    assert (span.phase, span.name, span.sandbox) == (Phase.CREATE, "spawn", "box-1")
    assert before <= span.start_ns <= span.end_ns <= now_ns()


def test_the_time_of_a_block_that_raises_is_told_too() -> None:
    recorder = SpanRecorder()
    with pytest.raises(KeyError), timed(recorder, Phase.DESTROY):
        raise KeyError
    assert [span.phase for span in recorder.spans] == [Phase.DESTROY]


def test_without_a_listener_no_object_is_made() -> None:
    assert timed(None, Phase.CREATE) is timed(None, Phase.READY)
    with timed(None, Phase.CREATE), timed(None, Phase.READY):
        pass


def test_inner_spans_are_reported_before_the_outer() -> None:
    recorder = SpanRecorder()
    with timed(recorder, Phase.CREATE, "outer"), timed(recorder, Phase.CREATE, "inner"):
        pass
    assert [span.name for span in recorder.spans] == ["inner", "outer"]


def test_the_recorder_is_bounded_and_says_what_it_dropped() -> None:
    recorder = SpanRecorder(limit=2)
    for start_ns in range(5):
        recorder(Span(Phase.EXECUTE, start_ns, start_ns + 1))
    assert [span.start_ns for span in recorder.spans] == [0, 1]
    assert recorder.dropped == 3
    assert len(recorder.take()) == 2
    assert (recorder.spans, recorder.dropped) == ((), 0)


def test_a_recorder_that_can_keep_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        SpanRecorder(limit=0)
