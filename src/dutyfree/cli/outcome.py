"""How a command ends: its exit code, and how it reports an error."""

from __future__ import annotations

import sys
from enum import IntEnum

from dutyfree.errors import CallerError, DutyfreeError
from dutyfree.formatting import plain


class ExitCode(IntEnum):
    """The codes that are Dutyfree's own; a command's code that is passed on can be any other."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    INFRASTRUCTURE = 3
    SIGNALLED = 128
    """Plus the signal's number."""
    INTERRUPTED = 130
    BROKEN_PIPE = 141


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
