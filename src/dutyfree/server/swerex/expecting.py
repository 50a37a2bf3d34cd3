"""What interactive programs are expected to print: regular expressions of clients, bounded in what they can cost. Pure.

Python's `re` takes exponential time for some patterns, and a gateway must not be stopped by one. Prompts need no
repetition: without it, and with few alternatives, a search takes time in proportion to the text.
"""

from __future__ import annotations

import re
from typing import Final

MAX_PATTERN_CHARACTERS: Final = 512
"""Of all patterns of a request together."""
MAX_ALTERNATIVES: Final = 4
"""Of all patterns of a request together: each doubles the time of the worst case."""
LONGEST_MATCH: Final = 2 * MAX_PATTERN_CHARACTERS
_OUTSIDE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """The patterns, ready for a search. Raises ValueError for one that is invalid, and for what could take long."""
    size, most = sum(map(len, patterns)), MAX_PATTERN_CHARACTERS
    if size > most:
        raise ValueError(f"the expected texts have {size} characters; at most {most} are taken")
    if sum(_plain(pattern).count("|") for pattern in patterns) > MAX_ALTERNATIVES:
        raise ValueError(f"the expected texts have more than {MAX_ALTERNATIVES} alternatives")
    return tuple(_compiled(pattern) for pattern in patterns)


def _plain(pattern: str) -> str:
    """The pattern without escapes and sets of characters."""
    return _OUTSIDE.sub("", pattern)


def _compiled(pattern: str) -> re.Pattern[str]:
    if any(sign in _plain(pattern) for sign in "*+?{"):
        raise ValueError(f"the expected text {pattern!r} repeats something (* + ? {{}}), which is not supported here")
    try:
        return re.compile(pattern, re.DOTALL)
    except (re.error, RecursionError) as error:
        raise ValueError(f"the expected text {pattern!r} is no regular expression: {error}") from None


def first(patterns: tuple[re.Pattern[str], ...], text: str, start: int = 0) -> tuple[int, re.Match[str]] | None:
    """The match that begins first at or after `start`, with the number of its pattern; the first pattern wins a tie."""
    found = [(number, match) for number, pattern in enumerate(patterns) if (match := pattern.search(text, start))]
    return min(found, key=lambda each: each[1].start(), default=None)
