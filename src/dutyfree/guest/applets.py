"""How an applet of the guest is asked for, and what its exit code means."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from dutyfree.errors import FileFailed
from dutyfree.guest.exchanges import MAX_SIZE_BYTES
from dutyfree.guest.runner import milliseconds
from dutyfree.wire.fields import encode_text
from dutyfree.wire.messages import Exit, ExitFlag, Mode, Run, RunFlag


def applet_request(
    words: Sequence[str],
    *,
    takes_input: bool,
    timeout_s: float,
    credit_bytes: int,
    output_limit_bytes: int | None = None,
    user: bytes = b"",
) -> Run:
    """The RUN of an applet: its name and its arguments."""
    return Run(
        id=0,
        mode=Mode.APPLET,
        args=tuple(map(encode_text, words)),
        flags=RunFlag.STDIN if takes_input else 0,
        timeout_ms=milliseconds(timeout_s),
        output_limit=None if output_limit_bytes is None else min(output_limit_bytes, MAX_SIZE_BYTES),
        credit=credit_bytes,
        user=user,
    )


def raise_if_failed(operation: str, path: str, end: Exit) -> None:
    """Raise FileFailed unless the applet succeeded; the message is the host's own and quotes nothing from the guest."""
    if end.flags & ExitFlag.TIMED_OUT:
        message = f"cannot {operation} {path!r}: it did not finish in time and was killed"
        raise FileFailed(message, errno=errno.ETIMEDOUT, hint="give it a longer timeout_s if it may take that long")
    if end.exit_code is None:
        raise FileFailed.refused(operation, path, errno.EINTR, f"killed by signal {end.signal}")
    if end.exit_code:
        raise FileFailed.refused(operation, path, end.exit_code)
