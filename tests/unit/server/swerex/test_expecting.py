"""The expected texts of clients are regular expressions that cannot stop a gateway."""

from __future__ import annotations

import time

import pytest

from dutyfree.server.swerex import expecting


def test_the_first_match_in_the_text_wins() -> None:
    patterns = expecting.compiled((r"\(gdb\) ", ">>> ", "[+*?]x"))
    assert expecting.first(patterns, "nothing") is None
    found = expecting.first(patterns, "a >>> (gdb) ")
    assert found is not None
    assert (found[0], found[1].start()) == (1, 2)
    starred = expecting.first(patterns, "*x")
    assert starred is not None
    assert starred[0] == 2


@pytest.mark.parametrize("pattern", ["(a+)+b", "a*", "a?", "a{2}", "(?:a)", "(", "x" * 513, "|".join("a" * 6), r"[]*"])
def test_patterns_that_could_take_long_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="expected text"):
        expecting.compiled((pattern,))


def test_the_worst_patterns_that_are_taken_are_quick() -> None:
    for worst in (("(a|a)" * 4 + "x",), ("(.|.)" * 4 + "\n",), ("." * 511 + "\n",), ("a" * 511 + "x",)):
        start_s = time.process_time()
        assert expecting.first(expecting.compiled(worst), "a" * 65536) is None
        assert time.process_time() - start_s < 2
