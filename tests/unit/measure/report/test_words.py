"""Numbers and names as readers see them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree import formatting
from dutyfree.measure.report import words
from dutyfree.measure.stats.estimate import Estimate


@pytest.mark.parametrize(
    ("value_ms", "text"),
    [
        (0.018234, "0.0182 ms"),
        (0.9996, "1.00 ms"),
        (12.345, "12.3 ms"),
        (99.96, "100 ms"),
        (999.4, "999 ms"),
        (999.6, "1.00 s"),
        (42_500, "42.5 s"),
        (1_234_567, "1,235 s"),
        (0, "0 ms"),
        (-3.21, "-3.21 ms"),
    ],
)
def test_durations(value_ms: float, text: str) -> None:
    assert words.duration(value_ms) == text


@given(st.floats(min_value=1e-6, max_value=1e9))
def test_a_number_is_within_its_rounding(value: float) -> None:
    text = formatting.number(value)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.0051)
    assert len(re.sub(r"[.,]", "", text).lstrip("0")) == 3 or value >= 999.5


def test_intervals_are_in_the_unit_of_their_value() -> None:
    assert words.estimate_of(Estimate(1230, 990, 1410, 20, "ms")) == "1.23 s (0.990\u20131.41)"
    assert words.estimate_of(Estimate(12.3, None, 13, 20, "ms")) == "12.3 ms (?\u201313.0)"
    assert words.estimate_of(Estimate(12.3, None, None, 2, "ms")) == "12.3 ms"
    assert words.estimate_of(Estimate(0.05, 0.01, 0.15, 20, "share")) == "5.0 % (1.00\u201315.0)"
    assert words.estimate_of(Estimate(-0.05, -0.1, 0.15, 20, "share")) == "-5.0 % (-10.0 to 15.0)"
    assert words.estimate_of(Estimate(1.84, 1.7, 2, 20, "x")) == "1.84\u00d7 (1.70\u20132.00)"
    assert words.estimate_of(Estimate(32.4, 3.8, None, 20, "actions")) == "32 actions (4\u2013?)"
    assert words.estimate_of(Estimate(11_811.2, None, None, 20, "h")) == "11,811 h"
    assert words.part_of(Estimate(0.011, 0.009, 0.02, 20, "x")) == "1.1 % (0.900\u20132.00)"


@given(st.text(), st.integers(min_value=2, max_value=60))
def test_a_name_is_one_line_of_printable_text(text: str, most: int) -> None:
    told = words.name(text, most)
    assert told
    assert told.isprintable()
    assert len(told) <= max(most, len("(no name)"))
    assert told == told.strip()


def test_names() -> None:
    assert words.name("\x1b[31mred\x1b]0;title\x07 \n\t cell\x00") == "red cell"
    assert words.name(" \u202e ") == "(no name)"
    assert words.name("a" * 30, 8) == "aaaaaaa…"
    assert words.listed(["a", "b", "c"]) == "a, b and c"
    assert formatting.count(1, "trial") == "1 trial"
    assert formatting.count(2000, "trial") == "2,000 trials"
