"""How a command ends: its exit code, and how an error is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import IntEnum

from dutyfree.errors import CallerError, DutyfreeError
from dutyfree.formatting import plain
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
    """The code that tells a shell how the command ended."""
    if seen.timed_out:
        return ExitCode.TIMED_OUT
    if seen.exit_code is not None:
        return seen.exit_code
    return ExitCode.SIGNALLED + (seen.signal or 0)


def told_unenforced(unenforced: Sequence[Unenforced]) -> str:
    """What is not enforced, in one line; bounds that share a reason share its mention."""
    reasons: dict[str, list[str]] = {}
    for each in unenforced:
        reasons.setdefault(each.reason, []).append(each.what)
    return "; ".join(f"{', '.join(what)} ({reason})" for reason, what in reasons.items())


def report_error(error: DutyfreeError, *, as_json: bool = False) -> int:
    """Say what went wrong, and what mends it, and return the exit code for it.

    Messages may quote anything; of that a terminal gets to see what is plain.
    """
    if as_json:
        told = {"kind": type(error).__name__, "party": error.party, "message": error.message, "hint": error.hint}
        print(json.dumps({"error": told}))
    else:
        print(f"error: {plain(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"hint: {plain(error.hint)}", file=sys.stderr)
    return ExitCode.USAGE if isinstance(error, CallerError) else ExitCode.INFRASTRUCTURE
