"""Why a connection is not made or not carried on."""

from __future__ import annotations


class Refused(Exception):
    """The request is not understood or not allowed: the policy's answer. `status` is that of HTTP."""

    def __init__(self, reason: str, status: int = 403) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class Unreachable(Exception):
    """The rules allow the host, and it could not be connected to."""

    def __init__(self, reason: str, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.timed_out = timed_out
