"""The line that `commands.run` gets for an action, and what is read from the end of its standard error. Pure.

The SDK tells neither how long a command ran nor that it did not start at all: bash notes the time before and after it,
and its exit code, behind everything that the command has written to its standard error.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

from dutyfree.errors import InvalidRequest
from dutyfree.model import Action

_MARK: Final = "\x1e"
_MAX_TRAILER_CHARACTERS: Final = 200


def wrap(action: Action, token: str) -> str:
    """The line for bash. Raises InvalidRequest for text that is not Unicode."""
    command = action.command
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    try:
        for word in words:
            word.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("the command is no Unicode text", hint="the SDK cannot send other bytes") from None
    inward = "" if action.stdin else " </dev/null"
    merged = " 2>&1" if action.merge else ""
    note = f"""printf '\\036{token} %s %s %s\\036' "$s" "$EPOCHREALTIME" "$c" >&2"""
    return f"s=$EPOCHREALTIME; (exec -- {shlex.join(words)}){inward}{merged}; c=$?; {note}; exit $c"


@dataclass(frozen=True, slots=True)
class Note:
    """What bash has noted. `execute_ns` is None where its clock is too old a bash's."""

    exit_code: int
    execute_ns: int | None


class Trailer:
    """Separates the command's own standard error from the note behind it."""

    def __init__(self, token: str) -> None:
        self._mark = f"{_MARK}{token} "
        self._held = ""
        self._found = False

    def feed(self, text: str) -> str:
        """The part of what has come that is the command's own; the rest is held back."""
        self._held += text
        if self._found:
            return ""
        at = self._held.find(self._mark)
        if at >= 0:
            self._found = True
        else:
            at = self._held.rfind(_MARK, max(0, len(self._held) - len(self._mark)))
            at = len(self._held) if at < 0 or not self._mark.startswith(self._held[at:]) else at
        own, self._held = self._held[:at], self._held[at : at + _MAX_TRAILER_CHARACTERS]
        return own

    def finish(self) -> tuple[str, Note | None]:
        """What was held back and is the command's own, and the note; None if bash did not come to write it."""
        if not self._found:
            return self._held, None
        fields = self._held[len(self._mark) :].partition(_MARK)[0].split(" ")
        if len(fields) != 3 or not fields[2].isdigit():
            return "", None
        return "", Note(int(fields[2]), _between_ns(fields[0], fields[1]))


def _between_ns(start: str, end: str) -> int | None:
    moments = [each.replace(".", "").replace(",", "") for each in (start, end)]
    if not all(each.isascii() and each.isdigit() and len(each) < 20 for each in moments):
        return None
    return max(0, int(moments[1]) - int(moments[0])) * 1000
