"""Every error that Dutyfree raises, and the party at fault for each.

::

    DutyfreeError
    ├── CallerError                 the call was wrong; repeating it gives the same answer
    │   ├── InvalidRequest          a value that no substrate could accept
    │   │   ├── ArchiveRefused      an archive, or an image, that is broken or means harm
    │   │   └── ImageNotFound       the store has no image of this name
    │   ├── BuildFailed             a recipe's own line failed (has .stage, .log)
    │   ├── ActionFailed            a command failed, and the caller had asked for an error (has .observation)
    │   │   └── PatchRefused        a patch does not apply; nothing was changed
    │   ├── Unsupported             this substrate lacks the capability
    │   ├── SandboxGone             the sandbox was destroyed before this call
    │   ├── SandboxReset            the sandbox was reset while this was under way
    │   ├── SessionEnded            the session's shell has exited
    │   ├── Unauthenticated         the token for a server is not valid
    │   ├── LeaseLost               the lease has ended; the sandbox may have another tenant
    │   └── FileFailed              a file operation that the sandbox's own kernel refused (has .errno)
    ├── CapacityError               a limit was reached; the same call may succeed later (has .retry_after_s)
    └── InfraFailed                 the machinery failed: never an observation, never a reward
        ├── SubstrateUnavailable    the substrate cannot run on this machine
        ├── SubstrateFailed         the substrate broke its promise (creation, destruction, a dead sandbox)
        ├── LinkFailed              the stream to the guest broke
        ├── GuestMisbehaved         the guest broke the protocol; nothing that it sent is used
        └── DeadlineExceeded        the substrate did not answer in time

A command's non-zero exit code is none of these: it is an observation, unless the caller asked for `check=True`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from dutyfree.model.observation import Observation

Party = Literal["caller", "capacity", "substrate", "link"]


class UnenforcedWarning(UserWarning):
    """A lease has a sandbox that lacks a limit or wall that was asked for; `strict=True` refuses such a sandbox."""


class DutyfreeError(Exception):
    """The root: names the party at fault and, where one is known, how to fix it."""

    party: ClassVar[Party]
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


class CallerError(DutyfreeError):
    """The call was wrong; repeating it gives the same answer."""

    party: ClassVar[Party] = "caller"


class InvalidRequest(CallerError):
    """A value that no substrate could accept; raised before anything was done."""


class ArchiveRefused(InvalidRequest):
    """An archive, or an image, that is broken or means harm; nothing of it was kept."""


class ImageNotFound(InvalidRequest):
    """The store has no image of this name; the hint has similar names."""


class BuildFailed(CallerError):
    """A line of a recipe's stage failed; nothing of the stage was kept."""

    def __init__(self, message: str, *, stage: str, log: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.stage = stage
        self.log = log
        """The end of what the stage printed."""


class Unsupported(CallerError):
    """The substrate lacks the capability that the call needs."""


class SandboxGone(CallerError):
    """The sandbox was destroyed, or died, before this call."""


class SandboxReset(CallerError):
    """The sandbox was reset while this was under way; it lives on, without anything that was in it."""


class SandboxPaused(CallerError):
    """The sandbox is paused; resume it first."""


class SessionEnded(CallerError):
    """The session's shell has exited; open another one."""


class Unauthenticated(CallerError):
    """The token for a server is missing, wrong or revoked. The message never says which."""


class LeaseLost(CallerError):
    """The lease has ended or expired; the sandbox may have another tenant by now."""


class FileFailed(CallerError):
    """A file operation that the sandbox's own kernel refused."""

    def __init__(self, message: str, *, errno: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errno = errno

    @classmethod
    def refused(cls, operation: str, path: str, errno: int, detail: str = "") -> FileFailed:
        """The error for `operation` on `path`, worded from the kernel's own `errno`."""
        reason = detail or os.strerror(errno)
        return cls(f"cannot {operation} {path!r}: {reason}", errno=errno)


class PortFailed(CallerError):
    """No connection to a port of the sandbox: nothing listens there, the program broke it off, or it is taken."""

    def __init__(self, message: str, *, errno: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errno = errno


class ActionFailed(CallerError):
    """A command did not exit with code 0, and the caller had asked for an error in that case.

    The infrastructure worked: another try in a fresh sandbox is expected to give the same.
    """

    def __init__(self, message: str, *, observation: Observation | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.observation = observation
        """What was seen of the command; None for an error that was read from JSON."""


class PatchRefused(ActionFailed):
    """A patch does not apply to the files as they are, or is no patch. Nothing was changed."""


class CapacityError(DutyfreeError):
    """A limit was reached; the same call may succeed later."""

    party: ClassVar[Party] = "capacity"
    retryable = True

    def __init__(self, message: str, *, hint: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s
        """How long to wait before another try; None where no estimate is possible."""


class InfraFailed(DutyfreeError):
    """The machinery failed. A rollout that meets this has no result, good or bad."""

    party: ClassVar[Party] = "substrate"
    retryable = True


class SubstrateUnavailable(InfraFailed):
    """The substrate cannot run on this machine; the hint says what is missing."""

    retryable = False


class SubstrateFailed(InfraFailed):
    """The substrate broke its promise: a creation, a destruction, or a sandbox that died."""


class LinkFailed(InfraFailed):
    """The stream between host and guest broke while something was under way."""

    party: ClassVar[Party] = "link"


class GuestMisbehaved(InfraFailed):
    """The guest broke the protocol; the sandbox is destroyed and nothing that it said is used."""


class DeadlineExceeded(InfraFailed):
    """The substrate did not answer in time (an action's own timeout is an observation instead)."""
