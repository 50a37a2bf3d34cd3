"""How a command ends: its exit code, and how it reports an error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from dutyfree.errors import CallerError, DutyfreeError
from dutyfree.formatting import plain

if TYPE_CHECKING:
    from dutyfree.model import Observation, Unenforced


class ExitCode(IntEnum):
    """The codes that are Dutyfree's own; a command's code that is passed on can be any other."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    INFRASTRUCTURE = 3
    TIMED_OUT = 124
    SIGNALLED = 128
    """Plus the signal's number."""
    INTERRUPTED = 130
    BROKEN_PIPE = 141


def exit_code_of(seen: Observation) -> int:
    """The exit code for how the command ended."""
    if seen.timed_out:
        return ExitCode.TIMED_OUT
    if seen.exit_code is not None:
        return seen.exit_code
    return ExitCode.SIGNALLED + (seen.signal or 0)


def describe_unenforced(unenforced: Sequence[Unenforced]) -> str:
    """What is not enforced, in one line; each reason is named once, after all bounds that it applies to."""
    reasons: dict[str, list[str]] = {}
    for each in unenforced:
        reasons.setdefault(each.reason, []).append(each.what)
    return "; ".join(f"{', '.join(what)} ({reason})" for reason, what in reasons.items())


def report_error(error: DutyfreeError, *, as_json: bool = False) -> int:
    """Print the error and its hint, and return the exit code for it.

    Messages may quote anything; control characters are removed before a terminal sees them.
    """
    if as_json:
        from dutyfree.codec import ERROR, dumps

        print(dumps({"error": ERROR.encode(error)}))
    else:
        print(f"error: {plain(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"hint: {plain(error.hint)}", file=sys.stderr)
    return ExitCode.USAGE if isinstance(error, CallerError) else ExitCode.INFRASTRUCTURE
